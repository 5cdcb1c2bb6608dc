"""macvlan: modes, masters and traffic."""

from dataclasses import replace
from typing import Any

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


@pytest.mark.needs("macvlan_queue")
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


# Commands of `ip` on the host, keys of a first pod, keys of a refused one, the message, and a part of the details.
CREATE = "failed to create macvlan: "
REFUSED: dict[str, tuple[list[str], dict[str, Any] | None, dict[str, Any], str, str]] = {
    "port of a bridge": (
        ["link add br0 type bridge", f"link set {UPLINK} master br0"],
        None,
        {},
        f"{CREATE}device or resource busy",
        'is a port of bridge "br0", which receives its packets; set "master" to "br0"',
    ),
    "after passthru": ([], {"mode": "passthru"}, {}, f"{CREATE}invalid argument", "passthru"),
    "before passthru": ([], {}, {"mode": "passthru"}, f"{CREATE}invalid argument", "passthru"),
    "MAC": ([], {"mac": MAC}, {"mac": MAC}, 'failed to set "eth0" up: address already in use', f"MAC address {MAC}"),
    "tunnel": (
        ["tuntap add tun0 mode tun", "link set tun0 up"],
        None,
        {"master": "tun0"},
        f"{CREATE}invalid argument",
        "it is not an Ethernet interface",
    ),
}


@pytest.mark.every_case
@pytest.mark.parametrize("case", REFUSED)
def test_refusals_of_the_kernel_are_explained(macvlan, sandbox, new_sandbox, case):
    """The error names the reason: a bridge, mode passthru, a used MAC address or no Ethernet; ADD leaves nothing."""
    commands, first, second, msg, details = REFUSED[case]
    for command in commands:
        macvlan.host.ip(*command.split())
    if first is not None:
        macvlan.having(**first).add(new_sandbox())
    before = state(macvlan.host), state(sandbox), macvlan.leases()
    error = macvlan.having(**second).run("ADD", sandbox).error()
    assert error["msg"] == msg
    assert details in error["details"]
    assert (state(macvlan.host), state(sandbox), macvlan.leases()) == before
