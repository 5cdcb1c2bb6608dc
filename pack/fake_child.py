"""The interface of plugins that create a single link, in the warm-up's fake kernel: macvlan, tap and similar kinds.

One rule: there is one such interface, NAME; it exists from its creation until clear().
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator

import kernel.link
import kernel.tap
from kernel.codec import LinkMessage
from kernel.codec_links import TunMessage
from kernel.rtnl import NLM_F_CREATE
from kernel.tap import TapOptions
from kernel.wire import Attributes, encode

NAME, INDEX = "net1", 4
_HEADER, _INT = struct.Struct("=IHHII"), struct.Struct("=i")
_INTERFACE = struct.Struct("=BxHiII")  # struct ifinfomsg
_NLMSG_ERROR = 2  # linux/netlink.h
_MAC = b"\x02\0\0\0\0\x02"
_TAP: Attributes = [("IFLA_TUN_TYPE", 2), ("IFLA_TUN_PERSIST", 1), ("IFLA_TUN_MULTI_QUEUE", 0)]

# The attributes of the message that created the interface.
_created: list[bytes] = []


def answers(kind: int, flags: int, sequence: int, request: bytes) -> Iterator[bytes]:
    """Yields the answer to a look-up of the interface, and stores it at its creation; nothing for other links."""
    if len(request) < _HEADER.size + _INTERFACE.size:  # another subsystem's message of the same type
        return
    _, _, index, _, _ = _INTERFACE.unpack_from(request, _HEADER.size)
    if index != INDEX and (index or f"{NAME}\0".encode() not in request):
        return
    if kind == kernel.link.RTM_NEWLINK and flags & NLM_F_CREATE:
        _created[:] = [request[_HEADER.size + _INTERFACE.size :]]
    elif kind == kernel.link.RTM_GETLINK and _created:
        yield _link(sequence)
    elif kind == kernel.link.RTM_GETLINK:
        yield _HEADER.pack(_HEADER.size + 4, _NLMSG_ERROR, 0, sequence, 0) + _INT.pack(-errno.ENODEV)


def create_tap(name: str, options: TapOptions) -> None:
    """Stores the tap device as the interface, as the ioctls of kernel.tap.create() do."""
    info = {"attrs": [("IFLA_INFO_KIND", kernel.tap.KIND), ("IFLA_INFO_DATA", {"attrs": _TAP})]}
    message = encode(TunMessage, (0, 0, 0), {}, [("IFLA_IFNAME", name), ("IFLA_LINKINFO", info)])
    _created[:] = [message[_HEADER.size + _INTERFACE.size :]]


def clear() -> None:
    """Deletes the interface."""
    _created.clear()


def _link(sequence: int) -> bytes:
    values = {"family": socket.AF_UNSPEC, "index": INDEX, "flags": kernel.link.IFF_UP}
    attributes = [("IFLA_ADDRESS", _MAC), ("IFLA_MTU", 1500), ("IFLA_LINK_NETNSID", 0), ("IFLA_OPERSTATE", 6)]
    answer = encode(LinkMessage, (kernel.link.RTM_NEWLINK, 0, sequence), values, attributes) + _created[0]
    return len(answer).to_bytes(4, "little") + answer[4:]
