"""Addresses of a link as values that can be stored, to add the same addresses again.

Addresses with a lifetime (by DHCP or a router's advertisement) and IPv6's link-local ones are not among them: a program
or the kernel adds them again.
"""

from __future__ import annotations

import errno
import socket as stdlib_socket
from typing import NamedTuple

from cni.address import parse_ip
from kernel.address import RTM_GETADDR, RTM_NEWADDR
from kernel.codec import AddressMessage
from kernel.link import Link
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Request, Socket
from kernel.wire import Attributes, DecodedMessage, attribute_specs

# linux/if_addr.h: NODAD, MANAGETEMPADDR, NOPREFIXROUTE and MCAUTOJOIN are settings, other flags are states.
_PERMANENT, _SETTINGS = 0x80, 0x02 | 0x100 | 0x200 | 0x400
_SCOPE_LINK = 253  # linux/rtnetlink.h
_SPECS = attribute_specs(AddressMessage, IFA_LOCAL=b"", IFA_ADDRESS=b"", IFA_BROADCAST=b"", IFA_FLAGS=0)


class SavedAddress(NamedTuple):
    """An address: its text, prefix length, scope and flags; `peer` and `broadcast` are "" without one."""

    local: str
    prefix: int
    scope: int = 0
    flags: int = 0
    peer: str = ""
    broadcast: str = ""


def list_on_link(socket: Socket, link: Link) -> tuple[SavedAddress, ...]:
    """Returns the addresses of a link that nothing else would add again; raises KernelError."""
    request = Request(
        f'list the addresses of "{link.name}"', AddressMessage, RTM_GETADDR, NLM_F_DUMP, {"index": link.index}
    )
    # Kernels before 4.20 do not filter.
    messages = [message for message in socket.dump(request) if message["index"] == link.index]
    return tuple(address for address in map(_from_message, messages) if address)


def add_request(link: Link, address: SavedAddress) -> Request:
    """Returns a request that adds an address again; an existing one is success. Raises ValueError."""
    local = parse_ip(address.local).packed
    values = {
        "family": stdlib_socket.AF_INET if len(local) == 4 else stdlib_socket.AF_INET6,
        "prefixlen": address.prefix,
        "scope": address.scope,
        "index": link.index,
    }
    peer = parse_ip(address.peer).packed if address.peer else local
    attributes: Attributes = [("IFA_LOCAL", local), ("IFA_ADDRESS", peer), ("IFA_FLAGS", address.flags)]
    if address.broadcast:
        attributes.append(("IFA_BROADCAST", parse_ip(address.broadcast).packed))
    description = f'add IP addr {address.local}/{address.prefix} to "{link.name}"'
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    return Request(description, AddressMessage, RTM_NEWADDR, flags, values, attributes, (errno.EEXIST,))


def _from_message(message: DecodedMessage) -> SavedAddress | None:
    local, peer, broadcast, flags = message.get_attributes(_SPECS)
    flags = flags or message["flags"]
    is_ipv6_link_local = message["family"] == stdlib_socket.AF_INET6 and message["scope"] == _SCOPE_LINK
    text = _text(local or peer)
    if not flags & _PERMANENT or is_ipv6_link_local or not text:
        return None
    return SavedAddress(
        text,
        message["prefixlen"],
        message["scope"],
        flags & _SETTINGS,
        _text(peer) if local and peer != local else "",
        _text(broadcast),
    )


def _text(packed: bytes) -> str:
    family = stdlib_socket.AF_INET if len(packed) == 4 else stdlib_socket.AF_INET6
    return stdlib_socket.inet_ntop(family, packed) if len(packed) in (4, 16) else ""
