"""host-device: ADD moves a device into the container, selected by name, MAC address, PCI address, path or ID."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import mount_wrapper
from tests.support.attaching import reaches
from tests.support.binaries import directory
from tests.support.host_device_network import DEVICE, MAC, files
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
    """`hwaddr` selects the device with that address, not a bridge with the same one."""
    host.ip("link", "add", "br0", "address", MAC, "type", "bridge")
    net = moved.having(device=None, hwaddr=MAC.upper())
    assert net.add(sandbox)["interfaces"][0]["mac"] == MAC
    assert set(links(host)) == {"lo", "hp0", "br0"}
    net.delete(sandbox)
    assert set(links(host)) == {"lo", "hp0", "br0", "hd0"}


NO_DEVICE = "failed to find host device: "


@pytest.mark.parametrize(
    ("keys", "msg"),
    [
        ({"device": "none0"}, f"{NO_DEVICE}Link not found"),
        ({}, 'specify either "device", "hwaddr", "kernelpath" or "pciBusID"'),
        ({"hwaddr": "zz"}, f'{NO_DEVICE}failed to parse MAC address "zz": address zz: invalid MAC address'),
        ({"hwaddr": "02:00:00:00:00:55"}, f"{NO_DEVICE}failed to find physical interface"),
        ({"kernelpath": "/sys/x"}, f'{NO_DEVICE}kernel device path "/sys/x" must be absolute and begin with /sys/'),
        (
            {"kernelpath": "/sys/devices/x"},
            f"{NO_DEVICE}failed to read directory /sys/devices/x/net: "
            '"open /sys/devices/x/net: no such file or directory"',
        ),
        (
            {"pciBusID": "0000:ff:00.0"},
            "error with host device: lstat /sys/bus/pci/devices/0000:ff:00.0/driver: no such file or directory",
        ),
        (
            {"runtimeConfig": {"deviceID": "0000:ff:00.0"}},
            "runtime config DeviceID 0000:ff:00.0 not found or unsupported",
        ),
        ({"runtimeConfig": {"deviceID": "../../x"}}, '"runtimeConfig.deviceID" is not the name of a device on a bus'),
        ({"device": "lo"}, '"lo" is the loopback interface, which cannot be moved'),
        ({"device": "hd0", "dataDir": "x"}, 'failed to load netconf: "dataDir" must be an absolute path, not x'),
    ],
)
def test_refused_configurations(moved, host, sandbox, keys, msg):
    """A wrong or missing device is one error object with the reference's text, and nothing is changed."""
    before = state(host), state(sandbox)
    error = moved.having(**{"device": None, **keys}).run("ADD", sandbox).error()
    assert error["msg"].startswith(msg)
    assert error["details"]
    assert (state(host), state(sandbox)) == before


MACVLAN = "link add {name} link hd0 type macvlan"
# Arguments of `ip` on the host, the selected device, the message, and a part of the details.
IN_USE = {
    "default route": (["route add default via 192.0.2.1"], "hd0", '"hd0" carries the node\'s default route', ""),
    "port": (["link add br0 type bridge", "link set hd0 master br0"], "hd0", '"hd0" is a port of "br0"', ""),
    "macvlan": ([MACVLAN.format(name="mv0")], "hd0", '"hd0" has other interfaces on it: "mv0"', '"master": "hd0"'),
    "host access": ([MACVLAN], "hd0", '"hd0" has other interfaces on it: "{name}"', '"master": "hd0"'),
    "host link": ([MACVLAN], "{name}", '"{name}" connects the node with its pods ("hostAccess")', "select another"),
}


@pytest.mark.every_case
@pytest.mark.parametrize("case", IN_USE)
def test_device_in_use_is_refused(moved, host, sandbox, case):
    """ADD refuses a device that the node or other interfaces need, names the reason, and changes nothing."""
    commands, device, msg, details = IN_USE[case]
    name = f"pwha{shown(host, 'hd0')['ifindex']}"
    for command in commands:
        host.ip(*command.format(name=name).split())
    before = state(host), state(sandbox)
    error = moved.having(device=device.format(name=name)).run("ADD", sandbox).error()
    assert error["msg"] == msg.format(name=name)
    assert details in error["details"]
    assert (state(host), state(sandbox), files(moved)) == (*before, [])


def test_default_route_with_a_higher_metric(moved, host, sandbox):
    """A device with a default route is moved if another default route has a lower metric."""
    host.ip("route", "add", "default", "via", "192.0.2.1", "metric", "100")
    host.ip("address", "add", "198.51.100.2/24", "dev", "hp0")
    host.ip("route", "add", "default", "via", "198.51.100.1", "metric", "50")
    moved.add(sandbox)


def test_failed_add_restores_routes(moved, host, sandbox):
    """If IPAM fails, the host's routes through the device are those before ADD, in all tables."""
    host.ip("route", "add", "198.51.100.1", "dev", "hd0")
    host.ip("route", "add", "203.0.113.0/24", "via", "198.51.100.1", "dev", "hd0", "metric", "7", "table", "99")
    host.ip("route", "add", "10.99.0.0/16", "via", "192.0.2.1", "mtu", "1300")
    host.ip("-6", "route", "add", "2001:db8:1::/64", "via", "2001:db8::1", "dev", "hd0")
    before = state(host)
    moved.having(ipam={"type": "no-such-ipam"}).run("ADD", sandbox).error()
    assert state(host) == before


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


PCI, VIRTIO, DPDK, DRIVERLESS, SUBFUNCTION = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0", "card.sf.2"
KERNEL_PATH = f"/sys/devices/pci0000:00/{PCI}"


def create_sysfs(root: Path) -> None:
    """Creates a tree for /sys: a PCI device, a virtio device and a subfunction, each with the interface hd0.

    A fourth device has a driver for programs in user space, a fifth no driver.
    """
    devices, buses = root / "devices" / "pci0000:00", root / "bus"
    for name in (PCI, VIRTIO, DPDK, DRIVERLESS):
        (devices / name).mkdir(parents=True)
        link_relative(buses / "pci" / "devices" / name, devices / name, root)
    for name, driver in ((PCI, "ixgbe"), (VIRTIO, "virtio-pci"), (DPDK, "vfio-pci")):
        (buses / "pci" / "drivers" / driver).mkdir(parents=True)
        link_relative(devices / name / "driver", buses / "pci" / "drivers" / driver, root)
    (devices / PCI / "net" / DEVICE).mkdir(parents=True)
    (devices / VIRTIO / "virtio0" / "net" / DEVICE).mkdir(parents=True)
    (devices / PCI / SUBFUNCTION / "net" / DEVICE).mkdir(parents=True)
    link_relative(buses / "auxiliary" / "devices" / SUBFUNCTION, devices / PCI / SUBFUNCTION, root)
    link_relative(root / "class" / "net" / DEVICE, devices / PCI / "net" / DEVICE, root)


def link_relative(link: Path, target: Path, root: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    depth = len(link.relative_to(root).parts) - 1
    link.symlink_to(Path(*[".."] * depth) / target.relative_to(root))


@pytest.fixture
def on_bus(moved, tmp_path):
    """The network without a selected device; /sys has devices with the interface hd0."""
    create_sysfs(tmp_path / "sys")
    mount = f"mount --bind {tmp_path}/sys /sys || exit 1"
    bin_dir = mount_wrapper.install(tmp_path / "plugins", "host-device", mount)
    return replace(moved.having(device=None), bin_dir=bin_dir, path=str(directory()))


@pytest.mark.parametrize(
    "keys",
    [
        {"pciBusID": PCI},
        {"pciBusID": VIRTIO},
        {"kernelpath": KERNEL_PATH},
        {"runtimeConfig": {"deviceID": PCI}},
        {"runtimeConfig": {"deviceID": VIRTIO}, "pciBusID": DPDK},
        {"runtimeConfig": {"deviceID": SUBFUNCTION}, "device": "hp0"},
    ],
)
def test_device_is_selected(on_bus, host, sandbox, keys):
    """Each key selects the device, `deviceID` before all others; DEL restores it and needs no /sys."""
    before = state(host)
    net = on_bus.having(**keys)
    result = net.add(sandbox)
    assert result["interfaces"][0]["pciID"] == PCI
    assert set(links(host)) == {"lo", "hp0"}
    net.check(sandbox, result)
    replace(net, bin_dir=None).delete(sandbox, result)
    assert state(host) == before
    assert files(net) == []


def test_pci_id_is_of_cni_1_1_0(on_bus, sandbox):
    """Results of earlier versions have no PCI address."""
    assert "pciID" not in on_bus.having(pciBusID=PCI, cniVersion="1.0.0").add(sandbox)["interfaces"][0]


@pytest.mark.parametrize("keys", [{"pciBusID": DPDK}, {"runtimeConfig": {"deviceID": DPDK}}])
def test_device_of_a_program_in_user_space(on_bus, host, sandbox, keys):
    """With the driver vfio-pci no link changes: addresses are allocated and returned, and DEL releases them."""
    before = state(host), state(sandbox)
    net = on_bus.having(**keys)
    result = net.add(sandbox)
    assert result["interfaces"] == [{"name": "eth0", "pciID": DPDK, "sandbox": sandbox.path}]
    assert [(ip["address"], ip["interface"]) for ip in result["ips"]] == [("10.26.0.2/24", 0), ("fd00:26::2/64", 0)]
    assert (state(host), state(sandbox)) == before
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert (net.leases(), files(net)) == ({}, [])
    assert net.having(ipam=None).add(sandbox)["interfaces"] == result["interfaces"]


def test_device_without_a_driver(on_bus, host, sandbox):
    """A PCI device without a driver is refused with the reference's text."""
    error = on_bus.having(pciBusID=DRIVERLESS).run("ADD", sandbox).error()
    path = f"/sys/bus/pci/devices/{DRIVERLESS}/driver"
    assert error["msg"] == f"error with host device: lstat {path}: no such file or directory"
    assert "hd0" in links(host)


def test_device_without_an_interface(on_bus, tmp_path, sandbox):
    """A PCI device without a network interface is refused with the reference's text."""
    (tmp_path / "sys" / "devices" / "pci0000:00" / PCI / "net" / DEVICE).rmdir()
    error = on_bus.having(pciBusID=PCI).run("ADD", sandbox).error()
    assert error["msg"] == f"failed to find host device: no net directory under pci device {PCI}"
    assert error["details"]
