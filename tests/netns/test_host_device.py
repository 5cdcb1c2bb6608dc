"""host-device: ADD moves an interface of the host into the container, and DEL brings it back as it was."""

from __future__ import annotations

import json

import pytest

from tests.support.attaching import reaches
from tests.support.host_device_network import MAC, files
from tests.support.netstate import links, shown, state


def test_add_moves_and_configures_the_device(moved, host, sandbox):
    """The device is in the container, named, up, with addresses; the result describes it."""
    result = moved.add(sandbox)
    assert result["interfaces"] == [{"name": "eth0", "mac": MAC, "mtu": 1400, "sandbox": sandbox.path}]
    assert [(ip["address"], ip["interface"]) for ip in result["ips"]] == [("10.26.0.2/24", 0), ("fd00:26::2/64", 0)]
    assert set(links(host)) == {"lo", "hp0"}
    in_container = json.loads(sandbox.ip("-j", "link", "show", "eth0"))[0]
    assert (in_container["ifalias"], in_container["mtu"], "UP" in in_container["flags"]) == ("hd0", 1400, True)
    assert files(moved) == [f"{sandbox.name}:eth0.json"]
    host.ip("address", "add", "10.26.0.1/24", "dev", "hp0")
    assert reaches(host, "10.26.0.2")
    moved.check(sandbox, result)


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0", "1.1.0"])
@pytest.mark.parametrize("up", [True, False])
def test_del_restores_the_device(moved, host, sandbox, version, up):
    """After DEL the host's whole state equals that before ADD: name, alias, MAC, MTU, state, addresses, routes."""
    net = moved.having(cniVersion=version)
    if not up:
        host.ip("link", "set", "hd0", "down")
        net.delete(sandbox, net.add(sandbox))  # the kernel shows another qdisc before the first move
    before = state(host), state(sandbox)
    result = net.add(sandbox)
    sandbox.ip("link", "set", "eth0", "mtu", "1300")
    sandbox.ip("link", "set", "eth0", "address", "02:00:00:00:00:99")
    net.delete(sandbox, result)
    assert (state(host), state(sandbox)) == before
    assert (net.leases(), files(net)) == ({}, [])
    net.delete(sandbox, result)
    assert state(host) == before[0]


def test_hwaddr_selects_the_device(moved, host, sandbox):
    """`hwaddr` selects the device with that address, not the VLAN or bridge with the same one."""
    net = moved.having(device=None, hwaddr=MAC.upper())
    assert net.add(sandbox)["interfaces"][0]["mac"] == MAC
    assert set(links(host)) == {"lo", "hp0"}
    net.delete(sandbox)
    assert set(links(host)) == {"lo", "hp0", "hd0"}


@pytest.mark.parametrize(
    ("keys", "msg"),
    [
        ({"device": "none0"}, "failed to find host device: Link not found"),
        ({"device": None}, 'specify either "device", "hwaddr", "kernelpath" or "pciBusID"'),
        (
            {"device": None, "hwaddr": "zz"},
            'failed to find host device: failed to parse MAC address "zz": address zz: invalid MAC address',
        ),
        (
            {"device": None, "hwaddr": "02:00:00:00:00:55"},
            "failed to find host device: failed to find physical interface",
        ),
        (
            {"device": None, "kernelpath": "/sys/x"},
            'failed to find host device: kernel device path "/sys/x" must be absolute and begin with /sys/devices/',
        ),
        (
            {"device": None, "kernelpath": "/sys/devices/x"},
            "failed to find host device: failed to read directory /sys/devices/x/net: "
            '"open /sys/devices/x/net: no such file or directory"',
        ),
        (
            {"device": None, "pciBusID": "0000:ff:00.0"},
            "error with host device: lstat /sys/bus/pci/devices/0000:ff:00.0/driver: no such file or directory",
        ),
        (
            {"device": None, "runtimeConfig": {"deviceID": "0000:ff:00.0"}},
            "runtime config DeviceID 0000:ff:00.0 not found or unsupported",
        ),
        ({"runtimeConfig": {"deviceID": "../../x"}}, '"runtimeConfig.deviceID" is not the name of a device on a bus'),
        ({"device": "lo"}, '"lo" is the loopback interface, which cannot be moved'),
        ({"dataDir": "x"}, 'failed to load netconf: "dataDir" must be an absolute path, not x'),
    ],
)
def test_refused_configurations(moved, host, sandbox, keys, msg):
    """A wrong or missing device is one error object with the reference's text, and nothing is changed."""
    before = state(host), state(sandbox)
    error = moved.having(**keys).run("ADD", sandbox).error()
    assert error["msg"].startswith(msg)
    assert error["details"]
    assert (state(host), state(sandbox)) == before


def test_device_with_the_default_route_is_refused(moved, host, sandbox):
    """The interface that carries the node's default route stays; another default route with a lower metric frees it."""
    host.ip("route", "add", "default", "via", "192.0.2.1", "metric", "100")
    before = state(host)
    error = moved.run("ADD", sandbox).error()
    assert error["msg"] == '"hd0" carries the node\'s default route'
    assert state(host) == before
    host.ip("address", "add", "198.51.100.2/24", "dev", "hp0")
    host.ip("route", "add", "default", "via", "198.51.100.1", "metric", "50")
    moved.add(sandbox)


def test_port_of_a_bridge_is_refused(moved, host, sandbox):
    """A port of a bridge is refused, since DEL could not attach it again."""
    host.ip("link", "add", "br0", "type", "bridge")
    host.ip("link", "set", "hd0", "master", "br0")
    error = moved.run("ADD", sandbox).error()
    assert error["msg"] == '"hd0" is a port of "br0"'
    assert "hd0" in links(host)


def test_interface_with_the_devices_name_is_untouched(moved, host, sandbox):
    """A container's own interface with the device's name on the host stays as it is, during ADD and DEL."""
    sandbox.ip("link", "add", "hd0", "type", "bridge")
    before, other = state(host), shown(sandbox, "hd0")
    result = moved.add(sandbox)
    assert shown(sandbox, "hd0") == other
    moved.check(sandbox, result)
    moved.delete(sandbox, result)
    assert state(host) == before
    assert shown(sandbox, "hd0") == other


def test_second_add_names_the_container(moved, sandbox, new_sandbox):
    """ADD of a device that another container has reports which container that is."""
    moved.add(sandbox)
    error = moved.run("ADD", new_sandbox()).error()
    assert error["msg"] == "failed to find host device: Link not found"
    assert f'"hd0" is in container {sandbox.name} as eth0' in error["details"]
