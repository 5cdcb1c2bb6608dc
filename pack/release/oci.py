"""Container images, as OCI image layouts in tar files: one name for an image for each machine.

One rule: the plugins' image contains only the executable, whose first command is `install`, and the licences: no shell,
no library. deploy/Containerfile builds the same content.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pack.build import ROOT
from pack.release import sbom
from pack.release.archive import Member, gz, tar
from pack.release.product import LICENSE, SUMMARY, TOOL, Product

_TYPES = "application/vnd.oci.image"
_CONFIG, _LAYER = f"{_TYPES}.config.v1+json", f"{_TYPES}.layer.v1.tar+gzip"
_MANIFEST, _INDEX = f"{_TYPES}.manifest.v1+json", f"{_TYPES}.index.v1+json"
_LICENSES = ("LICENSE", "THIRD-PARTY-NOTICES.md")

Json = dict[str, Any]


@dataclass
class _Blobs:
    """The blobs of the layout, by digest."""

    members: dict[str, Member] = field(default_factory=dict)

    def add(self, media_type: str, content: bytes | Json, **more: Any) -> Json:
        """Adds a blob and returns its descriptor."""
        body = content if isinstance(content, bytes) else json.dumps(content, sort_keys=True).encode()
        digest = hashlib.sha256(body).hexdigest()
        self.members[digest] = Member(f"blobs/sha256/{digest}", body)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(body), **more}


@dataclass(frozen=True)
class Image:
    """An image for one machine; `layers` are uncompressed archives, the lowest one first."""

    machine: str
    layers: tuple[bytes, ...]
    entrypoint: str
    labels: Mapping[str, str]
    env: tuple[str, ...] = ()


def write(products: Sequence[Product], directory: Path) -> Path:
    """Writes podwire-<version>-oci.tar for all products, which have the same version and time; returns its path."""
    path = directory / f"podwire-{products[0].version}-oci.tar"
    images = [Image(one.machine, (_layer(one),), f"/{TOOL}", _labels(one)) for one in products]
    write_layout(path, TOOL, images, products[0])
    return path


def write_layout(path: Path, name: str, images: Sequence[Image], product: Product) -> None:
    """Writes a layout with images for several machines under one name; version and time are those of `product`."""
    blobs = _Blobs()
    # A nested index even for one machine: with several images in the outer one, tools ask which one to use.
    inner = [_add_image(blobs, image, product.epoch_s) for image in images]
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": inner}
    tag = product.version.replace("+", "-")  # a tag has no "+"
    # ctr and docker use the first name, podman and skopeo either; the publisher renames the image.
    names = {"io.containerd.image.name": f"localhost/{name}:{tag}", "org.opencontainers.image.ref.name": tag}
    outer = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [blobs.add(_INDEX, index, annotations=names)]}
    members = [
        Member("oci-layout", b'{"imageLayoutVersion": "1.0.0"}'),
        Member("index.json", json.dumps(outer, sort_keys=True).encode()),
        *(blobs.members[digest] for digest in sorted(blobs.members)),
    ]
    path.write_bytes(tar(members, product.epoch_s))


def licence_members() -> list[Member]:
    """Returns the licences, for the root of an image."""
    return [Member(name, (ROOT / name).read_bytes()) for name in _LICENSES]


def _layer(product: Product) -> bytes:
    return tar([Member(TOOL, product.program, executable=True), *licence_members()], product.epoch_s)


def _add_image(blobs: _Blobs, image: Image, epoch_s: int) -> Json:
    platform = {"architecture": image.machine, "os": "linux"}
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch_s))
    program: Json = {"Entrypoint": [image.entrypoint], "WorkingDir": "/"}
    if image.env:
        program["Env"] = [*image.env]
    program["Labels"] = {f"org.opencontainers.image.{name}": text for name, text in image.labels.items()}
    config = {
        **platform,
        "created": created,
        "config": program,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in image.layers]},
        "history": [{"created": created, "created_by": "make release"} for _ in image.layers],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": blobs.add(_CONFIG, config),
        "layers": [blobs.add(_LAYER, gz(layer)) for layer in image.layers],
    }
    return blobs.add(_MANIFEST, manifest, platform=platform)


def _labels(product: Product) -> dict[str, str]:
    licenses = sorted({LICENSE, *(component.license for component in sbom.components(product.machine))})
    return {
        "title": TOOL,
        "description": SUMMARY,
        "version": product.version,
        "licenses": " AND ".join(f"({one})" if " OR " in one else one for one in licenses),
    }
