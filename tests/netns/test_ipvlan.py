"""ipvlan: its modes, and ipvlan after a plugin that returns the master."""

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


PREV_RESULT = {
    "cniVersion": "1.0.0",
    "interfaces": [{"name": UPLINK}],
    "ips": [{"address": "192.0.2.9/24", "gateway": "192.0.2.1", "interface": 0}],
    "routes": [{"dst": "198.51.100.0/24"}],
    "dns": {"nameservers": ["192.0.2.1"]},
}


@pytest.mark.every_case
@pytest.mark.parametrize("has_ipam", [False, True])
def test_chained(ipvlan, sandbox, has_ipam):
    """The only interface of prevResult is the master; without IPAM its addresses and routes are taken over."""
    net = ipvlan.having(master=None, **({} if has_ipam else {"ipam": None}))
    result = net.add(sandbox, PREV_RESULT)
    assert [item["name"] for item in result["interfaces"]] == ["eth0"]
    if has_ipam:
        assert [ip["address"] for ip in result["ips"]] == ["10.25.0.2/24", "fd00:25::2/64"]
        assert (result.get("routes"), result.get("dns", {})) == (None, {})
    else:
        assert (result["ips"], result["routes"]) == (PREV_RESULT["ips"], PREV_RESULT["routes"])
        assert "198.51.100.0/24 via 192.0.2.1 dev eth0" in sandbox.ip("route")
    assert shown(sandbox, "eth0")["link_index"] == shown(net.host, UPLINK)["ifindex"]
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert (set(links(sandbox)), ipvlan.leases()) == ({"lo"}, {})
    two = {**PREV_RESULT, "interfaces": [{"name": UPLINK}, {"name": "wire0"}]}
    text = "chained master failure. PrevResult lacks a single named interface"
    assert net.run("ADD", sandbox, prev_result=two).error()["msg"] == text
