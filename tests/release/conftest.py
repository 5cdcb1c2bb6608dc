"""Fixtures: a release of the built files, packed once.

One rule: the release is packed as by `make release`, into a directory of the tests.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pack.release.agent_image import BASES
from pack.release.product import BUILT
from tests.release import roots
from tests.release.roots import Root
from tests.support import binaries
from tests.support.binaries import ROOT

EPOCH_S = 1_780_000_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives each test here the time to pack, ten seconds of work on a machine that is not busy: the first one does."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(2000))


@dataclass(frozen=True)
class Release:
    """A directory of artefacts, and the output of the command that packed them."""

    directory: Path
    output: str

    def one(self, pattern: str) -> Path:
        """Returns the only artefact that matches a pattern."""
        (path,) = self.directory.glob(pattern)
        return path

    def contents(self) -> dict[str, bytes]:
        """Returns the content of every artefact by its name."""
        return {path.name: path.read_bytes() for path in self.directory.iterdir()}


def built() -> list[str]:
    """Returns the machines for which the executables are built."""
    return [machine for machine, path in BUILT.items() if (path / "podwire").exists()]


def pack(directory: Path, env: Mapping[str, str] | None = None, umask: int = 0o022) -> Release:
    """Packs a release into a directory."""
    variables = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH_S), "PYTHONPATH": str(ROOT), **(env or {})}
    command = [sys.executable, "-m", "pack.release", "--out", str(directory)]
    done = subprocess.run(
        command, cwd=directory.parent, env=variables, umask=umask, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Release(directory, done.stdout)


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A release of the files in dist/; tests do not change it."""
    if not (BUILT["amd64"] / "podwire").exists():
        pytest.fail(binaries.explain_missing() or "run `make binaries`", pytrace=False)
    for machine in built():
        if not BASES[machine].exists():
            pytest.fail(f"{BASES[machine]} is missing: run `make agent-base agent-base-arm64`", pytrace=False)
    return pack(tmp_path_factory.mktemp("release") / "out")


@pytest.fixture(scope="session")
def program() -> Path:
    """The executable for this machine, which the release contains."""
    return BUILT["amd64"] / "podwire"


@pytest.fixture(scope="session")
def plugins(program: Path) -> list[str]:
    """The names of the plugins in the executable, as it lists them."""
    return subprocess.run([program, "list"], env={}, capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture
def node(root: None, tmp_path: Path) -> Iterator[Root]:
    """A root file system for dpkg."""
    with roots.temporary(tmp_path / "node") as root_system:
        yield root_system
