"""Builds the portable variant with PyInstaller: the same names, for platforms without a static libpython.

One rule: it packs the same packages and the same entry as build.py; only the start differs. Each start
unpacks the file into a temporary directory, which takes some 100 ms.

    python -m pack.portable [--work DIR] [--out DIR]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from pack import check
from pack.build import ROOT, application
from pack.install import install, list_names

# Modules that the analysis finds through imports that never happen: kernel/ bypasses pyroute2's __init__.
EXCLUDED = ("pyroute2.ndb", "pyroute2.cli", "asyncio", "ssl", "sqlite3", "tkinter", "unittest", "pydoc", "setuptools")

ENTRY = """\
from podwire.main import console
console()
"""


def main() -> int:
    """Builds, checks and installs the portable executable; returns the exit status."""
    parser = argparse.ArgumentParser(description="Builds the portable executable with PyInstaller.")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "pyinstaller")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "pyinstaller" / "bin")
    options = parser.parse_args()
    program = build(options.work)
    names = list_names(program)
    install(program, options.work / "bin", names)
    check.check(options.work / "bin", names, alone=False)
    install(program, options.out, names)
    print(f"{options.out}: {' '.join(names)} (one file of {program.stat().st_size / 2**20:.1f} MiB)")
    return 0


def build(work: Path) -> Path:
    """Runs PyInstaller in the directory `work` and returns the executable."""
    work.mkdir(parents=True, exist_ok=True)
    entry = work / "podwire_entry.py"
    entry.write_text(ENTRY)
    ours = [module.name for module in application() if not module.name.startswith("_")]
    command = [sys.executable, "-m", "PyInstaller", "--onefile", "--noconfirm", "--strip", "--noupx", "--optimize=2"]
    command += ["--log-level=WARN", "--name=program", f"--paths={ROOT}"]
    command += [f"--distpath={work}", f"--workpath={work / 'work'}", f"--specpath={work}"]
    command += [f"--hidden-import={name}" for name in (*ours, "_podwire")]
    command += [f"--exclude-module={name}" for name in EXCLUDED]
    subprocess.run([*command, str(entry)], check=True)
    return work / "program"


if __name__ == "__main__":
    sys.exit(main())
