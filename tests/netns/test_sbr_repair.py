"""`podwire repair` of pods with sbr: deleted rules, tables and interfaces are restored while the pod runs."""

import pytest

from tests.support import uplink
from tests.support.attaching import address, reaches
from tests.support.netlist import NetworkList
from tests.support.publishing import disable_dad
from tests.support.repair_node import Node
from tests.support.sbr_network import rules, table

TABLES = (100, 101, "main")
NODE, NEIGHBOUR = ([item.partition("/")[0] for item in addresses] for addresses in (uplink.HOST, uplink.NEIGHBOUR))


@pytest.fixture
def new_node(bin_dir, host, store, tmp_path):
    """A function that returns a node with a dual-stack network of an interface plugin and sbr."""

    def create(ranges, **keys):
        routes = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.99.0.0/16"}]
        ipam = {"type": "host-local", "dataDir": str(store), "ranges": ranges, "routes": routes}
        return Node(host, NetworkList("net", "1.0.0", ({**keys, "ipam": ipam}, {"type": "sbr"})), tmp_path / "cni", {})

    return create


@pytest.fixture(params=[{"type": "bridge", "isGateway": True}, {"type": "ptp"}], ids=["bridge", "ptp"])
def node(request, new_node, host):
    """A node with a network of bridge or ptp."""
    disable_dad(host)
    return new_node(uplink.ranges("10.22.0.0/16", "fd00:22::/64"), **request.param)


@pytest.fixture
def macvlan_node(new_node, host, neighbour, host_access):
    """A node with addresses on its uplink, and a network of macvlan on it."""
    uplink.give_addresses(host)
    return new_node(uplink.ranges(), type="macvlan", master=uplink.UPLINK, hostAccess=host_access)


@pytest.mark.parametrize(
    "commands",
    [
        ("rule delete from 10.22.0.2",),
        ("rule delete from 10.22.0.2", "-6 rule delete from fd00:22::2"),
        ("route delete default table 100",),
        ("-6 route delete default table 101",),
        ("route delete 10.99.0.0/16 table 100",),
        ("-6 route flush table 101",),
    ],
)
def test_deleted_rules_and_routes_are_restored(node, sandbox, commands):
    """Repair restores deleted rules and default routes, in the same tables, and then finds nothing to repair."""
    result = node.add(sandbox)
    before = [table(sandbox, number) for number in TABLES]
    for command in commands:
        sandbox.ip(*command.split())
    outcome = node.tool("--dry-run")
    assert outcome.status == 1
    assert "sbr: restore the source rules: Expected " in outcome.stdout.decode()
    assert node.repair() == {sandbox.name: "repaired"}
    assert [line.partition(": ")[2] for line in rules(sandbox)] == [
        "from 10.22.0.2 lookup 100",
        "from fd00:22::2 lookup 101",
    ]
    if "flush" not in str(commands):
        assert [table(sandbox, number) for number in TABLES] == before
    node.check(sandbox, result)
    assert node.repair() == {sandbox.name: "fine"}
    node.delete(sandbox, result)
    assert rules(sandbox) == []


def test_interface_that_was_down(node, sandbox):
    """After the interface was down, repair restores the IPv4 routes and moves the kernel's new route again."""
    result = node.add(sandbox)
    before = table(sandbox, 100)
    sandbox.ip("link", "set", "eth0", "down")
    assert table(sandbox, 100) == []
    sandbox.ip("link", "set", "eth0", "up")
    assert any(line.startswith("10.22.0.0/16") for line in table(sandbox, "main"))
    assert node.repair() == {sandbox.name: "repaired"}
    assert table(sandbox, "main") == ["fe80::/64 dev eth0 metric 256"]
    if node.chain.plugins[0]["type"] == "bridge":
        assert table(sandbox, 100) == before
    assert [line.split()[-1] for line in rules(sandbox)] == ["100", "101"]
    assert node.repair() == {sandbox.name: "fine"}
    node.delete(sandbox, result)


@pytest.mark.parametrize("host_access", [False, True])
def test_deleted_interface_is_restored(macvlan_node, host, sandbox, host_access):
    """Repair creates a deleted interface again, with the same rules and tables, and then finds nothing to repair."""
    result = macvlan_node.add(sandbox)
    assert macvlan_node.repair() == {sandbox.name: "fine"}
    before = rules(sandbox), [table(sandbox, number) for number in TABLES]
    sandbox.ip("link", "del", "eth0")
    assert macvlan_node.repair() == {sandbox.name: "repaired"}
    assert (rules(sandbox), [table(sandbox, number) for number in TABLES]) == before
    macvlan_node.check(sandbox, result)
    assert macvlan_node.repair() == {sandbox.name: "fine"}
    for number, neighbour in enumerate(NEIGHBOUR):
        assert reaches(sandbox, neighbour, options=("-I", address(result, number)))
        assert not host_access or reaches(host, address(result, number))
    macvlan_node.delete(sandbox, result)
    assert rules(sandbox) == []


@pytest.mark.parametrize("host_access", [True])
@pytest.mark.parametrize("number", [0, 1])
def test_route_to_the_node_is_restored(macvlan_node, host, sandbox, host_access, number):
    """Repair restores the pod's route to its node, which is in sbr's table, for either IP version."""
    result = macvlan_node.add(sandbox)
    sandbox.ip(("-4", "-6")[number], "route", "del", NODE[number], "table", str(100 + number))
    assert macvlan_node.repair() == {sandbox.name: "repaired"}
    macvlan_node.check(sandbox, result)
    assert reaches(host, address(result, number))
