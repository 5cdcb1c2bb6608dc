"""host-device with a directory in place of /sys, for devices that this machine does not have.

One rule: the plugin gets a new mount namespace and keeps the caller's network namespace.
"""

from __future__ import annotations

from pathlib import Path

from tests.support import mount_wrapper

PCI, VIRTIO, DPDK, DRIVERLESS, SUBFUNCTION = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0", "card.sf.2"
KERNEL_PATH = f"/sys/devices/pci0000:00/{PCI}"


def create(root: Path, interface: str) -> None:
    """Creates the tree: a PCI device, a virtio device and a subfunction, each with the same network interface.

    A fourth device has a driver for programs in user space, a fifth no driver.
    """
    devices, buses = root / "devices" / "pci0000:00", root / "bus"
    for name in (PCI, VIRTIO, DPDK, DRIVERLESS):
        (devices / name).mkdir(parents=True)
        _link(buses / "pci" / "devices" / name, devices / name, root)
    for name, driver in ((PCI, "ixgbe"), (VIRTIO, "virtio-pci"), (DPDK, "vfio-pci")):
        (buses / "pci" / "drivers" / driver).mkdir(parents=True)
        _link(devices / name / "driver", buses / "pci" / "drivers" / driver, root)
    (devices / PCI / "net" / interface).mkdir(parents=True)
    (devices / VIRTIO / "virtio0" / "net" / interface).mkdir(parents=True)
    (devices / PCI / SUBFUNCTION / "net" / interface).mkdir(parents=True)
    _link(buses / "auxiliary" / "devices" / SUBFUNCTION, devices / PCI / SUBFUNCTION, root)
    _link(root / "class" / "net" / interface, devices / PCI / "net" / interface, root)


def install(directory: Path, root: Path) -> Path:
    """Creates `directory` with a host-device that sees `root` as /sys; returns it."""
    return mount_wrapper.install(directory, "host-device", f"mount --bind {root} /sys || exit 1")


def _link(link: Path, target: Path, root: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    depth = len(link.relative_to(root).parts) - 1
    link.symlink_to(Path(*[".."] * depth) / target.relative_to(root))
