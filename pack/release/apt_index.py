"""The index `Packages`, with which apt installs from the directory of a release."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path


def write(packages: Sequence[Path], directory: Path) -> Path:
    """Writes the index of Debian packages in `directory` and returns it."""
    path = directory / "Packages"
    path.write_text("\n".join(_entry(package) for package in sorted(packages)))
    return path


def _entry(package: Path) -> str:
    """Returns a package's description with the name, the size and the checksum of its file."""
    control = subprocess.run(["dpkg-deb", "--field", package], capture_output=True, text=True, check=True).stdout
    content = package.read_bytes()
    file = (f"Filename: ./{package.name}", f"Size: {len(content)}", f"SHA256: {hashlib.sha256(content).hexdigest()}")
    return control + "\n".join(file) + "\n"
