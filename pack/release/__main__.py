"""Creates a release: archives, packages, images, bills of materials, apt's index, the provenance, and SHA256SUMS.

One rule: SHA256SUMS is written last, so a directory that has it is complete.

    python -m pack.release [--out DIR]
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pack.build import ROOT
from pack.release import agent_deb, agent_image, apt_index, deb, oci, product, provenance, sbom, tgz
from pack.release.product import BUILT, TOOL, Product


def main() -> int:
    """Creates a release for every machine with built executables; returns the exit status."""
    parser = argparse.ArgumentParser(description="Packs the executables of dist/ for publication.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "release", help="is emptied first (dist/release)")
    out = parser.parse_args().out
    if sys.version_info >= (3, 12):
        raise SystemExit("a release needs Debian 12's Python: later ones also link libmd, which sbom.py does not list")
    version, epoch_s = product.version(), product.epoch_s()
    built = {machine: path for machine, path in BUILT.items() if (path / TOOL).exists()}
    products = [Product(version, epoch_s, machine, path) for machine, path in built.items()]
    if not products:
        raise SystemExit("nothing is built: use `make release`")
    if version.endswith("+dirty"):
        print("There are uncommitted changes: do not publish this release.", file=sys.stderr)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    artefacts = [_shown(path) for path in _packed(products, out)]
    artefacts.append(_shown(apt_index.write([path for path in artefacts if path.suffix == ".deb"], out)))
    artefacts.append(_shown(provenance.write(version, epoch_s, artefacts, out)))
    _shown(_write_sums(artefacts, out))
    missing = [machine for machine in BUILT if machine not in built]
    print(f"For {', '.join(built)}." + (f" Not built: {', '.join(missing)}." if missing else ""))
    return 0


def _packed(products: Sequence[Product], out: Path) -> Iterator[Path]:
    """Yields archives, packages, images and bills, each when it is written.

    The image of the node agent is for the machines whose Debian was created.
    """
    for artefact in (tgz, deb, sbom, agent_deb):
        yield from (artefact.write(product, out) for product in products)
    yield oci.write(products, out)
    missing = [product for product in products if not agent_image.BASES[product.machine].exists()]
    for one in missing:
        print(f"No image of the agent for {one.machine}: {agent_image.BASES[one.machine]} is missing.")
    if in_image := [product for product in products if product not in missing]:
        yield from agent_image.write(in_image, out)


def _shown(path: Path) -> Path:
    """Prints the name and the size of a file, and returns it: packing takes half a minute."""
    size = path.stat().st_size
    shown = f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"
    print(f"{path} ({shown})", flush=True)
    return path


def _write_sums(artefacts: Sequence[Path], out: Path) -> Path:
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in artefacts}
    path = out / "SHA256SUMS"
    path.write_text("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)))
    return path


if __name__ == "__main__":
    sys.exit(main())
