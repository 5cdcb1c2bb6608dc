"""Pods of Multus with eth0 on a bridge (conf/20), and net1 on an interface of the node, followed by sbr (conf/87).

One rule: the client sends real packets to the pod's second address, from behind a router that eth0's network does not
know.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from tests.netns.test_sbr_traffic import CLIENTS, add_client, prepare
from tests.support import netstate
from tests.support.attaching import address, reaches
from tests.support.binaries import ROOT
from tests.support.machine import eventually
from tests.support.multus import Multus, run_as_multus
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList
from tests.support.sbr_network import captured, rules, state
from tests.support.tcp import serving, source_address

DEFINITION = json.loads((ROOT / "conf" / "87-macvlan-source-routing.conflist").read_text())
GATEWAYS = ("10.35.0.1/16", "fd00:10:35::1/64")
NODE = ("10.35.0.250/16", "fd00:10:35::250/64")
VLAN = 100
KINDS = [
    pytest.param({"type": "macvlan"}, id="macvlan"),
    pytest.param({"type": "macvlan", "hostAccess": True}, id="hostAccess"),
    pytest.param({"type": "ipvlan"}, id="ipvlan", marks=pytest.mark.needs("ipvlan")),
    pytest.param({"type": "vlan", "vlanId": VLAN}, id="vlan", marks=pytest.mark.needs("vlan_device")),
]


@dataclass(frozen=True)
class Node:
    """A node and a pod; `default` attaches eth0, `multus` net1, whose network has the client behind a router."""

    host: Namespace
    pod: Namespace
    client: Namespace
    default: NetworkList
    multus: Multus

    def add_default(self):
        """Attaches eth0."""
        return self.default.add(run_as_multus(self.host, self.pod, self.pod.path, "eth0"))

    def delete_default(self, result, netns=None):
        """Detaches eth0."""
        netns = self.pod.path if netns is None else netns
        self.default.delete(run_as_multus(self.host, self.pod, netns, "eth0"), result)

    def leases(self):
        """Returns the reserved addresses of both networks."""
        stores = (self.multus.cache.parent / "leases").glob("*/*")
        return {path.name for path in stores if path.name[0].isdigit() or ":" in path.name}


@pytest.fixture
def node(bin_dir, host, sandbox, new_sandbox, tmp_path, request):
    """A node whose eth0 is connected with a router; net1 has the keys of the test's parameter `keys`."""
    keys = request.getfixturevalue("keys")
    router, client = new_sandbox(), new_sandbox()
    prepare(host, sandbox, router, client)
    add_client(router, client)
    host.ip("link", "add", "eth0", "type", "veth", "peer", "name", "pods", "netns", router.name)
    router.ip("link", "set", "pods", "up")
    wire = "pods"
    if keys["type"] == "vlan":
        wire = "tagged"
        router.ip("link", "add", "link", "pods", "name", wire, "type", "vlan", "id", str(VLAN))
        router.ip("link", "set", wire, "up")
    for ip in GATEWAYS:
        router.ip("address", "add", ip, "dev", wire, "nodad")
    for ip in NODE:
        host.ip("address", "add", ip, "dev", "eth0", "nodad")
    host.ip("link", "set", "eth0", "up")
    definition = {**DEFINITION, "plugins": [{**DEFINITION["plugins"][0], **keys}, DEFINITION["plugins"][1]]}
    multus = Multus(host, definition, tmp_path)
    default = NetworkList.load(ROOT / "conf" / "20-dual-stack.conflist")
    default.plugins[0]["ipam"]["dataDir"] = str(tmp_path / "leases")
    return Node(host, sandbox, client, default, multus)


@pytest.mark.parametrize("keys", KINDS)
def test_replies_leave_by_the_interface_of_the_request(node, keys):
    """By both families replies to the client leave by net1, the pod's own packets by eth0; DELs restore the state."""
    pod = node.pod
    node.delete_default(node.add_default())  # leaves the bridge
    empty = netstate.state(node.host, netfilter=True)
    eth0 = node.add_default()
    before = netstate.state(node.host, netfilter=True), netstate.state(pod), state(pod)
    result = node.multus.add(pod)
    for number, client in enumerate(CLIENTS.values()):
        ip = address(result, number)
        with captured(pod, "eth0", "net1", source=ip, destination=client) as interfaces:
            assert reaches(node.client, ip)
        assert interfaces == {"net1"}
        with serving(pod, ip):
            assert source_address(node.client, ip) == client
        with captured(pod, "eth0", "net1", source=address(eth0, number), destination=client) as interfaces:
            reaches(pod, client, within_s=1)
        assert interfaces == {"eth0"}
        if "hostAccess" in keys:
            assert reaches(node.host, ip)
    node.multus.check(pod, result)
    node.default.check(run_as_multus(node.host, pod, pod.path, "eth0"), eth0)
    node.multus.delete(pod)
    assert (netstate.state(node.host, netfilter=True), netstate.state(pod), state(pod)) == before
    node.delete_default(eth0)
    assert netstate.state(node.host, netfilter=True) == empty
    assert (rules(pod), node.leases()) == ([], set())


@pytest.mark.long
@pytest.mark.parametrize("keys", KINDS)
def test_without_sbr_replies_leave_by_eth0(node, keys):
    """Without sbr replies to the client leave by the default route of eth0, and are lost."""
    pod = node.pod
    node.add_default()
    result = NetworkList("net", "1.0.0", node.multus.list.plugins[:1]).add(run_as_multus(node.host, pod, pod.path))
    for number, client in enumerate(CLIENTS.values()):
        ip = address(result, number)
        with captured(pod, "eth0", "net1", source=ip, destination=client) as interfaces:
            assert not reaches(node.client, ip, within_s=1)
        assert interfaces == {"eth0"}


@pytest.mark.parametrize("netns", ["", "gone"])
@pytest.mark.parametrize("keys", KINDS)
def test_pod_without_a_namespace_is_deleted(node, keys, netns):
    """After the node has lost the pod's namespace, DEL of both networks succeeds and leaves nothing."""
    node.delete_default(node.add_default())
    empty = netstate.state(node.host, netfilter=True)
    eth0 = node.add_default()
    node.multus.add(node.pod)
    node.pod.delete()
    path = node.pod.path if netns else ""
    node.multus.delete(node.pod, path)
    node.delete_default(eth0, path)
    # Without CNI_NETNS, the kernel deletes the interfaces with the namespace, some time after the last use of it.
    assert eventually(lambda: netstate.state(node.host, netfilter=True) == empty)
    assert node.leases() == set()


@pytest.mark.long
@pytest.mark.parametrize("keys", KINDS)
def test_routes_of_the_definition_are_checked_behind_sbr(node, keys):
    """A definition with routes passes CHECK although sbr moves them to another table, and fails if one is missing."""
    plugin = node.multus.list.plugins[0]
    plugin["ipam"]["routes"] = [{"dst": "198.51.100.0/24"}, {"dst": "2001:db8:1::/48"}]
    result = node.multus.add(node.pod)
    node.multus.check(node.pod, result)
    (rule,) = [line for line in rules(node.pod) if f"from {address(result)} " in line]
    table = rule.split()[-1]
    node.pod.ip("route", "del", "198.51.100.0/24", "table", table)
    error = run_as_multus(node.host, node.pod, node.pod.path)(
        "sbr", "CHECK", node.multus.list.request(node.multus.list.plugins[1], result)
    ).error()
    assert "198.51.100.0/24" in error["msg"]
