"""ipvlan: its modes, and ipvlan after a plugin that returns the master."""

from __future__ import annotations

import pytest

from tests.support.attaching import address, reaches
from tests.support.netstate import links, shown, state
from tests.support.uplink import UPLINK

pytestmark = pytest.mark.needs("ipvlan")


@pytest.mark.parametrize("mode", [None, "l2", "l3", "l3s"])
def test_modes(ipvlan, new_sandbox, mode):
    """Two pods on one master reach each other; mode, MAC address and result are right; DEL restores the state."""
    net, one, two = ipvlan.having(mode=mode), new_sandbox(), new_sandbox()
    before = state(net.host), state(one)
    first, second = net.add(one), net.add(two)
    link = shown(one, "eth0")
    assert link["linkinfo"]["info_data"]["mode"] == (mode or "l2")
    assert link["address"] == shown(net.host, UPLINK)["address"]
    assert first["interfaces"] == [{"name": "eth0", "mac": link["address"], "sandbox": one.path}]
    assert [ip["interface"] for ip in first["ips"]] == [0, 0]
    for number in (0, 1):
        assert reaches(one, address(second, number))
    net.check(one, first)
    for pod, result in ((one, first), (two, second)):
        net.delete(pod, result)
    assert (state(net.host), state(one)) == before
    assert net.leases() == {}


def test_chained(ipvlan, sandbox):
    """The only interface of prevResult is the master; its addresses and routes are taken over without IPAM."""
    prev = {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": UPLINK}],
        "ips": [{"address": "10.25.0.9/24", "gateway": "10.25.0.1", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    net = ipvlan.having(master=None, ipam=None)
    result = net.run("ADD", sandbox, prev_result=prev).result()
    assert [item["name"] for item in result["interfaces"]] == ["eth0"]
    assert (result["ips"], result["routes"]) == (prev["ips"], prev["routes"])
    assert "default via 10.25.0.1 dev eth0" in sandbox.ip("route")
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo"}
    two = {**prev, "interfaces": [{"name": UPLINK}, {"name": "wire0"}]}
    text = "chained master failure. PrevResult lacks a single named interface"
    assert net.run("ADD", sandbox, prev_result=two).error()["msg"] == text


def test_chained_ipvlan_with_ipam(ipvlan, sandbox):
    """A chained ipvlan with `ipam` uses the interface of prevResult as its master, but IPAM's addresses."""
    prev = {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": UPLINK}],
        "ips": [{"address": "192.0.2.9/24", "interface": 0}],
        "routes": [{"dst": "198.51.100.0/24"}],
        "dns": {"nameservers": ["192.0.2.1"]},
    }
    net = ipvlan.having(master=None)
    result = net.run("ADD", sandbox, prev_result=prev).result()
    assert [ip["address"] for ip in result["ips"]] == ["10.25.0.2/24", "fd00:25::2/64"]
    assert (result.get("routes"), result.get("dns", {})) == (None, {})
    assert shown(sandbox, "eth0")["link_index"] == shown(net.host, UPLINK)["ifindex"]
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert (set(links(sandbox)), net.leases()) == ({"lo"}, {})
