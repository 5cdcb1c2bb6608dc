"""host-device: devices by PCI address, path, and the ID from a device plugin; drivers for programs in user space."""

from dataclasses import replace

import pytest

from tests.support import fake_sysfs
from tests.support.binaries import directory
from tests.support.fake_sysfs import DPDK, DRIVERLESS, KERNEL_PATH, PCI, SUBFUNCTION, VIRTIO
from tests.support.host_device_network import DEVICE, files
from tests.support.netstate import links, state


@pytest.fixture
def on_bus(moved, tmp_path):
    """The network without a selected device; /sys has devices with the interface hd0."""
    fake_sysfs.create(tmp_path / "sys", DEVICE)
    bin_dir = fake_sysfs.install(tmp_path / "plugins", tmp_path / "sys")
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
