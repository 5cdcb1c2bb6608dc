"""A product of a release: an executable for one machine, its names, its version and its time.

One rule: values that differ between two runs are read here, once, and passed to the functions that create artefacts.
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
from process.version import __version__

TOOL = "podwire"
LICENSE = "Apache-2.0"  # podwire's, as an SPDX identifier
SUMMARY = "CNI network plugins that need no Python on the node, and a tool for node operators"
AGENT_SUMMARY = "Node agent of podwire: a Kubernetes cluster's pod network"
TEXTS = ("LICENSE", "README.md", "THIRD-PARTY-NOTICES.md")  # in every archive

# The directories with only the executables, by Debian's and OCI's name of the machine.
BUILT = {"amd64": ROOT / "dist" / "bin", "arm64": ROOT / "dist" / "arm64" / "bin"}


@dataclass(frozen=True)
class Product:
    """An executable for one machine."""

    version: str
    epoch_s: int  # the time in every artefact
    machine: str
    directory: Path

    @cached_property
    def program(self) -> bytes:
        """The content of the executable."""
        return (self.directory / TOOL).read_bytes()

    @cached_property
    def sha256(self) -> str:
        """The checksum of the executable."""
        return hashlib.sha256(self.program).hexdigest()

    @cached_property
    def plugins(self) -> list[str]:
        """The names of the plugins, from the directory: the executable may be for another machine."""
        return sorted(path.name for path in self.directory.iterdir() if path.name != TOOL)

    @property
    def stem(self) -> str:
        """The start of the artefacts' names."""
        return f"podwire-{self.version}-linux-{self.machine}"


def version() -> str:
    """Returns the version to publish, with "+dirty" if there are uncommitted changes.

    Exits if CHANGELOG.md does not begin with that version.
    """
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if not heading or heading[1] != __version__:
        version = heading[1] if heading else "nothing"
        raise SystemExit(f"the version is {__version__}, CHANGELOG.md begins with {version}: make them agree")
    return f"{__version__}+dirty" if git("status", "--porcelain") else __version__


def epoch_s(env: Mapping[str, str] = os.environ) -> int:
    """Returns the time for artefacts: SOURCE_DATE_EPOCH, or that of the commit; exits if there is neither."""
    epoch = env.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct")
    if not epoch:
        raise SystemExit("no git repository with the time of this version: set SOURCE_DATE_EPOCH (seconds since 1970)")
    return int(epoch)


def tool_output(*arguments: str) -> bytes:
    """Returns the output of the operator's tool, run by this Python: an executable may be for another machine."""
    program = "from podwire.main import console; console()"
    return subprocess.run([sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, check=True).stdout


def git(*arguments: str) -> str:
    """Returns git's output for this directory, "" without git or without a repository."""
    try:
        done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
