"""ipvlan: links, modes, results, chains, refusals and traffic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.attaching import address, reaches
from tests.support.netstate import links, shown, state


@pytest.mark.needs("ipvlan")
@pytest.mark.parametrize("mode", [None, "l2", "l3", "l3s"])
def test_modes(ipvlan, new_sandbox, mode):
    """Two pods on one master reach each other; mode, MAC address and result are right; DEL restores the state."""
    net, one, two = ipvlan.having(mode=mode), new_sandbox(), new_sandbox()
    before = state(net.host), state(one)
    first, second = net.add(one), net.add(two)
    link = shown(one, "eth0")
    assert link["linkinfo"]["info_data"]["mode"] == (mode or "l2")
    assert link["address"] == shown(net.host, "up0")["address"]
    assert first["interfaces"] == [{"name": "eth0", "mac": link["address"], "sandbox": one.path}]
    assert [ip["interface"] for ip in first["ips"]] == [0, 0]
    for number in (0, 1):
        assert reaches(one, address(second, number))
    net.check(one, first)
    other = "l3" if (mode or "l2") == "l2" else "l2"
    text = f"Container IPVlan mode {mode or 'l2'} does not match expected value: {other}"
    assert net.having(mode=other).run("CHECK", one, prev_result=first).error()["msg"] == text
    for pod, result in ((one, first), (two, second)):
        net.delete(pod, result)
    assert (state(net.host), state(one)) == before
    assert net.leases() == {}


@pytest.mark.needs("ipvlan")
def test_master_of_the_default_route(ipvlan, sandbox):
    """Without `master` the default route's interface is used; CHECK and DEL succeed without a default route."""
    net = ipvlan.having(master=None)
    assert net.run("ADD", sandbox).error()["msg"] == "no default route interface found"
    net.host.ip("address", "add", "10.25.0.250/24", "dev", "up0")
    net.host.ip("route", "add", "default", "via", "10.25.0.1")
    result = net.add(sandbox)
    net.host.ip("route", "del", "default")
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert net.leases() == {}


@pytest.mark.needs("ipvlan")
def test_chained(ipvlan, sandbox):
    """The only interface of prevResult is the master; its addresses and routes are taken over without IPAM."""
    prev = {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "up0"}],
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
    two = {**prev, "interfaces": [{"name": "up0"}, {"name": "wire0"}]}
    text = "chained master failure. PrevResult lacks a single named interface"
    assert net.run("ADD", sandbox, prev_result=two).error()["msg"] == text


@pytest.mark.needs("ipvlan", "macvlan")
def test_master_with_macvlan(ipvlan, sandbox):
    """A master with a macvlan interface is refused with the reason, and nothing changes."""
    ipvlan.host.ip("link", "add", "link", "up0", "name", "m0", "type", "macvlan")
    error = ipvlan.run("ADD", sandbox).error()
    assert error["msg"] == "failed to create ipvlan: device or resource busy"
    assert "macvlan" in error["details"]
    assert (set(links(sandbox)), ipvlan.leases()) == ({"lo"}, {})


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "mode": ({"mode": "l4"}, 'unknown ipvlan mode: "l4"'),
    "unknown master": ({"master": "zz"}, 'failed to lookup master "zz": Link not found'),
    "MTU": ({"mtu": 1501}, "invalid MTU 1501, must be [0, master MTU(1500)]"),
    "ipam without type": ({"ipam": {}}, "no plugin name provided"),
    "loopback": ({"master": "lo"}, 'master "lo" is the loopback interface'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(ipvlan, sandbox, case):
    """Wrong input is refused before anything changes."""
    keys, text = REFUSED[case]
    before = state(ipvlan.host), state(sandbox)
    assert ipvlan.having(**keys).run("ADD", sandbox).error()["msg"] == text
    assert (state(ipvlan.host), state(sandbox), ipvlan.leases()) == (*before, {})


def test_del_of_nothing(ipvlan, sandbox):
    """DEL succeeds without interface, namespace path, master or default route, with an invalid configuration."""
    ipvlan.host.ip("link", "del", "up0")
    for pod in (sandbox, "", "/run/netns/missing"):
        ipvlan.having(mode="l4", master=None).delete(pod)


@pytest.mark.needs("ipvlan")
@pytest.mark.parametrize(("created_by", "deleted_by"), [("podwire", "reference"), ("reference", "podwire")])
def test_pod_is_checked_and_deleted_by_the_other(ipvlan, sandbox, bin_dir, reference, created_by, deleted_by):
    """A pod of one implementation passes CHECK and DEL of the other."""
    net = ipvlan
    directories = {"podwire": bin_dir, "reference": reference}
    creator, deleter = (
        replace(net, bin_dir=directories[kind], path=str(directories[kind])) for kind in (created_by, deleted_by)
    )
    result = creator.add(sandbox)
    deleter.check(sandbox, result)
    deleter.delete(sandbox, result)
    creator.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo"}
    assert not [name for name, owner in net.leases().items() if owner == sandbox.name]


FAILURES: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "IPAM fails": (
        {"ips": [{"address": "10.25.0.9/24"}], "body": "[ $CNI_COMMAND != ADD ] || exit 1"},
        "netplugin failed",
        ["ADD", "DEL"],
    ),
    "bad route": (
        {"ips": [{"address": "10.25.0.9/24"}], "routes": [{"dst": "192.0.2.0/24", "gw": "203.0.113.1"}]},
        "failed to add route '192.0.2.0/24 via 203.0.113.1",
        ["ADD", "DEL"],
    ),
}


@pytest.mark.needs("ipvlan")
@pytest.mark.parametrize("case", FAILURES)
def test_failed_add_leaves_nothing(ipvlan, scripted_network, sandbox, ipam_calls, case):
    """If a step after the creation fails, ADD deletes the interface and releases the addresses."""
    keys, text, calls = FAILURES[case]
    net = scripted_network(**keys).having(bridge=None, isDefaultGateway=None, type="ipvlan", master="up0")
    before = state(net.host), state(sandbox)
    assert net.run("ADD", sandbox).error()["msg"].startswith(text)
    assert ipam_calls() == calls
    assert (state(net.host), state(sandbox)) == before


@pytest.mark.needs("ipvlan")
def test_name_of_a_host_interface(ipvlan, sandbox):
    """The interface may have the name of an interface of the host, also of the master."""
    net = ipvlan
    before = state(net.host), state(sandbox)
    result = net.run("ADD", sandbox, ifname="up0").result()
    assert set(links(sandbox)) == {"lo", "up0"}
    net.check(sandbox, result, ifname="up0")
    net.delete(sandbox, result, ifname="up0")
    assert (state(net.host), state(sandbox)) == before
