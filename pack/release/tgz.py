"""The archive for /opt/cni/bin, like that of the reference plugins.

One rule: while tar unpacks it, each plugin is missing for a moment only. tar deletes a file before it writes
it, so the executable has the tool's name, which no runtime calls, and the plugins are hard links to it.

There is no member for the directory itself, so that unpacking keeps its mode and owner.
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
