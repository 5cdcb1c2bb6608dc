"""host-device: devices by PCI address, path, and the ID from a device plugin; drivers for programs in user space."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import mount_wrapper
from tests.support.binaries import directory
from tests.support.host_device_network import DEVICE, files
from tests.support.netstate import links, state

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
