"""IP addresses on links: listing, adding, removing.

*_request functions return a Request and do no I/O; list_* functions send requests.
"""

from __future__ import annotations

import errno
import socket as stdlib_socket
from collections.abc import Iterable
from ipaddress import IPv4Interface, IPv6Interface
from typing import NamedTuple

from cni.address import Cidr, format_ip
from kernel.codec import AddressMessage
from kernel.link import Link
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Request, Socket
from kernel.wire import AnswerError, Attributes, DecodedMessage, attribute_specs

RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTNLGRP_IPV6_IFADDR = 9
IFA_F_NODAD, IFA_F_DADFAILED, IFA_F_TENTATIVE = 0x02, 0x08, 0x40  # linux/if_addr.h
_ADDRESS_SPECS = attribute_specs(AddressMessage, IFA_LOCAL=b"", IFA_ADDRESS=b"", IFA_FLAGS=0)


class AssignedAddress(NamedTuple):
    """An address on a link: its bytes, prefix length and IFA_F_* flags."""

    packed: bytes
    prefix: int
    flags: int

    @property
    def address(self) -> Cidr:
        """The address as an ipaddress object; raises AnswerError for an invalid one."""
        try:
            if len(self.packed) == 4:
                return IPv4Interface((self.packed, self.prefix))
            return IPv6Interface((self.packed, self.prefix))
        except ValueError as error:
            raise AnswerError(str(error)) from error


def key(address: Cidr) -> tuple[bytes, int]:
    """Returns (bytes, prefix length), comparable with AssignedAddress[:2] without creating ipaddress objects."""
    return address.packed, address.network.prefixlen


def keys(assigned: Iterable[AssignedAddress]) -> set[tuple[bytes, int]]:
    """Returns the key() of each address."""
    return {item[:2] for item in assigned}


def list_on_link(socket: Socket, link: Link, *, family: int = stdlib_socket.AF_UNSPEC) -> list[AssignedAddress]:
    """Returns the addresses of a link, of one family (AF_INET, AF_INET6) or both; raises KernelError."""
    values = {"family": family, "index": link.index}
    request = Request(f'list the addresses of "{link.name}"', AddressMessage, RTM_GETADDR, NLM_F_DUMP, values)
    # Kernels before 4.20 do not filter.
    return [_assigned(message) for message in socket.dump(request) if message["index"] == link.index]


def list_elsewhere(socket: Socket, link: Link | None) -> list[AssignedAddress]:
    """Returns the addresses of all links except `link`; raises KernelError."""
    request = Request("list the addresses", AddressMessage, RTM_GETADDR, NLM_F_DUMP)
    return [_assigned(message) for message in socket.dump(request) if not link or message["index"] != link.index]


def list_by_link(socket: Socket) -> dict[int, list[AssignedAddress]]:
    """Returns the addresses of the namespace by the ifindex of their links; raises KernelError."""
    by_link: dict[int, list[AssignedAddress]] = {}
    for message in socket.dump(Request("list the addresses", AddressMessage, RTM_GETADDR, NLM_F_DUMP)):
        by_link.setdefault(message["index"], []).append(_assigned(message))
    return by_link


def add_request(link: Link, address: Cidr, *, exists_ok: bool = False, dad: bool = True) -> Request:
    """Returns a request that adds an address of global scope, as the reference plugins do.

    An IPv4 address with a prefix shorter than 31 bits gets a broadcast address. Without `dad` the kernel skips
    duplicate address detection, so that an IPv6 address is usable at once.
    """
    description = f'add IP addr {format_ip(address)} to "{link.name}"'
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    ignore = (errno.EEXIST,) if exists_ok else ()
    values = _values(link, address)
    if not dad and isinstance(address, IPv6Interface):
        values["flags"] = IFA_F_NODAD
    return Request(description, AddressMessage, RTM_NEWADDR, flags, values, _attributes(address), ignore)


def remove_request(link: Link, address: Cidr) -> Request:
    """Returns a request that removes an address; a missing one is success."""
    description = f'remove IP address {address} from "{link.name}"'
    packed: Attributes = [("IFA_LOCAL", address.packed)]
    values = _values(link, address)
    return Request(description, AddressMessage, RTM_DELADDR, NLM_F_ACK, values, packed, (errno.EADDRNOTAVAIL,))


def _assigned(message: DecodedMessage) -> AssignedAddress:
    local, peer, flags = message.get_attributes(_ADDRESS_SPECS)
    if not (packed := local or peer):
        raise AnswerError("IFA_ADDRESS is missing")
    return AssignedAddress(packed, message["prefixlen"], flags or message["flags"])


def _values(link: Link, address: Cidr) -> dict[str, int]:
    family = stdlib_socket.AF_INET if isinstance(address, IPv4Interface) else stdlib_socket.AF_INET6
    return {"family": family, "prefixlen": address.network.prefixlen, "index": link.index}


def _attributes(address: Cidr) -> Attributes:
    packed, prefix = key(address)
    attributes: Attributes = [("IFA_LOCAL", packed), ("IFA_ADDRESS", packed)]
    if len(packed) == 4 and prefix < 31:
        broadcast = int.from_bytes(packed, "big") | (1 << 32 - prefix) - 1
        attributes.append(("IFA_BROADCAST", broadcast.to_bytes(4, "big")))
    return attributes
