"""The archive that is unpacked in /opt/cni/bin, as the reference plugins' is.

One rule: at nearly every moment of unpacking each plugin is whole. tar removes a file and then writes it again, so what
takes long to write, the one executable, has the tool's name, which no runtime calls; plugins are hard links to it.

There is no member for the directory itself, so that the mode and the owner of the one it is unpacked in stay.
"""

from __future__ import annotations

from pathlib import Path

from pack.build import ROOT
from pack.release.archive import Member, gz, tar
from pack.release.product import TEXTS, TOOL, Product


def write(product: Product, directory: Path) -> Path:
    """Writes podwire-<version>-linux-<machine>.tgz and returns it."""
    members = [
        Member(f"./{TOOL}", product.program, executable=True),
        *(Member(f"./{name}", executable=True, link_to=f"./{TOOL}") for name in product.plugins),
        *(Member(f"./{name}", (ROOT / name).read_bytes()) for name in TEXTS),
    ]
    path = directory / f"{product.stem}.tgz"
    path.write_bytes(gz(tar(members, product.epoch_s)))
    return path
