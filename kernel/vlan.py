"""VLANs of bridge ports, and VLAN filtering of bridges.

*_request functions return a Request and do no I/O; functions that take a Socket send requests through it.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from socket import AF_BRIDGE

from cni.errors import CniError, Code
from kernel.codec import LinkMessage, VlanMessage
from kernel.codec_links import VlanDeviceMessage
from kernel.errors import KernelError
from kernel.link import IFF_UP, RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK, Link, by_index_request
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Request, Socket
from kernel.wire import Attributes, DecodedMessage
from process.values import dataclass

RTM_SETLINK = 19
PVID, UNTAGGED = 0x2, 0x4  # BRIDGE_VLAN_INFO_* (linux/if_bridge.h)
_RANGE_BEGIN, _RANGE_END = 0x8, 0x10
_INDEX = struct.Struct("=I")
_VLANS_COMPRESSED = 4  # RTEXT_FILTER_BRVLAN_COMPRESSED: the kernel lists ranges instead of each VLAN

VlanFlags = Mapping[int, int]  # VLAN ID -> PVID and UNTAGGED flags, 0 for a tagged VLAN


def pvid_of(vlans: VlanFlags) -> int:
    """Returns the VLAN of a port's untagged frames, 0 for none."""
    return next((vid for vid, flags in vlans.items() if flags & PVID), 0)


@dataclass(frozen=True)
class Filtering:
    """A bridge's VLAN filtering, on or off, and its default VLAN (PVID, untagged) for new ports; 0 for none."""

    on: bool
    default: int


@dataclass(frozen=True)
class VlanPort:
    """The VLANs of a bridge port, or of the bridge itself, and whether it is up."""

    is_up: bool
    vlans: VlanFlags


class NoFilteringError(CniError):
    """The kernel was built without VLAN filtering, so that "vlan" would isolate no pods."""

    def __init__(self, bridge: str) -> None:
        super().__init__(
            Code.PLUGIN_NOT_AVAILABLE,
            f'VLANs do not work on "{bridge}": the kernel\'s bridge has no VLAN filtering',
            "it needs a kernel with CONFIG_BRIDGE_VLAN_FILTERING",
        )


def get_filtering(socket: Socket, bridge: Link) -> Filtering:
    """Returns the VLAN filtering of a bridge; raises NoFilteringError, and KernelError also for a missing bridge.

    A kernel without VLAN filtering reports filtering as off, and omits the default VLAN, which shows that filtering is
    not available (net/bridge/br_netlink.c, br_fill_info).
    """
    (message,) = socket.get(by_index_request(bridge.index)._replace(ignore=()))
    info = message.get_attr("IFLA_LINKINFO")
    data = info and info.get_attr("IFLA_INFO_DATA")
    default = data and data.get_attr("IFLA_BR_VLAN_DEFAULT_PVID")
    if default is None:
        raise NoFilteringError(bridge.name)
    return Filtering(bool(data.get_attr("IFLA_BR_VLAN_FILTERING")), default)


def probe_create_bridge(socket: Socket, bridge: str, *, filtering: bool) -> None:
    """Raises KernelError when no bridge can be created, and NoFilteringError when none can filter by VLAN.

    Probes with a request that always fails, since "/" is an invalid name. With `filtering`, it also has the invalid
    VLAN protocol 0, which a kernel with VLAN filtering refuses first (net/bridge/br_netlink.c, br_validate).
    """
    info: Attributes = [("IFLA_INFO_KIND", "bridge")]
    if filtering:
        info.append(("IFLA_INFO_DATA", {"attrs": [("IFLA_BR_VLAN_PROTOCOL", 0)]}))
    attributes: Attributes = [("IFLA_IFNAME", "/"), ("IFLA_LINKINFO", {"attrs": info})]
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    try:
        socket.send(Request(f'create bridge "{bridge}"', LinkMessage, RTM_NEWLINK, flags, {}, attributes))
    except KernelError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP):
            raise
        if filtering and error.errno != errno.EPROTONOSUPPORT:
            raise NoFilteringError(bridge) from error


def enable_filtering_request(bridge: Link) -> Request:
    """Returns a request that enables VLAN filtering of a bridge."""
    data = {"attrs": [("IFLA_BR_VLAN_FILTERING", 1)]}
    info = {"attrs": [("IFLA_INFO_KIND", "bridge"), ("IFLA_INFO_DATA", data)]}
    description = f'switch VLAN filtering of "{bridge.name}" on'
    return Request(description, LinkMessage, RTM_NEWLINK, NLM_F_ACK, {"index": bridge.index}, [("IFLA_LINKINFO", info)])


def add_request(port: Link, vlans: VlanFlags) -> Request:
    """Returns a request that adds VLANs to a bridge port, as ranges; existing ones get the new flags."""
    return _change_request(f'add VLANs to "{port.name}"', RTM_SETLINK, port, vlans)


def remove_request(port: Link, ids: Iterable[int]) -> Request:
    """Returns a request that removes VLANs from a bridge port; missing ones are success."""
    return _change_request(f'remove VLANs from "{port.name}"', RTM_DELLINK, port, dict.fromkeys(ids, 0))


def list_by_port(socket: Socket, bridge: Link) -> dict[int, VlanFlags]:
    """Returns the VLANs of each port of a bridge by the port's ifindex; raises KernelError."""
    members = _read_members(socket, bridge, bridge.index)
    return {index: member.vlans for index, member in members.items() if index != bridge.index}


def get_member(socket: Socket, bridge: Link, index: int) -> VlanPort | None:
    """Returns the port with an ifindex, or the bridge itself; None for other links. Raises KernelError."""
    return _read_members(socket, bridge, index).get(index)


def get_device_vlan(socket: Socket, device: Link) -> int:
    """Returns the VLAN ID of an 802.1Q interface, 0 when it no longer exists; raises KernelError."""
    (message,) = socket.get(by_index_request(device.index)._replace(kind=VlanDeviceMessage))
    info = message and message.get_attr("IFLA_LINKINFO")
    data = info and info.get_attr("IFLA_INFO_DATA")
    return (data and data.get_attr("IFLA_VLAN_ID")) or 0


def _read_members(socket: Socket, bridge: Link, index: int) -> dict[int, VlanPort]:
    """Returns members of a bridge by ifindex; decodes only messages that contain the bytes of `index`.

    Before Linux 5.6 the kernel has no request for one port or one bridge: it lists the ports of all bridges.
    """
    values: dict[str, int] = {"family": AF_BRIDGE}
    attributes: Attributes = [("IFLA_EXT_MASK", _VLANS_COMPRESSED)]
    description = f'list the VLANs of "{bridge.name}"'
    request = Request(
        description, VlanMessage, RTM_GETLINK, NLM_F_DUMP, values, attributes, body_filter=_contains_index(index)
    )
    return {
        message["index"]: VlanPort(bool(message["flags"] & IFF_UP), _vlans(message))
        for message in socket.dump(request)
        if message.get_attr("IFLA_MASTER") == bridge.index
    }


def _contains_index(index: int) -> Callable[[bytes], bool]:
    packed = _INDEX.pack(index)
    return lambda message: packed in message


def _change_request(description: str, number: int, port: Link, vlans: VlanFlags) -> Request:
    spec = [("IFLA_BRIDGE_VLAN_INFO", {"flags": flags, "vid": vid}) for flags, vid in _ranges(vlans)]
    values: dict[str, int] = {"family": AF_BRIDGE, "index": port.index}
    attributes: Attributes = [("IFLA_AF_SPEC", {"attrs": spec})]
    return Request(description, VlanMessage, number, NLM_F_ACK, values, attributes, details=partial(_format_ids, vlans))


def _format_ids(vlans: VlanFlags) -> str:
    """Returns the IDs as `bridge vlan` shows them: "1 10-20"."""
    shown = ""
    for flags, vid in _ranges(vlans):
        shown += f"-{vid}" if flags & _RANGE_END else f" {vid}"
    return shown.lstrip()


def _ranges(vlans: VlanFlags) -> Iterator[tuple[int, int]]:
    """Yields (flags, ID) as netlink encodes them: consecutive IDs of equal flags as the two ends of a range."""
    ids = sorted(vlans)
    first = 0
    for number, vid in enumerate(ids):
        following = ids[number + 1] if number + 1 < len(ids) else 0
        flags = vlans[vid]
        if following == vid + 1 and vlans[following] == flags and not flags & PVID:  # a PVID cannot be in a range
            continue
        if number == first:
            yield flags, vid
        else:
            yield flags | _RANGE_BEGIN, ids[first]
            yield flags | _RANGE_END, vid
        first = number + 1


def _vlans(message: DecodedMessage) -> VlanFlags:
    spec = message.get_attr("IFLA_AF_SPEC")
    vlans: dict[int, int] = {}
    first = 0
    for item in spec.get_attrs("IFLA_BRIDGE_VLAN_INFO") if spec else ():
        flags, vid = item["flags"], item["vid"]
        if flags & _RANGE_BEGIN:
            first = vid
            continue
        begin = first if flags & _RANGE_END else vid
        vlans.update(dict.fromkeys(range(begin, vid + 1), flags & (PVID | UNTAGGED)))
    return vlans
