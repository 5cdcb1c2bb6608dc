"""`podwire repair`, `check` and `lint` with sbr: deleted rules and tables are restored while the pod runs."""

import json

import pytest

from tests.support.netlist import NetworkList
from tests.support.publishing import disable_dad
from tests.support.repair_node import Node
from tests.support.sbr_network import rules, table

TABLES = (100, 101, "main")


@pytest.fixture(params=["bridge", "ptp"])
def node(request, bin_dir, host, store, tmp_path):
    """A node with a dual-stack network of an interface plugin and sbr."""
    disable_dad(host)
    ranges = [[{"subnet": "10.22.0.0/16"}], [{"subnet": "fd00:22::/64"}]]
    routes = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.99.0.0/16"}]
    ipam = {"type": "host-local", "dataDir": str(store), "ranges": ranges, "routes": routes}
    first = {"type": request.param, "ipam": ipam, **({"isGateway": True} if request.param == "bridge" else {})}
    return Node(host, NetworkList("net", "1.0.0", (first, {"type": "sbr"})), tmp_path / "cni", {})


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


def test_missing_interface(node, sandbox):
    """A pod without its interface is reported and not repaired."""
    node.add(sandbox)
    sandbox.ip("link", "delete", "eth0")
    outcome = node.tool("--json", "--settle", "0")
    (pod,) = json.loads(outcome.stdout)["attachments"]
    assert pod["state"] == "failed"
    assert "Cannot find network interface eth0: Link not found" in str(pod)
