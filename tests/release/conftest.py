"""Fixtures: a release of what is built, packed once.

One rule: it is packed as `make release` does it, into a directory of the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pack.release.product import BUILT
from tests.support import binaries
from tests.support.binaries import ROOT

EPOCH_S = 1_780_000_000


@dataclass(frozen=True)
class Release:
    """A directory of artefacts."""

    directory: Path

    def one(self, pattern: str) -> Path:
        """Returns the only artefact of a pattern."""
        (found,) = self.directory.glob(pattern)
        return found

    def contents(self) -> dict[str, bytes]:
        """Returns every artefact."""
        return {path.name: path.read_bytes() for path in self.directory.iterdir()}


def pack(directory: Path, env: Mapping[str, str] | None = None, umask: int = 0o022) -> Release:
    """Packs a release into a directory."""
    variables = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH_S), "PYTHONPATH": str(ROOT), **(env or {})}
    command = [sys.executable, "-m", "pack.release", "--out", directory]
    done = subprocess.run(
        command, cwd=directory.parent, env=variables, umask=umask, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Release(directory)


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A release of what is in dist/, which nobody changes."""
    if not (BUILT["amd64"] / "podwire").exists():
        pytest.fail(binaries.explain_missing() or "run `make binaries`", pytrace=False)
    return pack(tmp_path_factory.mktemp("release") / "out")


@pytest.fixture(scope="session")
def program() -> Path:
    """The executable that is packed for this machine."""
    return BUILT["amd64"] / "podwire"


@pytest.fixture(scope="session")
def plugins(program: Path) -> list[str]:
    """The plugins in it, by its own word."""
    return subprocess.run([program, "list"], env={}, capture_output=True, text=True, check=True).stdout.split()
