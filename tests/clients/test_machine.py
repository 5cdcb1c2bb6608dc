"""The tests' private machines and their effect on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.parametrize("place", ["/dev/shm", "/etc", "/opt", "/run", "/run/netns", "/var/lib", "/var/lib/cni"])
def test_files_of_a_private_machine_are_not_on_this_machine(empty_machine, place):
    """A file in a directory for state of runtimes (podman's locks in /dev/shm) exists only on the private machine."""
    path = Path(place, f"pwt-{empty_machine.pid}")
    empty_machine.run("touch", str(path))
    exists = path.exists()
    empty_machine.run("rm", str(path))
    assert not exists
