"""Fixtures of the tests with real runtimes: a machine for each module, and its runtime's programs.

One rule: a program that is missing fails in CI; a runtime that cannot run a container even without a network is no
test of ours, and is skipped with what it said.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.machine import Machine, machine
from tests.clients.podman import PROGRAMS, Podman, installed
from tests.support import binaries


@pytest.fixture(scope="module")
def needs_programs(root: None) -> Callable[..., None]:
    """A function that demands programs: without them the module is skipped, or fails in CI."""

    def demand(*names: str) -> None:
        missing = [name for name in names if not shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")]
        if missing:
            problem = f"no {', '.join(missing)}: use `make needs-runtimes`"
            binaries.leave_out(problem)

    return demand


@pytest.fixture(scope="module")
def empty_machine(root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine without plugins and without a runtime, the module's own."""
    scratch: Path = tmp_path_factory.mktemp("machine")
    with machine(scratch) as made:
        yield made


@pytest.fixture(scope="module")
def podman(empty_machine: Machine, needs_programs: Callable[..., None], bin_dir: Path) -> Podman:
    """Podman with our files as `podwire install` puts them, and the network "podwire", which one container has used."""
    needs_programs(*PROGRAMS)
    made = installed(empty_machine)
    trial = made.line("trial", "--rm", network="none", command=("true",))
    if problem := made.machine.problem("podman", *trial):
        pytest.skip(f"podman does not run a container here, network or none: {problem}")
    made.machine.run(str(bin_dir / "podwire"), "install", "--conf", "--subnet=10.22.0.0/16")
    made.start("first", "--publish=8080:80")
    made.remove()
    return made


@pytest.fixture
def all_gone(podman: Podman) -> Iterator[None]:
    """Demands that after a test, all containers removed, the machine is in whole as it was before."""
    with podman.machine.unchanged():
        yield
        podman.remove()
