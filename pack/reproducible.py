"""Builds the executable twice, from copies of the sources in two directories, and compares the bytes.

One rule: the copies share only the machine and its installed packages, neither paths nor caches.

    PYTHONHASHSEED=0 python -m pack.reproducible [--arm64 SYSROOT]
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pack.build import PACKAGES, ROOT


def main() -> int:
    """Returns 0 if both builds gave the same file."""
    parser = argparse.ArgumentParser(description="Builds the executable twice and compares the bytes.")
    parser.add_argument("--arm64", type=Path, metavar="SYSROOT", help="as for pack.build")
    sysroot = parser.parse_args().arm64
    options: list[str | Path] = ["--arm64", sysroot.resolve()] if sysroot else []
    other = {"LANG": "C.UTF-8", "TZ": "Asia/Tokyo"}
    with tempfile.TemporaryDirectory() as directory:
        first = _build(Path(directory) / "a" / "podwire", options, {})
        second = _build(Path(directory) / "a-longer-name" / "podwire-copy", options, other)
    print(f"sha256 {first}\nsha256 {second}\n{'the same' if first == second else 'NOT REPRODUCIBLE'}")
    return 0 if first == second else 1


def _build(root: Path, options: list[str | Path], env: dict[str, str]) -> str:
    for name in (*PACKAGES, "pack"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pack.build", "--work", root / "work", "--out", root / "bin", *options]
    variables = {"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", **env}
    subprocess.run(command, cwd=root, env=variables, stdout=subprocess.DEVNULL, check=True)
    return hashlib.sha256((root / "bin" / "podwire").read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
