"""Fixtures of the tests with real runtimes.

One rule: a runtime that cannot run a container even without a network is no test of ours, and is skipped with what it
said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.podman import PROGRAMS, Podman, installed
from tests.support.machine import Machine


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
