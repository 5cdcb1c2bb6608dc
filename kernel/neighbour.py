"""Neighbour entries (ARP and neighbour discovery): permanent ones for addresses whose MAC address is known.

*_request functions return a Request and do no I/O; functions that take a Socket send requests through it.
"""

from __future__ import annotations

import errno
import socket as stdlib_socket
from typing import NamedTuple

from cni.address import Address, format_mac
from kernel import route
from kernel.codec_links import NeighbourMessage
from kernel.link import Link
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, Request, Socket

RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30
_NUD_INCOMPLETE, _NUD_FAILED, _NUD_NOARP, NUD_PERMANENT, _NTF_PROXY = 0x01, 0x20, 0x40, 0x80, 0x08  # linux/neighbour.h
_STATES = {
    0x01: "incomplete", 0x02: "reachable", 0x04: "stale", 0x08: "delay", 0x10: "probe", 0x20: "failed", 0x40: "noarp",
    0x80: "permanent",
}  # NUD_*  # fmt: skip
_FAMILIES = {4: int(stdlib_socket.AF_INET), 6: int(stdlib_socket.AF_INET6)}


class Neighbour(NamedTuple):
    """An entry: the ifindex of its link, the neighbour's address and MAC address."""

    ifindex: int
    address: Address
    mac: bytes


def set_request(link: Link, neighbour: Address, mac: bytes) -> Request:
    """Returns a request that sets a permanent entry: packets to `neighbour` through `link` go to `mac`."""
    values = {"family": _FAMILIES[neighbour.version], "ifindex": link.index, "state": NUD_PERMANENT}
    description = f'set the MAC address of {neighbour} on "{link.name}" to {format_mac(mac)}'
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
    attributes = [("NDA_DST", neighbour.packed), ("NDA_LLADDR", mac)]
    return Request(description, NeighbourMessage, RTM_NEWNEIGH, flags, values, attributes)


def delete_request(link: Link, neighbour: Address) -> Request:
    """Returns a request that deletes the entry of `neighbour` on `link`; a missing entry is success."""
    values = {"family": _FAMILIES[neighbour.version], "ifindex": link.index}
    description = f'forget the MAC address of {neighbour} on "{link.name}"'
    attributes = [("NDA_DST", neighbour.packed)]
    return Request(description, NeighbourMessage, RTM_DELNEIGH, NLM_F_ACK, values, attributes, (errno.ENOENT,))


def list_learned(socket: Socket) -> list[Neighbour]:
    """Returns the entries of all links that the kernel learned from the network; raises KernelError."""
    entries = []
    for message in socket.dump(Request("list the neighbours", NeighbourMessage, RTM_GETNEIGH, NLM_F_DUMP, {})):
        packed, mac = message.get_attr("NDA_DST"), message.get_attr("NDA_LLADDR")
        if packed and mac and not message["state"] & (_NUD_NOARP | NUD_PERMANENT):
            entries.append(Neighbour(message["ifindex"], route.address_of(packed), mac))
    return entries


class NeighbourEntry(NamedTuple):
    """An entry of any state: `mac` is b"" if the neighbour did not answer, or for a proxy entry (`is_proxy`)."""

    ifindex: int
    address: Address
    mac: bytes
    state: int
    is_proxy: bool

    @property
    def is_permanent(self) -> bool:
        """Whether it was set, and not learned."""
        return bool(self.state & NUD_PERMANENT)

    @property
    def is_without_arp(self) -> bool:
        """Whether the interface does not ask: ARP is off there."""
        return bool(self.state & _NUD_NOARP)

    @property
    def is_failed(self) -> bool:
        """Whether the neighbour did not answer."""
        return bool(self.state & _NUD_FAILED)

    @property
    def is_usable(self) -> bool:
        """Whether packets are sent to its MAC address."""
        return bool(self.mac) and not self.state & (_NUD_INCOMPLETE | _NUD_FAILED)

    @property
    def state_name(self) -> str:
        """The state as `ip neighbour` prints it."""
        return _STATES.get(self.state, str(self.state))


class ForwardingEntry(NamedTuple):
    """An entry of a bridge's forwarding database: frames to `mac` leave by the port `ifindex`."""

    ifindex: int
    master: int
    mac: bytes
    state: int
    vlan: int

    @property
    def is_static(self) -> bool:
        """Whether it was set, and not learned: it does not move when the MAC address appears at another port."""
        return bool(self.state & (_NUD_NOARP | NUD_PERMANENT))

    @property
    def is_local(self) -> bool:
        """Whether the bridge delivers frames to `mac` to the host itself."""
        return bool(self.state & NUD_PERMANENT)


def list_entries(socket: Socket) -> list[NeighbourEntry]:
    """Returns all entries of all links, then the proxy entries; raises KernelError."""
    entries = []
    for flags in (0, _NTF_PROXY):
        request = Request("list the neighbours", NeighbourMessage, RTM_GETNEIGH, NLM_F_DUMP, {"flags": flags})
        for message in socket.dump(request):
            packed = message.get_attr("NDA_DST")
            if packed and message["family"] in _FAMILIES.values():
                mac = message.get_attr("NDA_LLADDR") or b""
                is_proxy = bool(message["flags"] & _NTF_PROXY)
                entries.append(
                    NeighbourEntry(message["ifindex"], route.address_of(packed), mac, message["state"], is_proxy)
                )
    return entries


def list_forwarding(socket: Socket) -> list[ForwardingEntry]:
    """Returns the entries of all bridges' forwarding databases; raises KernelError."""
    values = {"family": int(stdlib_socket.AF_BRIDGE)}
    request = Request("list the forwarding database", NeighbourMessage, RTM_GETNEIGH, NLM_F_DUMP, values)
    return [
        ForwardingEntry(
            message["ifindex"],
            message.get_attr("NDA_MASTER") or 0,
            mac,
            message["state"],
            message.get_attr("NDA_VLAN") or 0,
        )
        for message in socket.dump(request)
        if (mac := message.get_attr("NDA_LLADDR"))
    ]


def list_permanent(socket: Socket, link: Link) -> dict[Address, bytes]:
    """Returns the permanent entries of a link: the MAC address of each neighbour; raises KernelError."""
    only = [("NDA_IFINDEX", link.index)]  # Linux 4.4 and later; struct ndmsg does not filter
    description = f'list the neighbours of "{link.name}"'
    request = Request(description, NeighbourMessage, RTM_GETNEIGH, NLM_F_DUMP, {}, only)
    entries = {}
    for message in socket.dump(request):
        packed = message.get_attr("NDA_DST")
        if message["ifindex"] == link.index and message["state"] & NUD_PERMANENT and packed:
            entries[route.address_of(packed)] = message.get_attr("NDA_LLADDR") or b""
    return entries
