"""Pods of Multus with eth0 on a bridge (conf/20), and net1 on an interface of the node, followed by sbr (conf/87).

One rule: the client sends real packets to the pod's second address, from behind a router that eth0's network does not
know.
"""

from __future__ import annotations

import json

import pytest

from tests.netns.test_sbr_traffic import CLIENTS, add_client, prepare
from tests.support.attaching import BOOKKEEPING, address, reaches
from tests.support.binaries import ROOT
from tests.support.multus import Multus, run_as_multus
from tests.support.netlist import NetworkList
from tests.support.netstate import state
from tests.support.sbr_network import captured, rules
from tests.support.sbr_network import state as routing
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


@pytest.fixture
def client(bin_dir, host, sandbox, new_sandbox, keys):
    """A machine behind the router to which the node's eth0 is connected, in vlan's case with a tag."""
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
    for namespace, name, addresses in ((router, wire, GATEWAYS), (host, "eth0", NODE)):
        for ip in addresses:
            namespace.ip("address", "add", ip, "dev", name, "nodad")
    host.ip("link", "set", "eth0", "up")
    return client


@pytest.mark.parametrize("keys", KINDS)
def test_replies_leave_by_the_interface_of_the_request(client, host, sandbox, tmp_path, keys):
    """By both families replies to the client leave by net1, the pod's own packets by eth0; DELs restore the state."""
    plugins = [{**DEFINITION["plugins"][0], **keys}, DEFINITION["plugins"][1]]
    multus = Multus(host, {**DEFINITION, "plugins": plugins}, tmp_path)
    default, run = (
        NetworkList.load(ROOT / "conf" / "20-dual-stack.conflist"),
        run_as_multus(host, sandbox, ifname="eth0"),
    )
    default.plugins[0]["ipam"]["dataDir"] = str(tmp_path / "leases")
    default.delete(run, default.add(run))  # leaves the bridge
    empty = state(host, netfilter=True)
    eth0 = default.add(run)
    before = state(host, netfilter=True), state(sandbox), routing(sandbox)
    result = multus.add(sandbox)
    for number, caller in enumerate(CLIENTS.values()):
        ip = address(result, number)
        with captured(sandbox, "eth0", "net1", source=ip, destination=caller) as interfaces:
            assert reaches(client, ip)
        assert interfaces == {"net1"}
        with serving(sandbox, ip):
            assert source_address(client, ip) == caller
        with captured(sandbox, "eth0", "net1", source=address(eth0, number), destination=caller) as interfaces:
            reaches(sandbox, caller, within_s=1)
        assert interfaces == {"eth0"}
        assert "hostAccess" not in keys or reaches(host, ip)
    multus.check(sandbox, result)
    default.check(run, eth0)
    multus.delete(sandbox)
    assert (state(host, netfilter=True), state(sandbox), routing(sandbox)) == before
    default.delete(run, eth0)
    assert (state(host, netfilter=True), rules(sandbox)) == (empty, [])
    assert {path.name for path in tmp_path.glob("leases/*/*")} <= set(BOOKKEEPING)
