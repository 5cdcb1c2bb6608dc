"""DHCPv4 messages as values: the fields of RFC 2131, and options as RFC 2132 and RFC 3396 encode them.

One rule: bytes from the network become a Message or raise Malformed, in time proportional to their number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address

from process.values import dataclass

BOOTREQUEST, BOOTREPLY = 1, 2  # Message.op: from clients, from servers
MESSAGE_TYPE = 53  # the option that comes first
OVERLOAD = 52  # the option that says which other fields have options
NO_ADDRESS = IPv4Address(0)

_PAD, _END = 0, 255
_ETHERNET, _MAC_BYTES = 1, 6  # htype and hlen
_BROADCAST_FLAG = 0x8000
_COOKIE = b"\x63\x82\x53\x63"
# op, htype, hlen, hops, xid, secs, flags, ciaddr, yiaddr, siaddr, giaddr, chaddr, sname, file, cookie
_HEADER = struct.Struct("!4BIHH4s4s4s4s16s64s128s4s")
_MIN_BYTES = 300  # RFC 1542, section 2.1: old servers and relay agents drop shorter messages
_OPTION_MAX_BYTES = 255
_SECS_MAX = 0xFFFF
_FILE_HAS_OPTIONS, _SNAME_HAS_OPTIONS = 1, 2  # bits of option 52


class Malformed(ValueError):  # noqa: N818 - a state of the input, which callers count and drop
    """Bytes that violate their protocol; the text names the violation. The only exception of this plugin's parsers."""


@dataclass(frozen=True)
class Message:
    """A DHCPv4 message; `op` is BOOTREQUEST or BOOTREPLY, `chaddr` the client's MAC address, `secs` in seconds.

    `options` maps numbers to contents, in the order of the message. Neither option 52 nor pad and end are among them.
    """

    op: int
    xid: int
    chaddr: bytes
    options: Mapping[int, bytes]
    secs: int = 0
    broadcast: bool = False
    ciaddr: IPv4Address = NO_ADDRESS
    yiaddr: IPv4Address = NO_ADDRESS
    siaddr: IPv4Address = NO_ADDRESS
    giaddr: IPv4Address = NO_ADDRESS


def encode(message: Message) -> bytes:
    """Returns the bytes of a message: option 53 first, then the others in their order, padded to 300 bytes.

    A content of more than 255 bytes becomes several options (RFC 3396). Options 0 and 255, which have no content, are
    left out, as the reference plugin does. `secs` stays at its maximum when the field is too small.
    """
    addresses = (message.ciaddr.packed, message.yiaddr.packed, message.siaddr.packed, message.giaddr.packed)
    flags = _BROADCAST_FLAG if message.broadcast else 0
    parts = [
        _HEADER.pack(
            *(message.op, _ETHERNET, _MAC_BYTES, 0, message.xid, min(message.secs, _SECS_MAX), flags, *addresses),
            *(message.chaddr, b"", b"", _COOKIE),
        )
    ]
    for number in sorted(message.options, key=lambda number: number != MESSAGE_TYPE):  # the sort is stable
        if number not in (_PAD, _END):
            parts += _encode_option(number, message.options[number])
    parts.append(bytes((_END,)))
    return b"".join(parts).ljust(_MIN_BYTES, b"\0")


def _encode_option(number: int, content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content) or 1, _OPTION_MAX_BYTES):
        part = content[start : start + _OPTION_MAX_BYTES]
        yield bytes((number, len(part))) + part


def decode(data: bytes) -> Message:
    """Returns the message in the payload of a UDP datagram; raises Malformed.

    The parts of a repeated option are concatenated, first those of the options field, then those of the fields file
    and sname if option 52 declares that they contain options (RFC 3396, section 5). A missing end option is accepted.
    """
    if len(data) < _HEADER.size:
        raise Malformed(f"a DHCP message of {len(data)} bytes is too short")
    op, _, mac_bytes, _, xid, secs, flags, ciaddr, yiaddr, siaddr, giaddr, chaddr, sname, file, cookie = (
        _HEADER.unpack_from(data)
    )
    if cookie != _COOKIE:
        raise Malformed("the magic cookie of DHCP is missing")
    if op not in (BOOTREQUEST, BOOTREPLY):
        raise Malformed(f"op is {op}")
    if mac_bytes != _MAC_BYTES:
        raise Malformed(f"hlen is {mac_bytes}")
    return Message(
        op=op,
        xid=xid,
        chaddr=chaddr[:_MAC_BYTES],
        options=_decode_options(data[_HEADER.size :], file, sname),
        secs=secs,
        broadcast=bool(flags & _BROADCAST_FLAG),
        ciaddr=IPv4Address(ciaddr),
        yiaddr=IPv4Address(yiaddr),
        siaddr=IPv4Address(siaddr),
        giaddr=IPv4Address(giaddr),
    )


def _decode_options(data: bytes, file: bytes, sname: bytes) -> dict[int, bytes]:
    """Returns the options of the three fields; raises Malformed. Only the options field can declare the other two."""
    contents: dict[int, list[bytes]] = {}
    _read_options(data, contents)
    if OVERLOAD in contents:
        fields = _overloaded_fields(b"".join(contents[OVERLOAD]))
        if fields & _FILE_HAS_OPTIONS:
            _read_options(file, contents)
        if fields & _SNAME_HAS_OPTIONS:
            _read_options(sname, contents)
        del contents[OVERLOAD]
    return {number: b"".join(parts) for number, parts in contents.items()}


def _overloaded_fields(content: bytes) -> int:
    if content not in (b"\1", b"\2", b"\3"):
        raise Malformed("option 52 is not 1, 2 or 3")
    return content[0]


def _read_options(data: bytes, contents: dict[int, list[bytes]]) -> None:
    """Appends the contents of the options in a field to `contents`; raises Malformed for a truncated option."""
    position, end = 0, len(data)
    while position < end:
        number = data[position]
        if number == _END:
            return
        if number == _PAD:
            position += 1
            continue
        start = position + 2
        if start > end:
            raise Malformed(f"option {number} lacks its length")
        position = start + data[position + 1]
        if position > end:
            raise Malformed(f"option {number} is truncated")
        contents.setdefault(number, []).append(data[start:position])
