"""macvlan followed by sbr: `podwire repair` restores what sbr moved to its tables, with and without hostAccess."""

from __future__ import annotations

import pytest

from tests.support import uplink
from tests.support.attaching import address, reaches
from tests.support.netlist import NetworkList
from tests.support.repair_node import Node
from tests.support.sbr_network import rules, table

NODE = [item.partition("/")[0] for item in uplink.HOST]
NEIGHBOUR = [item.partition("/")[0] for item in uplink.NEIGHBOUR]


@pytest.fixture
def node(bin_dir, host, neighbour, store, tmp_path, host_access):
    """A node with addresses on its uplink, and a dual-stack network of macvlan and sbr."""
    for ip in uplink.HOST:
        host.ip("address", "add", ip, "dev", uplink.UPLINK)
    routes = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.99.0.0/16"}]
    ipam = {"type": "host-local", "dataDir": str(store), "ranges": uplink.ranges(), "routes": routes}
    first = {"type": "macvlan", "master": uplink.UPLINK, "ipam": ipam, "hostAccess": host_access}
    return Node(host, NetworkList("net", "1.0.0", (first, {"type": "sbr"})), tmp_path / "cni", {})


def routing(pod):
    """Returns rules and tables of a pod."""
    return rules(pod), [table(pod, number) for number in (100, 101, "main")]


@pytest.mark.parametrize("host_access", [False, True])
def test_deleted_interface_is_restored(node, host, sandbox, host_access):
    """Repair creates a deleted interface again, with the same rules and tables, and then finds nothing to repair."""
    result = node.add(sandbox)
    assert node.repair() == {sandbox.name: "fine"}
    before = routing(sandbox)
    sandbox.ip("link", "del", "eth0")
    assert node.repair() == {sandbox.name: "repaired"}
    assert routing(sandbox) == before
    node.check(sandbox, result)
    assert node.repair() == {sandbox.name: "fine"}
    for number, neighbour in enumerate(NEIGHBOUR):
        assert reaches(sandbox, neighbour, options=("-I", address(result, number)))
        assert not host_access or reaches(host, address(result, number))
    node.delete(sandbox, result)
    assert rules(sandbox) == []


@pytest.mark.parametrize("host_access", [True])
@pytest.mark.parametrize("number", [0, 1])
def test_route_to_the_node_is_restored(node, host, sandbox, host_access, number):
    """Repair restores the pod's route to its node, which is in sbr's table, for either IP version."""
    result = node.add(sandbox)
    version = ("-4", "-6")[number]
    sandbox.ip(version, "route", "del", NODE[number], "table", str(100 + number))
    assert node.repair() == {sandbox.name: "repaired"}
    node.check(sandbox, result)
    assert reaches(host, address(result, number))
    node.delete(sandbox, result)
    assert rules(sandbox) == []
