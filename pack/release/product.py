"""What is packed: an executable for one machine, its names, its version and its moment.

One rule: what differs between two runs is read here, once, and passed to the functions that create the artefacts.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pack.build import ROOT
from podwire import __version__

TOOL = "podwire"
LICENSE = "Apache-2.0"  # of what is ours, as SPDX writes it
SUMMARY = "CNI network plugins that need no Python on the node, and a tool for node operators"
TEXTS = ("LICENSE", "README.md", "THIRD-PARTY-NOTICES.md")  # in every archive

# Where `make` leaves the executables, by the names that Debian and OCI have for the machine. Nothing else lies there.
BUILT = {"amd64": ROOT / "dist" / "bin", "arm64": ROOT / "dist" / "arm64" / "bin"}


@dataclass(frozen=True)
class Product:
    """An executable for one machine."""

    version: str
    epoch_s: int  # the moment that every artefact bears
    machine: str
    directory: Path

    @cached_property
    def program(self) -> bytes:
        """The executable; the same under every name."""
        return (self.directory / TOOL).read_bytes()

    @cached_property
    def sha256(self) -> str:
        """Its checksum."""
        return hashlib.sha256(self.program).hexdigest()

    @cached_property
    def plugins(self) -> list[str]:
        """Its names but the tool's. It is not asked: it may be for another machine."""
        return sorted(path.name for path in self.directory.iterdir() if path.name != TOOL)

    @property
    def stem(self) -> str:
        """How its artefacts' names begin."""
        return f"podwire-{self.version}-linux-{self.machine}"


def version() -> str:
    """Returns the version to publish, "+dirty" behind it for changes that are not committed.

    Exits when CHANGELOG.md does not begin with it.
    """
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if not heading or heading[1] != __version__:
        version = heading[1] if heading else "nothing"
        raise SystemExit(f"podwire.__version__ is {__version__}, CHANGELOG.md begins with {version}: make them agree")
    return f"{__version__}+dirty" if _git("status", "--porcelain") else __version__


def epoch_s(env: Mapping[str, str] = os.environ) -> int:
    """Returns the moment that artefacts bear: SOURCE_DATE_EPOCH, or that of the commit; exits when neither is there."""
    epoch = env.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct")
    if not epoch:
        raise SystemExit("no git repository that says of when this is: set SOURCE_DATE_EPOCH (seconds since 1970)")
    return int(epoch)


def told_by_tool(*arguments: str) -> bytes:
    """Returns what the operator's tool prints, run by this Python: an executable may be for another machine."""
    program = "from podwire.main import console; console()"
    return subprocess.run([sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, check=True).stdout


def _git(*arguments: str) -> str:
    """Returns what git says of this directory, "" without git or where it knows of no repository."""
    try:
        done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
