"""tap: the device's properties in every combination of keys, its bridge, and devices of the reference plugin."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from tests.support.netstate import links, shown, state
from tests.support.processes import output

MAC = "02:00:00:00:00:77"
NAMES = {0: "root"}  # `ip` prints names
COMBINATIONS = list(itertools.product((False, True), (None, 0, 31000), (None, 0, 4294967294)))


def properties(pod) -> dict[str, Any]:
    """Returns what `ip -d link` shows of the device."""
    data: dict[str, Any] = shown(pod, "eth0")["linkinfo"]["info_data"]
    return data


@pytest.mark.parametrize("layer", [2, 3])
@pytest.mark.parametrize(("multi_queue", "owner", "group"), COMBINATIONS)
def test_every_combination_has_the_same_device(tap, sandbox, multi_queue, owner, group, layer):
    """Owner, group and queues are set alone and together, with MTU and MAC address; pi and vnet_hdr are off."""
    net = tap.having(multiQueue=multi_queue, owner=owner, group=group, mtu=1300, mac=MAC)
    net = net if layer == 3 else net.having(ipam=None)
    result = net.add(sandbox)
    data = properties(sandbox)
    ids = {"user": owner, "group": group}
    assert {key: data[key] for key in ("type", "pi", "vnet_hdr", "multi_queue", "persist")} == {
        "type": "tap",
        "pi": False,
        "vnet_hdr": False,
        "multi_queue": multi_queue,
        "persist": True,
    }
    assert {key: str(data[key]) for key in ids if key in data} == {
        key: NAMES.get(number, str(number)) for key, number in ids.items() if number is not None
    }
    link = shown(sandbox, "eth0")
    assert (link["mtu"], link["address"], "UP" in link["flags"]) == (1300, MAC, True)
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo"}


def test_ipv6_addresses_do_not_wait_for_a_program(tap, sandbox):
    """ADD with IPv6 addresses does not wait 5 s for duplicate address detection, which needs a carrier."""
    net = tap.having(ipam={**tap.config["ipam"], "subnet": None, "ranges": [[{"subnet": "fd00:27::/64"}]]})
    start = time.monotonic()
    result = net.add(sandbox)
    assert time.monotonic() - start < 4
    assert "tentative" in sandbox.ip("-6", "address", "show", "dev", "eth0", "scope", "global")
    net.check(sandbox, result)


def test_bridge_of_the_container(tap, sandbox):
    """The device becomes a port of a bridge in the container; CHECK notices when it is none."""
    sandbox.ip("link", "add", "br0", "type", "bridge")
    net = tap.having(bridge="br0", mtu=1400, mac=MAC)
    result = net.add(sandbox)
    link = shown(sandbox, "eth0")
    assert (link["master"], link["mtu"], link["address"]) == ("br0", 1400, MAC)
    net.check(sandbox, result)
    sandbox.ip("link", "set", "eth0", "nomaster")
    assert net.run("CHECK", sandbox, prev_result=result).error()["msg"] == 'Tap eth0 is not a port of bridge "br0"'
    net.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo", "br0"}


def test_refused_port_leaves_nothing(tap, sandbox):
    """If the bridge is full, ADD deletes the device, and IPAM is not called."""
    lines = ["link add name br0 address 02:00:00:00:00:01 type bridge"]
    for number in range(512):  # the bridge has no port for the last end of a veth
        lines.append(f"link add name a{number} type veth peer name b{number}")
        lines += [f"link set {end}{number} master br0" for end in "ab"]
    output("ip", "-n", sandbox.name, "-force", "-batch", "-", stdin="\n".join(lines), check=False)
    before = sandbox.ip("-brief", "link")
    error = tap.having(bridge="br0", mac=MAC, owner=0).run("ADD", sandbox).error()
    assert error["details"].endswith("the bridge is full: the kernel allows 1023 ports")
    assert sandbox.ip("-brief", "link") == before
    assert tap.leases() == {}


def test_missing_device_file(tap, sandbox):
    """Without /dev/net/tun ADD and STATUS report the missing module, and nothing changes."""
    net = tap.having(cniVersion="1.1.0")
    before = state(sandbox)
    for command, code in (("ADD", 999), ("STATUS", 50)):
        error = net.run_after("mount -t tmpfs none /dev/net", command, sandbox).error()
        assert (error["code"], error["msg"]) == (code, "failed to open /dev/net/tun: no such file or directory")
        assert error["details"] == "the kernel module tun is not loaded: modprobe tun"
    assert state(sandbox) == before
    assert net.leases() == {}


@pytest.mark.parametrize(
    ("keys", "arguments"),
    [
        ({}, []),
        ({"multiQueue": True}, ["multi_queue"]),
        ({"owner": 0, "group": 0}, ["user", "0", "group", "0", "vnet_hdr"]),
    ],
)
def test_device_of_the_reference_plugin(tap, sandbox, keys, arguments):
    """A device made as the reference plugin makes it, with `ip tuntap` or virtio headers, passes CHECK and DEL."""
    net = tap.having(ipam=None, **keys)
    sandbox.ip("tuntap", "add", "mode", "tap", "name", "veth01234567", *arguments)
    sandbox.ip("link", "set", "veth01234567", "name", "eth0")
    sandbox.ip("link", "set", "eth0", "up")
    interface = {"name": "eth0", "mac": shown(sandbox, "eth0")["address"], "sandbox": sandbox.path}
    result = {"cniVersion": "1.0.0", "interfaces": [interface]}
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo"}
