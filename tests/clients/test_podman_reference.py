"""podman with podwire's plugins compared with podman with the reference plugins: its output, and what containers leave.

One rule: whole states are compared, except for the intended differences named here.
"""

from contextlib import ExitStack

import pytest

from tests.clients.podman import PROGRAMS, Podman, configure_with_image
from tests.support.machine import machine

# Only podwire's: it protects 127.0.0.0/8 of interfaces with route_localnet from other machines, and outlives pods.
GUARD = "table ip cni_hostport {"


@pytest.fixture
def machines(needs_programs, reference, bin_dir, tmp_path):
    """Podman on two machines, one with only podwire's plugins and one with only the reference plugins."""
    needs_programs(*PROGRAMS)
    with ExitStack() as stack:
        clients: list[Podman] = []
        for directory in (bin_dir, reference):
            scratch = tmp_path / str(len(clients))
            scratch.mkdir()
            one = stack.enter_context(machine(scratch))
            one.install(directory)
            clients.append(configure_with_image(one))
        yield clients


def test_podman_output_and_remains_equal_the_reference(machines):
    """Podman describes its containers' networks identically, and they leave the same, except for one table."""
    podwire, reference = (run_containers(podman) for podman in machines)
    assert podwire == reference


def run_containers(podman):
    """Runs containers on the default and on a created network; returns podman's descriptions and what remains."""
    mac = "--mac-address=02:00:00:00:00:07"
    descriptions = [podman.start("one", "--publish=8080:80", mac, network="").networks["podman"]]
    podman("network", "create", "--ipv6", "--subnet=10.68.0.0/24", "--subnet=fd00:68::/64", "auto")
    fixed = ("--ip=10.68.0.9", "--publish=8081:80", "--publish=8081:80/udp", mac)
    descriptions.append(podman.start("two", *fixed, network="auto").networks["auto"])
    podman.remove()
    podman("network", "rm", "auto")
    left = podman.machine.picture()
    assert left["processes"] == ["ps", "sleep"]
    for link in left["links"].values():
        del link["address"]
    left["nft"] = sorted(without_guard(left["nft"]))
    return [{key: value for key, value in one.items() if key != "Aliases"} for one in descriptions], left


def without_guard(lines):
    """Returns the lines without the table that the reference plugins do not create."""
    if GUARD not in lines:
        return lines
    start = lines.index(GUARD)
    return lines[:start] + lines[lines.index("}", start) + 1 :]
