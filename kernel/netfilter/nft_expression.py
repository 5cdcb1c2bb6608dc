"""The expressions of nftables rules: loading values into registers, comparing them, verdicts and statements.

This module returns expressions as bytes, with their attributes in the order in which the `nft` tool sends them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

# linux/netfilter/nf_tables.h
EQ, NEQ, _LTE, _GTE = 0, 1, 3, 5  # NFT_CMP_*
LINK_HEADER, NETWORK_HEADER, TRANSPORT_HEADER = 0, 1, 2  # NFT_PAYLOAD_*
META_MARK, META_IIF, META_OIF, META_IIFNAME, META_OIFNAME, META_NFPROTO, META_L4PROTO = 3, 4, 5, 6, 7, 15, 16
CT_STATE, CT_DIRECTION, CT_STATUS, CT_MARK = 0, 1, 2, 3
REPLY = 1  # IP_CT_DIR_REPLY, a value of CT_DIRECTION
FIB_SADDR, FIB_DADDR = 1, 2  # NFTA_FIB_F_*
LOCAL = 2  # RTN_LOCAL (linux/rtnetlink.h)
_VERDICT_REGISTER, _REGISTER, SECOND_REGISTER = 0, 1, 2  # NFT_REG_VERDICT, NFT_REG_1, NFT_REG_2
_RANGE_NEQ = 1
_FIB_RESULT_ADDRTYPE = 3
_NAT_DNAT = 1
_COUNTER_OBJECT = 1  # NFT_OBJECT_COUNTER
LIST_ELEM, NAME, DATA, DATA_VALUE, _DATA_VERDICT = 1, 1, 2, 1, 2
NESTED, TYPE_MASK = 0x8000, 0x3FFF  # linux/netlink.h

ATTRIBUTE = struct.Struct("=HH")
_PADDING = (b"", bytes(3), bytes(2), bytes(1))


def payload(header: int, offset: int, length: int, register: int = _REGISTER) -> bytes:
    """Loads bytes of a packet's header."""
    return _expression("payload", _number(1, register), _number(2, header), _number(3, offset), _number(4, length))


def meta(key: int, register: int = _REGISTER) -> bytes:
    """Loads a value of the kernel's about the packet, such as its mark or its interface."""
    return _expression("meta", _number(2, key), _number(1, register))


def meta_set(key: int) -> bytes:
    """Stores the loaded value in the packet's metadata."""
    return _expression("meta", _number(2, key), _number(3, _REGISTER))


def ct(key: int) -> bytes:
    """Loads a value of connection tracking about the packet's connection."""
    return _expression("ct", _number(2, key), _number(1, _REGISTER))


def fib_type(flag: int) -> bytes:
    """Loads the type that one of the packet's addresses has for this host (RTN_*, linux/rtnetlink.h)."""
    return _expression("fib", _number(3, flag), _number(2, _FIB_RESULT_ADDRTYPE), _number(1, _REGISTER))


def compare(operation: int, data: bytes) -> bytes:
    """Continues the rule if the loaded value is (EQ) or is not (NEQ) `data`."""
    return _expression("cmp", _number(1, _REGISTER), _number(2, operation), value(3, data))


def between(operation: int, first: bytes, last: bytes) -> bytes:
    """Continues the rule if the loaded value is (EQ) or is not (NEQ) between `first` and `last`."""
    if operation == EQ:
        return compare(_GTE, first) + compare(_LTE, last)
    return _expression("range", _number(1, _REGISTER), _number(2, _RANGE_NEQ), value(3, first), value(4, last))


def lookup(name: str) -> bytes:
    """Continues the rule if the values loaded into consecutive registers are an element of a set."""
    return _expression("lookup", _number(2, _REGISTER), attribute(1, name.encode() + b"\0"))


def lookup_verdict(name: str) -> bytes:
    """Ends the rule with the verdict that a map has for the loaded value; continues after the rule without one."""
    names = attribute(1, name.encode() + b"\0")
    return _expression("lookup", _number(2, _REGISTER), names, _number(3, _VERDICT_REGISTER))


def count(name: str) -> bytes:
    """Counts the packet in a named counter."""
    return _expression("objref", _number(1, _COUNTER_OBJECT), attribute(2, name.encode() + b"\0"))


def bitwise(mask: bytes, flipped: bytes = b"") -> bytes:
    """Keeps the bits of `mask` of the loaded value, then flips those of `flipped`."""
    return _expression(
        "bitwise",
        _number(1, _REGISTER),
        _number(2, _REGISTER),
        _number(3, len(mask)),
        value(4, mask),
        value(5, flipped or bytes(len(mask))),
    )


def dnat(family: int, address: bytes, port: bytes) -> bytes:
    """Changes the destination of the packet's connection (three expressions).

    nft also sends a flag for the port; the kernel does not need it, and since 5.7 lists more flags than were sent.
    """
    first = _expression("immediate", _number(1, _REGISTER), value(2, address))
    second = _expression("immediate", _number(1, SECOND_REGISTER), value(2, port))
    registers = _number(3, _REGISTER), _number(5, SECOND_REGISTER)
    return first + second + _expression("nat", _number(1, _NAT_DNAT), _number(2, family), *registers)


def masquerade() -> bytes:
    """Changes the source of the packet's connection to the address of the outgoing interface."""
    return _expression("masq")


def extension(kind: str, name: str, revision: int, info: bytes) -> bytes:
    """Applies a "match" or "target" of iptables; `info` is its struct, padded to 64-bit words as in the kernel."""
    return _expression(
        kind, attribute(1, name.encode() + b"\0"), _number(2, revision), attribute(3, info + bytes(-len(info) % 8))
    )


def compatibility(protocol: int) -> bytes:
    """Returns the content of a rule's attribute for the protocol (IPPROTO_*) of its extensions."""
    return _number(1, protocol) + _number(2, 0)


def verdict(code: int, chain: str = "") -> bytes:
    """Ends the rule with a verdict; `chain` is the target of a jump or goto."""
    return _expression("immediate", _number(1, _VERDICT_REGISTER), verdict_data(2, code, chain))


def verdict_data(kind: int, code: int, chain: str = "") -> bytes:
    """Returns one netlink attribute that contains a verdict."""
    target = [attribute(2, chain.encode() + b"\0")] if chain else []
    return nested(kind, nested(_DATA_VERDICT, _number(1, code), *target))


def immediate_data(data: bytes) -> bytes:
    """Loads a constant."""
    return _expression("immediate", _number(1, _REGISTER), value(2, data))


def attribute(kind: int, content: bytes) -> bytes:
    """Returns one netlink attribute, padded."""
    size = len(content)
    start = ATTRIBUTE.pack(ATTRIBUTE.size + size, kind)
    return start + content if size % 4 == 0 else start + content + _PADDING[size % 4]


def nested(kind: int, *contents: bytes) -> bytes:
    """Returns one netlink attribute that contains other attributes."""
    return attribute(kind | NESTED, b"".join(contents))


def value(kind: int, data: bytes) -> bytes:
    """Returns one netlink attribute that contains data to compare with or to load."""
    inner = attribute(DATA_VALUE, data)
    return ATTRIBUTE.pack(ATTRIBUTE.size + len(inner), kind | NESTED) + inner


def attributes(data: bytes, offset: int = 0) -> Iterator[tuple[int, bool, bytes]]:
    """Yields type, nested flag and content of the attributes in `data`, from `offset` on."""
    while offset + ATTRIBUTE.size <= len(data):
        length, kind = ATTRIBUTE.unpack_from(data, offset)
        yield kind & TYPE_MASK, bool(kind & NESTED), data[offset + ATTRIBUTE.size : offset + length]
        offset += max(ATTRIBUTE.size, (length + 3) & ~3)


def parse_content(data: bytes) -> dict[int, bytes]:
    """Returns the contents of the attributes in `data` by their type."""
    return {kind: content for kind, _, content in attributes(data)}


def _number(kind: int, number: int) -> bytes:
    return _NUMBER_STARTS[kind] + number.to_bytes(4, "big", signed=True)


def _expression(name: str, *attributes: bytes) -> bytes:
    """Returns the same bytes as `nested` and `attribute` would, but faster: each rule has some ten expressions."""
    content = b"".join(attributes)
    start = _EXPRESSION_STARTS[name]
    size = len(content) + ATTRIBUTE.size
    whole = ATTRIBUTE.pack(ATTRIBUTE.size + len(start) + size, LIST_ELEM | NESTED)
    return whole + start + ATTRIBUTE.pack(size, DATA | NESTED) + content


_NUMBER_STARTS = [ATTRIBUTE.pack(8, kind) for kind in range(10)]
_EXPRESSION_STARTS = {
    name: attribute(NAME, name.encode() + b"\0")
    for name in (
        *("bitwise", "cmp", "counter", "ct", "fib", "immediate", "lookup", "masq", "match", "meta", "nat", "payload"),
        *("objref", "range", "target"),
    )
}


COUNTER = _expression("counter", attribute(1, bytes(8)), attribute(2, bytes(8)))  # starts at 0
ANY_COUNTER = _expression("counter")  # for comparisons: equals a counter of any value
