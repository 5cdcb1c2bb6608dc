"""Finds the device that the configuration selects, and refuses devices that the node needs.

Errors that the reference plugin has, too, have its texts.
"""

from __future__ import annotations

import os

from attachment import host_access
from cni.address import parse_mac
from cni.errors import internal, invalid_conf
from cni.link_name import is_name_or_altname
from kernel import device, link, route, sysfs
from kernel.device import Device
from kernel.errors import reason
from kernel.link import Link
from kernel.rtnl import Socket
from plugins.host_device.backup import SavedDevice
from plugins.host_device.conf import HostDeviceConf, no_device_error
from process.values import dataclass

# Drivers that hand a PCI device to a program in user space: it has no network interface.
_USER_SPACE_DRIVERS = ("vfio-pci", "uio_pci_generic", "igb_uio")
_PEERED = ("veth", "vxcan", "netkit")  # IFLA_LINK is the other end
_PREFIX = "failed to find host device: "
_LIST_HINT = "list the node's interfaces: ip link"


@dataclass(frozen=True)
class Selection:
    """The way in which the configuration selects the device.

    `pci_id` and `auxiliary_id` are its names on these buses, or "". `is_dpdk`: its driver hands it to a program in user
    space.
    """

    conf: HostDeviceConf
    pci_id: str = ""
    auxiliary_id: str = ""
    is_dpdk: bool = False


def select(conf: HostDeviceConf) -> Selection:
    """Returns how `conf` selects the device; raises CniError(7) if it does not, CniError(999) if a bus lacks it."""
    if not conf.selects_device:
        raise no_device_error()
    pci_id = "" if conf.device or conf.hwaddr or conf.kernel_path else conf.pci_bus_id
    if conf.device_id:
        if os.path.exists(sysfs.pci_path(conf.device_id)):
            pci_id = conf.device_id
        elif os.path.exists(sysfs.auxiliary_path(conf.device_id)):
            return Selection(conf, auxiliary_id=conf.device_id)
        else:
            msg = f"runtime config DeviceID {conf.device_id} not found or unsupported"
            raise internal(msg, "the device plugin allocated a device that the node's PCI and auxiliary buses lack")
    if not pci_id:
        return Selection(conf)
    return Selection(conf, pci_id, is_dpdk=_get_driver(pci_id) in _USER_SPACE_DRIVERS)


def get_device(socket: Socket, selection: Selection) -> Device:
    """Returns the selected interface of the host; raises CniError(999), KernelError."""
    conf = selection.conf
    if selection.auxiliary_id:
        return _get_named(socket, _first_interface(sysfs.auxiliary_path(selection.auxiliary_id)))
    if conf.device and not conf.device_id:
        return _get_named(socket, conf.device)
    if conf.hwaddr and not conf.device_id:
        return _get_with_mac(socket, conf.hwaddr)
    if conf.kernel_path and not conf.device_id:
        return _get_named(socket, _find_interface_below(conf.kernel_path))
    name = sysfs.find_pci_interface(selection.pci_id)
    if not name:
        details = "its driver created no network interface, or the interface is in a container already"
        raise internal(f"{_PREFIX}no net directory under pci device {selection.pci_id}", details)
    return _get_named(socket, name)


def is_selected(conf: HostDeviceConf, saved: SavedDevice) -> bool | None:
    """Returns whether `conf` selects the device of `saved`; None if the configuration cannot answer that.

    The device is in a container, so only names and addresses of its time on the host can be compared.
    """
    if conf.device_id:
        return _is_pci_device(conf.device_id, saved)
    if conf.device:
        return conf.device in (saved.name, *saved.altnames)
    if conf.hwaddr:
        return parse_mac_or_none(conf.hwaddr) in map(parse_mac_or_none, filter(None, (saved.mac, saved.permanent_mac)))
    if conf.kernel_path:
        return (saved.pci_id != "" and saved.pci_id in conf.kernel_path.split("/")) or None
    return _is_pci_device(conf.pci_bus_id, saved) if conf.pci_bus_id else None


def refuse_needed(socket: Socket, candidate: Device) -> None:
    """Raises CniError(7) for a device that the node needs: loopback, a port, the default route's; KernelError."""
    name = candidate.link.name
    if candidate.link.flags & link.IFF_LOOPBACK:
        raise invalid_conf(f'"{name}" is the loopback interface, which cannot be moved', _LIST_HINT)
    if candidate.link.master:
        (master,) = link.get(socket, link.by_index_request(candidate.link.master))
        of = f' of "{master.name}"' if master else ""
        details = (
            f'a move would detach it for good: detach it first (ip link set "{name}" nomaster), or use another one'
        )
        raise invalid_conf(f'"{name}" is a port{of}', details)
    if route.get_default_interface(socket) == candidate.link.index:
        details = (
            "without it the node would be unreachable: select another interface, or for pods on this network use "
            f'macvlan or ipvlan with "master": "{name}"'
        )
        raise invalid_conf(f'"{name}" carries the node\'s default route', details)


def refuse_shared(socket: Socket, item: Link) -> None:
    """Raises CniError(7) for a device that pods or other links use; KernelError.

    That is a host link of `hostAccess`, or a device with links on it (VLAN, macvlan), which a move would cut off from
    the network. Links in other namespaces are invisible here.
    """
    if host_access.is_host_link(item):
        details = "macvlan or ipvlan created it, and deletes it with the last pod's route: select another interface"
        raise invalid_conf(f'"{item.name}" connects the node with its pods ("hostAccess")', details)
    names = [
        f'"{each.name}"'
        for each in link.list_all(socket)
        if each.iflink == item.index and each.iflink_nsid is None and each.kind not in _PEERED
    ]
    if names:
        details = (
            "a move would cut them off, and pods on the same device: delete them first (ip link del), or select "
            f'another interface; for pods on this network use macvlan or ipvlan with "master": "{item.name}"'
        )
        raise invalid_conf(f'"{item.name}" has other interfaces on it: {", ".join(sorted(names))}', details)


def _is_pci_device(bus_id: str, saved: SavedDevice) -> bool | None:
    """Returns whether the device has the PCI address; None for an ID of the auxiliary bus, which is not in the file."""
    return bus_id == saved.pci_id if sysfs.is_pci_address(bus_id) else None


def _get_driver(pci_id: str) -> str:
    try:
        return sysfs.get_driver(pci_id)
    except (OSError, ValueError) as error:
        number = error.errno or 0 if isinstance(error, OSError) else 0
        msg = f"error with host device: lstat {sysfs.pci_path(pci_id)}/driver: {reason(number)}"
        raise internal(msg, "the PCI device is missing or has no driver: lspci -k") from error


def _get_named(socket: Socket, name: str) -> Device:
    candidate = device.get(socket, name) if is_name_or_altname(name) else None
    if candidate is None:
        raise internal(f"{_PREFIX}Link not found", f'the host has no interface "{name}"; {_LIST_HINT}')
    return candidate


def _get_with_mac(socket: Socket, hwaddr: str) -> Device:
    try:
        mac = parse_mac(hwaddr)
    except ValueError:
        msg = f'{_PREFIX}failed to parse MAC address "{hwaddr}": address {hwaddr}: invalid MAC address'
        raise invalid_conf(msg, 'write "hwaddr" like "02:00:00:00:00:01"') from None
    candidates = [item for item in device.list_all(socket) if parse_mac_or_none(item.link.mac) == mac]
    if not candidates:
        raise internal(f"{_PREFIX}failed to find physical interface", f"no interface has {hwaddr}; {_LIST_HINT}")
    # VLAN interfaces and bridges have the address of the link below them: the one without a lower link comes first.
    return min(candidates, key=lambda item: (not item.permanent_mac, item.link.kind in ("vlan", "bridge", "bond")))


def parse_mac_or_none(mac: str) -> bytes | None:
    """Returns the bytes of a MAC address, None for a link without one."""
    try:
        return parse_mac(mac)
    except ValueError:
        return None


def _find_interface_below(kernel_path: str) -> str:
    if not kernel_path.startswith("/sys/devices/") or ".." in kernel_path.split("/") or "\0" in kernel_path:
        msg = f'{_PREFIX}kernel device path "{kernel_path}" must be absolute and begin with /sys/devices/'
        raise invalid_conf(msg, "for the path of an interface: readlink -f /sys/class/net/NAME/device")
    return _first_interface(kernel_path.rstrip("/"))


def _first_interface(path: str) -> str:
    try:
        names = sysfs.list_interfaces(path)
    except OSError as error:
        msg = f'{_PREFIX}failed to read directory {path}/net: "open {path}/net: {reason(error.errno or 0)}"'
        raise internal(msg, "the device is missing, or has no network interface on the host") from error
    if not names:
        msg = f"{_PREFIX}failed to find network device in path {path}/net"
        raise internal(msg, "it may be in a container already")
    return names[0]
