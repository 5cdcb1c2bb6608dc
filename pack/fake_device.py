"""The device of the warm-up's fake kernel that host-device moves between host and sandbox."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

import kernel.link
from kernel.codec import LinkMessage
from kernel.wire import Attributes, encode

ON_HOST, IN_SANDBOX = "hd0", "net9"
INDEX = 9
_HEADER, _INT = struct.Struct("=IHHII"), struct.Struct("=i")
_NLMSG_ERROR = 2  # linux/netlink.h
_INDEX_OFFSET, _ATTRIBUTES_OFFSET = 4, 16  # in struct ifinfomsg
_NETNS_FD = b"\x08\0\x1c\0"  # IFLA_NET_NS_FD, as the first attribute

# The name under which the device exists, in a list because a module has no variables.
_present = [ON_HOST]


def is_meant(kind: int, content: bytes) -> bool:
    """Returns whether a request is for the device, by name or index, or lists all links."""
    # Other protocols use the same numbers, with shorter messages.
    if kind not in (kernel.link.RTM_GETLINK, kernel.link.RTM_NEWLINK) or len(content) < _ATTRIBUTES_OFFSET:
        return False
    (index,) = _INT.unpack_from(content, _INDEX_OFFSET)
    named = any(name.encode() + b"\0" in content for name in (ON_HOST, IN_SANDBOX))
    return index == INDEX or (not index and (named or len(content) == _ATTRIBUTES_OFFSET))


def answers(kind: int, header: tuple[int, int, int], content: bytes, mac: bytes) -> Iterator[bytes]:
    """Yields the answers to a request for the device but its acknowledgement; a move changes where it is."""
    if kind == kernel.link.RTM_NEWLINK:
        if content[_ATTRIBUTES_OFFSET:].startswith(_NETNS_FD):
            _present[0] = IN_SANDBOX if _present[0] == ON_HOST else ON_HOST
        return
    other = IN_SANDBOX if _present[0] == ON_HOST else ON_HOST
    if other.encode() + b"\0" in content:
        yield _HEADER.pack(_HEADER.size + 4, _NLMSG_ERROR, *header) + _INT.pack(-errno.ENODEV)
        return
    attributes: Attributes = [
        ("IFLA_ADDRESS", mac),
        ("IFLA_IFNAME", _present[0]),
        ("IFLA_MTU", 1500),
        ("IFLA_OPERSTATE", kernel.link.OPERSTATE_UP),
        ("IFLA_IFALIAS", "" if _present[0] == ON_HOST else ON_HOST),
    ]
    values = {"index": INDEX, "flags": kernel.link.IFF_UP}
    yield encode(LinkMessage, (kernel.link.RTM_NEWLINK, *header[:2]), values, attributes)
