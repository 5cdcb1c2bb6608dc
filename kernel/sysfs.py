"""Devices in sysfs: the network interfaces of PCI and auxiliary devices, and the PCI address of an interface.

/sys shows the network interfaces of the network namespace in which it was mounted, the host's.
"""

from __future__ import annotations

import os
import re

_ROOT = "/sys"
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


def is_pci_address(device_id: str) -> bool:
    """Returns whether `device_id` is written like a PCI address, and not like the ID of an auxiliary device."""
    return bool(_PCI_ADDRESS.fullmatch(device_id.lower()))


def pci_path(device_id: str) -> str:
    """Returns the path of a PCI device."""
    return f"{_ROOT}/bus/pci/devices/{device_id}"


def auxiliary_path(device_id: str) -> str:
    """Returns the path of a device of the auxiliary bus, such as a subfunction of a network card."""
    return f"{_ROOT}/bus/auxiliary/devices/{device_id}"


def list_interfaces(path: str) -> list[str]:
    """Returns the names of a device's network interfaces; raises OSError for a device without any."""
    return sorted(os.listdir(f"{path}/net"))


def find_pci_interface(device_id: str) -> str:
    """Returns the first interface of a PCI device, also one behind virtio, "" without one."""
    path = pci_path(device_id)
    try:
        children = sorted(name for name in os.listdir(path) if name.startswith("virtio"))
    except OSError:
        return ""
    for candidate in (path, *(f"{path}/{name}" for name in children)):
        try:
            names = list_interfaces(candidate)
        except OSError:
            continue
        if names:
            return names[0]
    return ""


def get_driver(device_id: str) -> str:
    """Returns the name of a PCI device's driver; raises OSError for a device without one."""
    return os.path.basename(os.readlink(f"{pci_path(device_id)}/driver"))


def get_pci_address(interface: str) -> str:
    """Returns the PCI address of an interface, "" for one without."""
    try:
        target = os.readlink(f"{_ROOT}/class/net/{interface}")
    except OSError:
        return ""
    # .../0000:00:03.0/virtio1/net/eth0: the last device is the nearest.
    return next((part for part in reversed(target.split("/")) if _PCI_ADDRESS.fullmatch(part)), "")
