"""The image of the node agent: a small Debian with Python, the plugins' executable, and the agent.

One rule: the same packages of Debian, executables and SOURCE_DATE_EPOCH give the same bytes. `make agent-base` installs
the packages in their current versions, which the bill of materials of each machine lists.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

from pack.build import ROOT
from pack.release import agent_files, sbom
from pack.release.archive import Member, repack, tar
from pack.release.oci import Image, licence_members, write_layout
from pack.release.product import AGENT_SUMMARY, LICENSE, TOOL, Product

# By machine; `make agent-base` and `make agent-base-arm64` create them.
BASES = {"amd64": ROOT / "build" / "agent-base.tar", "arm64": ROOT / "build" / "agent-base-arm64.tar"}
_NAME = "podwire-agent"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/podwire"
_STATUS = "./var/lib/dpkg/status"
# Traces of the installation, and apt's settings: the image has no apt.
_INSTALLATION = ("var/log/", "var/cache/", "var/lib/apt/", "etc/apt/", "etc/dpkg/dpkg.cfg.d/", "run/", "tmp/")
_INSTALLATION_FILES = ("var/lib/dpkg/status-old", "var/lib/dpkg/lock", "var/lib/dpkg/lock-frontend", "etc/resolv.conf")


def write(products: Sequence[Product], directory: Path) -> list[Path]:
    """Writes podwire-agent-<version>-oci.tar for all products, and a bill of materials for each; returns the files."""
    with_bases = [(product, BASES[product.machine].read_bytes()) for product in products]
    image = directory / f"{_NAME}-{products[0].version}-oci.tar"
    write_layout(image, _NAME, [_image(*one) for one in with_bases], products[0])
    sha256 = hashlib.sha256(image.read_bytes()).hexdigest()
    return [image, *(_write_bill(*one, sha256, directory) for one in with_bases)]


def _image(product: Product, base: bytes) -> Image:
    layers = (repack(base, product.epoch_s, without=_is_of_installation), _program(product), _agent(product))
    labels = {"title": _NAME, "description": AGENT_SUMMARY, "version": product.version, "licenses": LICENSE}
    return Image(product.machine, layers, f"/{agent_files.PROGRAM}", labels, (_PATH,))


def _write_bill(product: Product, base: bytes, sha256: str, directory: Path) -> Path:
    bill = directory / f"{_NAME}-{product.version}-linux-{product.machine}.cdx.json"
    parts = [*map(sbom.library, agent_files.VENDORED), *sbom.components(product.machine)]
    parts = [*{part.purl: part for part in [*parts, *sbom.debian_components(_status(base))]}.values()]
    document = sbom.agent_document(product, sha256, parts)
    bill.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    return bill


def _program(product: Product) -> bytes:
    members = [Member(f"opt/podwire/{TOOL}", product.program, executable=True), *licence_members()]
    return tar(members, product.epoch_s)


def _agent(product: Product) -> bytes:
    modules = agent_files.modules(product.machine)
    files = dict(sorted((modules | agent_files.bytecode(modules)).items()))
    members = [Member(f"{agent_files.DIRECTORY}/{name}", content) for name, content in files.items()]
    members.append(Member(agent_files.PROGRAM, agent_files.program(), executable=True))
    return tar(members, product.epoch_s)


def _is_of_installation(path: str) -> bool:
    return path.startswith(_INSTALLATION) or path in _INSTALLATION_FILES


def _status(base: bytes) -> str:
    """Returns the text of dpkg's list of packages."""
    with tarfile.open(fileobj=io.BytesIO(base)) as archive:
        file = archive.extractfile(_STATUS)
        assert file is not None, _STATUS
        return file.read().decode()
