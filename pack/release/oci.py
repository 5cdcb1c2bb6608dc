"""The container image, as an OCI image layout in a tar file: one name for an image for each machine.

One rule: an image contains only the executable, whose first command is `install`, and the licences: no shell, no
library. deploy/Containerfile builds the same content.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
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


def write(products: Sequence[Product], directory: Path) -> Path:
    """Writes podwire-<version>-oci.tar for all products, which have the same version and time; returns its path."""
    version, epoch_s = products[0].version, products[0].epoch_s
    blobs = _Blobs()
    # A nested index even for one machine: with several images in the outer one, tools ask which one to use.
    images = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [_image(blobs, product) for product in products]}
    tag = version.replace("+", "-")  # a tag has no "+"
    # ctr and docker use the first name, podman and skopeo either; the publisher renames the image.
    names = {"io.containerd.image.name": f"localhost/podwire:{tag}", "org.opencontainers.image.ref.name": tag}
    outer = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [blobs.add(_INDEX, images, annotations=names)]}
    members = [
        Member("oci-layout", b'{"imageLayoutVersion": "1.0.0"}'),
        Member("index.json", json.dumps(outer, sort_keys=True).encode()),
        *(blobs.members[digest] for digest in sorted(blobs.members)),
    ]
    path = directory / f"podwire-{version}-oci.tar"
    path.write_bytes(tar(members, epoch_s))
    return path


def _image(blobs: _Blobs, product: Product) -> Json:
    files = [Member(TOOL, product.program, executable=True)]
    files += [Member(name, (ROOT / name).read_bytes()) for name in _LICENSES]
    layer = tar(files, product.epoch_s)
    platform = {"architecture": product.machine, "os": "linux"}
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(product.epoch_s))
    config = {
        **platform,
        "created": created,
        "config": {"Entrypoint": [f"/{TOOL}"], "WorkingDir": "/", "Labels": _labels(product)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": created, "created_by": "make release"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": blobs.add(_CONFIG, config),
        "layers": [blobs.add(_LAYER, gz(layer))],
    }
    return blobs.add(_MANIFEST, manifest, platform=platform)


def _labels(product: Product) -> dict[str, str]:
    licenses = sorted({LICENSE, *(component.license for component in sbom.components(product.machine))})
    labels = {
        "title": TOOL,
        "description": SUMMARY,
        "version": product.version,
        "licenses": " AND ".join(f"({one})" if " OR " in one else one for one in licenses),
    }
    return {f"org.opencontainers.image.{name}": text for name, text in labels.items()}
