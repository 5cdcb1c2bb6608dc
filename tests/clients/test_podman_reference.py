"""podman with our plugins next to podman with the reference's: what it tells of containers, and what they leave.

One rule: whole states are compared; what differs by intent is named here, and no more.
"""

from contextlib import ExitStack

import pytest

from tests.clients.podman import PROGRAMS, installed
from tests.support.machine import machine

# Ours alone: it keeps all but the machine from 127.0.0.0/8 of an interface with route_localnet, and outlives pods.
GUARD = "table ip cni_hostport {"


@pytest.fixture
def machines(needs_programs, reference, bin_dir, tmp_path):
    """Podman on two machines: with our plugins, and with the reference's alone."""
    needs_programs(*PROGRAMS)
    with ExitStack() as stack:
        made = []
        for directory in (bin_dir, reference):
            scratch = tmp_path / str(len(made))
            scratch.mkdir()
            one = stack.enter_context(machine(scratch))
            one.install(directory)
            made.append(installed(one))
        yield made


def test_podman_cannot_tell_whose_plugins_it_runs(machines):
    """Podman tells the same of its containers' networks, and what they leave is the same, but for one table."""
    ours, reference = (story(podman) for podman in machines)
    assert ours == reference


def story(podman):
    """Has containers on the default network and on one that is removed; returns what podman told, and what is left."""
    mac = "--mac-address=02:00:00:00:00:07"
    told = [podman.start("one", "--publish=8080:80", mac, network="").networks["podman"]]
    podman("network", "create", "--ipv6", "--subnet=10.68.0.0/24", "--subnet=fd00:68::/64", "auto")
    fixed = ("--ip=10.68.0.9", "--publish=8081:80", "--publish=8081:80/udp", mac)
    told.append(podman.start("two", *fixed, network="auto").networks["auto"])
    podman.remove()
    podman("network", "rm", "auto")
    left = podman.machine.picture()
    assert left["processes"] == ["ps", "sleep"]
    for link in left["links"].values():
        del link["address"]
    left["nft"] = sorted(without_guard(left["nft"]))
    return [{key: value for key, value in one.items() if key != "Aliases"} for one in told], left


def without_guard(lines):
    """Leaves out the one table that the reference has not."""
    if GUARD not in lines:
        return lines
    start = lines.index(GUARD)
    return lines[:start] + lines[lines.index("}", start) + 1 :]
