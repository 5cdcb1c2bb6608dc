"""Creates a release: archives, packages, images, bills of materials, apt's index, the provenance, and SHA256SUMS.

One rule: SHA256SUMS is written last, so a directory that has it is complete.

    python -m pack.release [--out DIR]
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from collections.abc import Sequence
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
    artefacts = [artefact.write(one, out) for one in products for artefact in (tgz, deb, sbom)]
    artefacts.append(oci.write(products, out))
    artefacts += _agent(products, out)
    artefacts.append(apt_index.write([path for path in artefacts if path.suffix == ".deb"], out))
    artefacts.append(provenance.write(version, epoch_s, artefacts, out))
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in artefacts}
    sums_file = out / "SHA256SUMS"
    sums_file.write_text("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)))
    for path in (*artefacts, sums_file):
        print(f"{path} ({_format_size(path.stat().st_size)})")
    missing = [machine for machine in BUILT if machine not in built]
    print(f"For {', '.join(built)}." + (f" Not built: {', '.join(missing)}." if missing else ""))
    return 0


def _format_size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"


def _agent(products: Sequence[Product], out: Path) -> list[Path]:
    """Packs the node agent; returns the files. Its image is for the machines whose Debian was created."""
    artefacts = [agent_deb.write(one, out) for one in products]
    bases = agent_image.BASES
    for one in (one for one in products if not bases[one.machine].exists()):
        print(f"No image of the agent for {one.machine}, because {bases[one.machine]} is missing.", file=sys.stderr)
    in_image = [one for one in products if bases[one.machine].exists()]
    return artefacts + (agent_image.write(in_image, out) if in_image else [])


if __name__ == "__main__":
    sys.exit(main())
