"""Copies of a link's addresses, to be added again after the kernel has removed them.

A link that is set down loses its IPv6 addresses, unless keep_addr_on_down is set. A copy is the message of a dump, so
that flags and lifetimes are kept.

*_request functions return a Request and do no I/O; list_* functions send requests.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from socket import AF_INET6
from typing import NamedTuple

from cni.address import Network
from kernel.address import IFA_F_DADFAILED, IFA_F_TENTATIVE, RTM_GETADDR, RTM_NEWADDR
from kernel.codec_vrf import WholeAddressMessage
from kernel.link import Link
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Request, Socket
from kernel.wire import AnswerError, DecodedMessage

_SCOPE_LINK = 253  # linux/rtnetlink.h
_IFA_F_TEMPORARY, _IFA_F_NOPREFIXROUTE = 0x01, 0x200  # linux/if_addr.h
_FLAGS = struct.Struct("=I")


class AddressCopy(NamedTuple):
    """An address of a link: the fixed fields of its message, all its attributes, and its flags (IFA_F_*)."""

    values: Mapping[str, int]
    attributes: tuple[tuple[str, bytes], ...]
    flags: int

    @property
    def packed(self) -> bytes:
        """The address; raises AnswerError for a message without one."""
        named = dict(self.attributes)
        packed = named.get("IFA_LOCAL") or named.get("IFA_ADDRESS")
        if not packed:
            raise AnswerError("IFA_ADDRESS is missing")
        return packed

    @property
    def is_lost(self) -> bool:
        """Whether a link that is set down may lose it: IPv6, and not made by the kernel, which makes its own again."""
        is_link_local = self.values["scope"] == _SCOPE_LINK
        return self.values["family"] == AF_INET6 and not is_link_local and not self.flags & _IFA_F_TEMPORARY

    @property
    def is_usable(self) -> bool:
        """Whether duplicate address detection is complete, without a duplicate."""
        return not self.flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED)

    @property
    def connected_network(self) -> Network | None:
        """The network to which the kernel adds a route for this address, None if it adds none."""
        if self.flags & _IFA_F_NOPREFIXROUTE or self.values["scope"] == _SCOPE_LINK:
            return None
        packed = dict(self.attributes).get("IFA_ADDRESS") or self.packed
        try:
            return ip_network((packed, self.values["prefixlen"]), strict=False)
        except ValueError as error:
            raise AnswerError(str(error)) from error


def list_on_link(socket: Socket, link: Link) -> list[AddressCopy]:
    """Returns the addresses of a link; raises KernelError."""
    description = f'list the addresses of "{link.name}"'
    request = Request(description, WholeAddressMessage, RTM_GETADDR, NLM_F_DUMP, {"index": link.index})
    # Kernels before 4.20 do not filter.
    return [_copy(message) for message in socket.dump(request) if message["index"] == link.index]


def add_request(link: Link, copy: AddressCopy) -> Request:
    """Returns a request that adds an address of a link again; one that still exists is success."""
    description = f'add {ip_address(copy.packed)}/{copy.values["prefixlen"]} to "{link.name}" again'
    flags, attributes = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, list(copy.attributes)
    return Request(description, WholeAddressMessage, RTM_NEWADDR, flags, copy.values, attributes, (errno.EEXIST,))


def _copy(message: DecodedMessage) -> AddressCopy:
    attributes = tuple(message["attrs"])
    content = dict(attributes).get("IFA_FLAGS", b"")
    flags = _FLAGS.unpack(content)[0] if len(content) == _FLAGS.size else message["flags"]
    return AddressCopy(dict(message), attributes, flags)
