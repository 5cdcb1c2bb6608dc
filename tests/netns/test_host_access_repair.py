"""`podwire repair` restores `hostAccess`, and interfaces that the kernel deleted with their master."""

import pytest

from tests.netns.conftest import IPVLAN, IPVLAN_L3, MACVLAN
from tests.support import uplink
from tests.support.attaching import address, reaches
from tests.support.netlist import NetworkList
from tests.support.netstate import shown, state
from tests.support.repair_node import Node
from tests.support.uplink import UPLINK, WIRE

NODE = [item.partition("/")[0] for item in uplink.HOST]


@pytest.fixture(params=[MACVLAN, IPVLAN, IPVLAN_L3[0]])
def node(bin_dir, host, neighbour, store, tmp_path, request):
    """A node with addresses on the master, and a dual-stack network with host access."""
    uplink.give_addresses(host)
    uplink.route_pods(neighbour)
    ipam = {"type": "host-local", "dataDir": str(store), "ranges": uplink.ranges()}
    plugin = {**uplink.plugin(request.param, ipam), "hostAccess": True}
    return Node(host, NetworkList("net", "1.0.0", (plugin,)), tmp_path / "cni", {})


@pytest.mark.parametrize(
    "commands",
    [
        ("host link delete {link}",),
        ("host link set {link} down",),
        ("host route flush proto 112", "host -6 route flush proto 112"),
        ("pod neighbour flush dev eth0 nud permanent",),
        ("pod -6 route delete fd00:25::250",),
    ],
)
def test_host_access_is_restored(node, sandbox, commands):
    """Repair restores the host's access, and then finds nothing to repair."""
    result = node.add(sandbox)
    before = state(node.host), state(sandbox)
    name = uplink.host_link(node.host)
    for command in commands:
        where, *words = command.format(link=name).split()
        (node.host if where == "host" else sandbox).ip(*words)
    outcome = node.tool("--dry-run")
    assert outcome.status == 1
    assert f"{node.chain.plugins[0]['type']}: restore the host's access: " in outcome.stdout.decode()
    assert node.repair() == {sandbox.name: "repaired"}
    node.check(sandbox, result)
    for number in (0, 1):
        assert reaches(sandbox, NODE[number])
        assert reaches(node.host, address(result, number))
    assert (state(node.host), state(sandbox)) == before
    assert node.repair() == {sandbox.name: "fine"}
    node.delete(sandbox, result)


@pytest.mark.long
def test_interface_of_a_returned_master_is_created_again(node, sandbox, neighbour):
    """When a deleted master is back, repair creates the pod's interface with its MAC address and addresses."""
    result = node.add(sandbox)
    before = state(node.host), state(sandbox)
    mac = shown(node.host, UPLINK)["address"]
    node.host.ip("link", "delete", UPLINK)
    assert f'failed to lookup master \\"{UPLINK}\\": Link not found' in node.tool("--json").stdout.decode()
    uplink.connect(node.host, neighbour)
    node.host.ip("link", "set", UPLINK, "address", mac)
    uplink.give_addresses(node.host)
    uplink.route_pods(neighbour)
    assert node.repair() == {sandbox.name: "repaired"}
    node.check(sandbox, result)
    assert shown(sandbox, "eth0")["address"] == result["interfaces"][0]["mac"]
    for number in (0, 1):
        assert reaches(sandbox, NODE[number])
        assert reaches(node.host, address(result, number))
        assert reaches(neighbour, address(result, number))
    next_hop = NODE[0] if node.chain.plugins[0].get("mode") == "l3" else address(result)
    assert result["interfaces"][0]["mac"] in neighbour.ip("neighbour", "show", next_hop, "dev", WIRE)
    assert (without_host_link(state(node.host)), state(sandbox)) == (without_host_link(before[0]), before[1])
    node.delete(sandbox, result)


def without_host_link(host_state):
    """Returns a host's state without the host link, whose name has the new master's ifindex, and its routes."""
    kept = {name: link for name, link in host_state["links"].items() if not name.startswith("pwha")}
    routes = {
        family: [item for item in items if not item.get("dev", "").startswith("pwha")]
        for family, items in host_state["routes"].items()
    }
    return {**host_state, "links": kept, "routes": routes}


VIP = ("10.25.0.99", "fd00:25::99")


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 1])
def test_address_that_the_node_lost_is_reached_elsewhere(node, sandbox, neighbour, number):
    """When an address of the node moves to another machine, repair deletes the pod's stale route."""
    prefix = (24, 64)[number]
    result = node.add(sandbox)
    before = state(sandbox)
    node.host.ip("address", "add", f"{VIP[number]}/{prefix}", "dev", UPLINK)
    assert node.repair() == {sandbox.name: "repaired"}
    assert reaches(sandbox, VIP[number])
    node.host.ip("address", "del", f"{VIP[number]}/{prefix}", "dev", UPLINK)
    neighbour.ip("address", "add", f"{VIP[number]}/{prefix}", "dev", WIRE)
    assert f"route to {VIP[number]} is stale" in node.tool("--dry-run").stdout.decode()
    assert node.repair() == {sandbox.name: "repaired"}
    assert reaches(sandbox, VIP[number])
    assert state(sandbox) == before
    assert VIP[number] not in sandbox.ip("neighbour", "show", "nud", "permanent")
    node.check(sandbox, result)
    assert node.repair() == {sandbox.name: "fine"}
