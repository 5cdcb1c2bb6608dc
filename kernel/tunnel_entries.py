"""Permanent entries of a VXLAN device: which MAC address a gateway has, and to which node its frames are sent.

The former are neighbours (`ip neigh`), the latter forwarding entries (`bridge fdb`). *_request functions return a
Request and do no I/O. Addresses are bytes, since a node of a large cluster has thousands of entries.
"""

from __future__ import annotations

import errno
from socket import AF_BRIDGE, AF_INET, AF_INET6, inet_ntop

from cni.address import format_mac
from kernel.codec_links import NeighbourMessage
from kernel.link import Link
from kernel.neighbour import RTM_DELNEIGH, RTM_GETNEIGH, RTM_NEWNEIGH
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, Request, Socket
from kernel.wire import DecodedMessage, attribute_specs

_NUD_NOARP, _NUD_PERMANENT, _NTF_SELF = 0x40, 0x80, 0x02  # linux/neighbour.h
_FAMILIES = {4: int(AF_INET), 16: int(AF_INET6)}  # by the length of an address
_SET_FLAGS = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
_SPECS = attribute_specs(NeighbourMessage, NDA_LLADDR=b"", NDA_DST=b"")


def set_neighbour_request(device: Link, gateway: bytes, mac: bytes) -> Request:
    """Returns a request that sets the permanent MAC address of a gateway."""
    values = {"family": _FAMILIES[len(gateway)], "ifindex": device.index, "state": _NUD_PERMANENT}
    description = f'set the MAC address of {_text(gateway)} on "{device.name}" to {format_mac(mac)}'
    attributes = [("NDA_DST", gateway), ("NDA_LLADDR", mac)]
    return Request(description, NeighbourMessage, RTM_NEWNEIGH, _SET_FLAGS, values, attributes)


def delete_neighbour_request(device: Link, gateway: bytes) -> Request:
    """Returns a request that deletes the entry of a gateway; a missing entry is success."""
    values = {"family": _FAMILIES[len(gateway)], "ifindex": device.index}
    description = f'forget the MAC address of {_text(gateway)} on "{device.name}"'
    missing = (errno.ENOENT,)
    return Request(description, NeighbourMessage, RTM_DELNEIGH, NLM_F_ACK, values, [("NDA_DST", gateway)], missing)


def set_forwarding_request(device: Link, mac: bytes, node: bytes) -> Request:
    """Returns a request that sets the permanent entry of a MAC address: its frames go to the address `node`."""
    description = f'forward {format_mac(mac)} on "{device.name}" to {_text(node)}'
    attributes = [("NDA_LLADDR", mac), ("NDA_DST", node)]
    values = {**_bridge_values(device), "state": _NUD_PERMANENT}
    return Request(description, NeighbourMessage, RTM_NEWNEIGH, _SET_FLAGS, values, attributes)


def delete_forwarding_request(device: Link, mac: bytes) -> Request:
    """Returns a request that deletes the entry of a MAC address; a missing entry is success."""
    description = f'delete the forwarding entry of {format_mac(mac)} on "{device.name}"'
    missing = (errno.ENOENT,)
    values = _bridge_values(device)
    return Request(description, NeighbourMessage, RTM_DELNEIGH, NLM_F_ACK, values, [("NDA_LLADDR", mac)], missing)


def list_neighbours(socket: Socket, device: Link) -> dict[bytes, bytes]:
    """Returns the permanent MAC address of each gateway on a device; raises KernelError."""
    # The attribute filters in Linux 4.4 and later; struct ndmsg does not.
    request = _list_request("neighbours", device, {}, [("NDA_IFINDEX", device.index)])
    messages = [each for each in socket.dump(request, merge_key=_key) if is_neighbour(each, device.index)]
    return {gateway: mac for mac, gateway in map(addresses_of, messages)}


def list_forwarding(socket: Socket, device: Link) -> dict[bytes, bytes]:
    """Returns the node's address of each MAC address with a permanent entry on a device; raises KernelError."""
    request = _list_request("forwarding entries", device, {"family": AF_BRIDGE, "ifindex": device.index}, [])
    messages = [each for each in socket.dump(request, merge_key=_key) if is_forwarding(each, device.index)]
    return dict(map(addresses_of, messages))


def is_neighbour(message: DecodedMessage, ifindex: int) -> bool:
    """Returns whether a message of a dump or notification is about a permanent neighbour on a device."""
    if message["ifindex"] != ifindex or message["family"] not in _FAMILIES.values():
        return False
    return bool(message["state"] & _NUD_PERMANENT)


def is_forwarding(message: DecodedMessage, ifindex: int) -> bool:
    """Returns whether a message of a dump or notification is about a permanent forwarding entry on a device."""
    if message["ifindex"] != ifindex or message["family"] != AF_BRIDGE:
        return False
    return bool(message["state"] & (_NUD_PERMANENT | _NUD_NOARP))


def addresses_of(message: DecodedMessage) -> tuple[bytes, bytes]:
    """Returns the MAC address and the IP address of an entry, b"" for a missing one."""
    mac, address = message.get_attributes(_SPECS)
    return mac, address


def _key(message: DecodedMessage) -> object:
    return message["family"], message["ifindex"], addresses_of(message)


def _list_request(what: str, device: Link, values: dict[str, int], attributes: list[tuple[str, object]]) -> Request:
    description = f'list the {what} of "{device.name}"'
    return Request(description, NeighbourMessage, RTM_GETNEIGH, NLM_F_DUMP, values, attributes)


def _bridge_values(device: Link) -> dict[str, int]:
    return {"family": AF_BRIDGE, "ifindex": device.index, "flags": _NTF_SELF}


def _text(address: bytes) -> str:
    return inet_ntop(_FAMILIES[len(address)], address)
