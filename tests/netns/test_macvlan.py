"""macvlan: modes, masters and traffic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import uplink
from tests.support.attaching import address, reaches
from tests.support.netstate import links, shown, state
from tests.support.uplink import UPLINK

pytestmark = pytest.mark.needs("macvlan")

MAC = "02:00:00:00:00:01"


def info(sandbox, name="eth0"):
    """Returns the attributes of the macvlan interface as `ip -d link` shows them."""
    item = shown(sandbox, name)
    assert item["linkinfo"]["info_kind"] == "macvlan"
    return item["linkinfo"]["info_data"]


@pytest.mark.parametrize("second_by", ["podwire", "reference"])
def test_pods_reach_each_other(macvlan, new_sandbox, reference, second_by):
    """Two pods on one master, also one of the reference plugin, reach each other; the host does not reach them."""
    one, two = new_sandbox(), new_sandbox()
    first = macvlan.add(one)
    other = macvlan if second_by == "podwire" else replace(macvlan, bin_dir=reference, path=str(reference))
    second = other.add(two)
    for number in (0, 1):
        assert reaches(one, address(second, number))
    macvlan.host.ip("address", "add", uplink.HOST[0], "dev", UPLINK)
    assert not reaches(macvlan.host, address(first), within_s=1)


@pytest.mark.parametrize("mode", ["", "bridge", "private", "vepa", "passthru", None])
def test_modes(macvlan, sandbox, mode):
    """The interface has the configured mode, by default bridge; CHECK and DEL succeed."""
    net = macvlan.having(mode=mode)
    before = state(net.host)
    result = net.add(sandbox)
    assert info(sandbox)["mode"] == (mode or "bridge")
    macs = {shown(sandbox, "eth0")["address"], shown(net.host, UPLINK)["address"], result["interfaces"][0]["mac"]}
    assert len(macs) == (1 if mode == "passthru" else 2)
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo"}
    assert state(net.host) == before
    assert net.leases() == {}


def test_broadcast_queue(macvlan, new_sandbox):
    """`bcqueuelen` sets the length of the queue for broadcasts; 0 is the kernel's default."""
    for length, expected in ((500, 500), (0, 1000)):
        pod = new_sandbox()
        macvlan.having(bcqueuelen=length).add(pod)
        assert info(pod)["bcqueuelen"] == expected


def test_master_that_is_a_macvlan_interface(macvlan, sandbox):
    """If the master is a macvlan interface of the host, the kernel uses its parent; CHECK accepts that."""
    macvlan.host.ip("link", "add", "m0", "link", UPLINK, "type", "macvlan", "mode", "bridge")
    macvlan.host.ip("link", "set", "m0", "up")
    net = macvlan.having(master="m0")
    net.check(sandbox, net.add(sandbox))
    assert shown(sandbox, "eth0")["link_index"] == shown(macvlan.host, UPLINK)["ifindex"]


def test_busy_masters_are_explained(macvlan, sandbox):
    """The error names the bridge that has the master as a port, and lists it as the master to use."""
    macvlan.host.ip("link", "add", "br0", "type", "bridge")
    macvlan.host.ip("link", "set", UPLINK, "master", "br0")
    error = macvlan.run("ADD", sandbox).error()
    assert error["msg"] == "failed to create macvlan: device or resource busy"
    assert error["details"].endswith('is a port of bridge "br0", which receives its packets; set "master" to "br0"')
    macvlan.host.ip("link", "set", "br0", "up")
    macvlan.having(master="br0").add(sandbox)


@pytest.mark.parametrize(("first", "second"), [("passthru", "bridge"), ("bridge", "passthru")])
def test_passthru_beside_another_interface_is_explained(macvlan, new_sandbox, first, second):
    """An interface of mode passthru needs its master for itself, and the error says so."""
    macvlan.having(mode=first).add(new_sandbox())
    pod = new_sandbox()
    leases = macvlan.leases()
    error = macvlan.having(mode=second).run("ADD", pod).error()
    assert error["msg"] == "failed to create macvlan: invalid argument"
    assert "passthru" in error["details"]
    assert set(links(pod)) == {"lo"}
    assert macvlan.leases() == leases


def test_used_mac_address_is_explained(macvlan, new_sandbox):
    """The error of a MAC address that another interface on the master has says so; ADD leaves nothing."""
    net = macvlan.having(mac=MAC)
    net.add(new_sandbox())
    pod = new_sandbox()
    leases = net.leases()
    error = net.run("ADD", pod).error()
    assert error["msg"] == 'failed to set "eth0" up: address already in use'
    assert f"has the MAC address {MAC}" in error["details"]
    assert set(links(pod)) == {"lo"}
    assert net.leases() == leases


def test_master_that_is_not_ethernet_is_explained(macvlan, sandbox):
    """A tunnel without Ethernet addresses cannot be a master."""
    macvlan.host.run("sh", "-ec", "ip tuntap add tun0 mode tun; ip link set tun0 up")
    error = macvlan.having(master="tun0").run("ADD", sandbox).error()
    assert error["msg"] == "failed to create macvlan: invalid argument"
    assert "it is not an Ethernet interface" in error["details"]
