"""Fixtures of the tests with real runtimes.

One rule: the tests of a runtime that cannot run a container even without a network are skipped, with the runtime's
message.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients import cri as cri_client
from tests.clients.cri import Cri
from tests.clients.podman import PROGRAMS, Podman, configure_with_image
from tests.support.machine import Machine, eventually


@pytest.fixture(scope="module")
def podman(empty_machine: Machine, needs_programs: Callable[..., None], bin_dir: Path) -> Podman:
    """Podman with podwire's files, as `podwire install` writes them, and the network "podwire".

    One container has used that network.
    """
    needs_programs(*PROGRAMS)
    podman = configure_with_image(empty_machine)
    trial = podman.line("trial", "--rm", network="none", command=("true",))
    if problem := podman.machine.problem("podman", *trial):
        pytest.skip(f"podman does not run a container here, network or none: {problem}")
    podman.machine.run(str(bin_dir / "podwire"), "install", "--conf", "--subnet=10.22.0.0/16")
    podman.start("first", "--publish=8080:80")
    podman.remove()
    return podman


@pytest.fixture(scope="module")
def default_network_used(podman: Podman) -> None:
    """Runs one container with a port on podman's network, because the first leaves what stays by design."""
    podman.start("first", "--publish=8080:80", network="")
    podman.remove()


@pytest.fixture(scope="module")
def cri(empty_machine: Machine, needs_programs: Callable[..., None], bin_dir: Path) -> Iterator[Cri]:
    """The CRI of a containerd that has only podwire's plugins."""
    needs_programs(*cri_client.PROGRAMS)
    with cri_client.ready(empty_machine, bin_dir) as cri:
        yield cri


@pytest.fixture
def machine_unchanged(podman: Podman) -> Iterator[None]:
    """Asserts that the test leaves the machine, without its containers, in the same state."""
    # podman's processes end some time after the container of the test before.
    assert eventually(lambda: not {"conmon", "podman"} & {*podman.machine.run("ps", "-e", "-o", "comm=").split()})
    with podman.machine.unchanged():
        yield
        podman.remove()
