"""Packets of pods with VRFs: isolation of equal addresses, sources, and lists with other plugins."""

import pytest

from tests.support.attaching import Network, reaches
from tests.support.netlist import NetworkList
from tests.support.repair_node import Node
from tests.support.vrf_network import connect, list_routes, master, vrfs

pytestmark = pytest.mark.needs("vrf")


@pytest.fixture
def overlapping(host, sandbox, new_sandbox, blue):
    """A pod with eth0 in `blue` and net1 in `red`, with the same addresses, each connected to another machine."""
    other = new_sandbox()
    for machine, ifname, vrf in ((host, "eth0", "blue"), (other, "net1", "red")):
        machine.ip("link", "set", "lo", "up")
        blue.having(vrfname=vrf).add(sandbox, connect(machine, sandbox, ifname), ifname=ifname)
        # Only this machine has these addresses.
        number = 8 if machine is host else 9
        machine.ip("address", "add", f"192.0.2.{number}/32", "dev", "lo")
        machine.ip("address", "add", f"2001:db8::{number}/128", "dev", "lo", "nodad")
    return sandbox


@pytest.mark.parametrize("template", ["192.0.2.{}", "2001:db8::{}"])
def test_same_addresses_in_two_vrfs(overlapping, template):
    """Each VRF reaches the machine at its interface, and not the other one; a socket without VRF reaches neither."""
    for vrf, number, other in (("blue", 8, 9), ("red", 9, 8)):
        assert reaches(overlapping, template.format(number), options=("-I", vrf))
        assert not reaches(overlapping, template.format(other), options=("-I", vrf), within_s=1)
    assert not reaches(overlapping, template.format(8), within_s=1)


@pytest.mark.parametrize("kind", ["bridge", "ptp"])
def test_chain(bin_dir, host, sandbox, store, blue, kind):
    """After bridge and ptp the pod reaches its gateway in the VRF, all CHECKs succeed, and DEL leaves nothing."""
    ranges = [[{"subnet": "10.23.0.0/24"}], [{"subnet": "fd00:23::/64"}]]
    routes = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    ipam = {"type": "host-local", "ranges": ranges, "routes": routes, "dataDir": str(store)}
    keys = {"bridge": "cni0", "isGateway": True} if kind == "bridge" else {}
    network = Network(host, {"cniVersion": "1.0.0", "name": "net", "type": kind, **keys, "ipam": ipam})
    for _ in range(2):
        result = network.add(sandbox)
        blue.add(sandbox, result)
        for target in ("10.23.0.1", "fd00:23::1"):
            assert reaches(sandbox, target, options=("-I", "blue"))
            assert not reaches(sandbox, target, within_s=1)
        for family in (4, 6):
            assert list_routes(sandbox, "main", family) == []
            assert any(line.startswith("default via") for line in list_routes(sandbox, 1, family))
        network.check(sandbox, result)
        blue.check(sandbox, result)
        blue.delete(sandbox, result)
        network.delete(sandbox, result)
        assert vrfs(sandbox) == {}
    assert network.leases() == {}


@pytest.fixture
def prev_result(host, sandbox):
    """The result of an interface plugin with default routes."""
    return connect(host, sandbox)


@pytest.mark.parametrize("created_by", ["podwire", "reference"])
def test_each_plugin_deletes_the_others_attachment(reference, blue, sandbox, prev_result, created_by):
    """Each plugin checks and deletes what the other attached; the reference plugin's VRF stays, as it has no mark."""
    creator, other = (blue, blue.with_plugin(reference))[:: 1 if created_by == "podwire" else -1]
    creator.add(sandbox, prev_result)
    other.check(sandbox, prev_result)
    other.delete(sandbox, prev_result)
    assert (vrfs(sandbox), master(sandbox)) == ({} if created_by == "podwire" else {"blue": 1}, "")


def test_same_state_as_the_reference_plugin(reference, blue, host, new_sandbox):
    """The VRF and the connected routes are those of the reference plugin, whose version 1.1.1 loses all others."""
    states = []
    for network in (blue.with_plugin(reference), blue):
        pod = new_sandbox()
        network.add(pod, connect(host, pod, keep_ipv6=True, has_routes=False))
        tables = [list_routes(pod, table, family) for table in (1, "main") for family in (4, 6)]
        states.append((vrfs(pod), master(pod), tables))
        host.ip("link", "delete", f"h1{pod.name[-8:]}")
    assert states[0] == states[1]


@pytest.fixture
def node(bin_dir, host, store, tmp_path):
    """A node with a dual-stack network of bridge and vrf."""
    ranges = [[{"subnet": "10.22.0.0/16"}], [{"subnet": "fd00:22::/64"}]]
    ipam = {"type": "host-local", "dataDir": str(store), "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
    plugins = {"type": "bridge", "ipam": ipam, "isGateway": True}, {"type": "vrf", "vrfname": "blue"}
    return Node(host, NetworkList("net", "1.0.0", plugins), tmp_path / "cni", {})


def test_repair(node, sandbox):
    """`podwire repair` adds the rules that a flush removed, and packets pass again."""
    result = node.add(sandbox)
    for family in ("-4", "-6"):
        sandbox.ip(family, "rule", "delete", "pref", "1000")
    outcome = node.tool("--dry-run")
    assert outcome.status == 1
    assert "vrf: restore the routing rules of VRFs: the IPv4 routing rule" in outcome.stdout.decode()
    assert node.repair() == {sandbox.name: "repaired"}
    node.check(sandbox, result)
    assert node.repair() == {sandbox.name: "fine"}
    assert reaches(sandbox, "10.22.0.1", options=("-I", "blue"))
    node.delete(sandbox, result)
    assert vrfs(sandbox) == {}
