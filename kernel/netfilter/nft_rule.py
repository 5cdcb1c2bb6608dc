"""Builds the content of nftables rules as the `nft` tool does, and parses it: matches, verdicts, comments.

This module is pure. A rule is the concatenated bytes of its expressions; each function's docstring has the text that
`nft list` prints for them.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address
from os import fsencode
from typing import NamedTuple

from _podwire import same_attributes

from cni.address import Address, Network
from kernel.netfilter import nft_expression as expression
from kernel.netfilter.nft_expression import ATTRIBUTE, DATA_VALUE, EQ, NEQ, parse_content

_NF_DROP, _NF_ACCEPT, _JUMP, GOTO, _RETURN = 0, 1, -3, -4, -5  # linux/netfilter/nf_tables.h
_IFNAMSIZ = 16
# linux/netfilter/nf_conntrack_common.h
ESTABLISHED, RELATED = 1 << 1, 1 << 2  # NF_CT_STATE_BIT
EXPECTED = 1  # IPS_EXPECTED: a connection that a helper expected, such as FTP's data
_NFPROTO = {4: 2, 6: 10}  # by IP version (linux/netfilter.h)
_OF_VERSION = {
    version: expression.meta(expression.META_NFPROTO) + expression.compare(EQ, bytes([number]))
    for version, number in _NFPROTO.items()
}
_SADDR = {4: (12, 4), 6: (8, 16)}  # offset and length in the IP header, by version
_DADDR = {4: (16, 4), 6: (24, 16)}
_DPORT = (expression.TRANSPORT_HEADER, 2, 2)
_L4PROTO = {4: (9, 1), 6: (6, 1)}  # `ip protocol`, `ip6 nexthdr`
PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132}  # IPPROTO_* (linux/in.h)
_LOAD_DPORT = expression.payload(*_DPORT)
_TRANSPORT = {
    name: expression.meta(expression.META_L4PROTO) + expression.compare(EQ, bytes([number]))
    for name, number in PROTOCOLS.items()
}

# The loading expressions, with the attributes that identify the field; the fields with protocol and destination.
_LOADS = {b"payload\0": (2, 3, 4), b"meta\0": (2,)}
_PROTOCOL_AT = ((expression.META_L4PROTO,), *((expression.NETWORK_HEADER, *field) for field in _L4PROTO.values()))
_ADDRESS_AT = tuple((expression.NETWORK_HEADER, *field) for field in _DADDR.values())
_DESTINATION_AT = frozenset((*_PROTOCOL_AT, *_ADDRESS_AT, _DPORT))
_ACTIONS = (b"immediate\0", b"nat\0", b"masq\0", b"counter\0", b"log\0")  # expressions that match nothing
_BY_NUMBER = {bytes([number]): name for name, number in PROTOCOLS.items()}
_NUMBER = struct.Struct(">I")
# `compare` in a message: the value's attribute in one of type 3, which the kernel sends without the nested flag.
_COMPARED = re.compile(
    re.escape(struct.pack("=H", 12)) + b"\x03[\0\x80]" + re.escape(ATTRIBUTE.pack(6, DATA_VALUE)) + b"(..)", re.DOTALL
)

_UDATA_COMMENT = 0  # NFTNL_UDATA_RULE_COMMENT, and the same for tables and chains (libnftnl)
COMMENT_MAX = 128  # bytes that nft accepts (NFTNL_UDATA_COMMENT_MAXLEN)
USERDATA_MAX = 256  # bytes that the kernel accepts (NFT_USERDATA_MAXLEN)


def of_version(version: int) -> bytes:
    """Matches packets of an IP version, as nft does before a rule's first `ip` or `ip6` in a table of family inet."""
    return _OF_VERSION[version]


def source(where: Address | Network, *, positive: bool = True) -> bytes:
    """Matches `ip saddr <address or network>` (or ip6), or `ip saddr != ...` if not `positive`."""
    return _address(_SADDR, where, positive)


def destination(where: Address | Network, *, positive: bool = True) -> bytes:
    """Matches `ip daddr <address or network>` (or ip6), or `ip daddr != ...` if not `positive`."""
    return _address(_DADDR, where, positive)


def _address(field: dict[int, tuple[int, int]], where: Address | Network, positive: bool) -> bytes:
    """Compares only the bytes of the prefix if its length is a multiple of 8, as nft does."""
    offset, length = field[where.version]
    operation = EQ if positive else NEQ
    if isinstance(where, (IPv4Network, IPv6Network)):
        packed, bits, mask = where.network_address.packed, where.prefixlen, where.netmask.packed
    else:
        packed, bits, mask = where.packed, length * 8, b""
    whole, rest = divmod(bits, 8)
    if whole and not rest:
        load = expression.payload(expression.NETWORK_HEADER, offset, whole)
        return load + expression.compare(operation, packed[:whole])
    load = expression.payload(expression.NETWORK_HEADER, offset, length)
    return load + expression.bitwise(mask) + expression.compare(operation, packed)


def source_range(first: Address, last: Address, *, positive: bool = True) -> bytes:
    """Matches `ip saddr <first>-<last>` (or ip6), or `ip saddr != ...` if not `positive`."""
    return _addresses(_SADDR, first, last, positive)


def destination_range(first: Address, last: Address, *, positive: bool = True) -> bytes:
    """Matches `ip daddr <first>-<last>` (or ip6), or `ip daddr != ...` if not `positive`."""
    return _addresses(_DADDR, first, last, positive)


def _addresses(field: dict[int, tuple[int, int]], first: Address, last: Address, positive: bool) -> bytes:
    load = expression.payload(expression.NETWORK_HEADER, *field[first.version])
    return load + expression.between(EQ if positive else NEQ, first.packed, last.packed)


def from_interface(name: str) -> bytes:
    """Matches `iifname "<name>"`."""
    return expression.meta(expression.META_IIFNAME) + expression.compare(EQ, fsencode(name).ljust(_IFNAMSIZ, b"\0"))


def destination_in(version: int, name: str) -> bytes:
    """Matches `ip daddr @<name>` (or ip6) after another `ip` match."""
    return expression.payload(expression.NETWORK_HEADER, *_DADDR[version]) + expression.lookup(name)


def state(states: int) -> bytes:
    """Matches packets of connections in one of the states, such as ESTABLISHED | RELATED."""
    return _any_bit(expression.CT_STATE, states)


def status(bits: int) -> bytes:
    """Matches packets of connections with one of the status bits, such as EXPECTED."""
    return _any_bit(expression.CT_STATUS, bits)


def _any_bit(key: int, bits: int) -> bytes:
    return expression.ct(key) + expression.bitwise(_bits(bits)) + expression.compare(NEQ, bytes(4))


def transport(protocol: str) -> bytes:
    """Matches `meta l4proto <protocol>`, as nft does before a rule's first `tcp` (or another of PROTOCOLS)."""
    return _TRANSPORT[protocol]


def destination_port(port: int) -> bytes:
    """Matches `th dport <port>`; after `transport` it is `tcp dport <port>`."""
    return _LOAD_DPORT + expression.compare(EQ, port.to_bytes(2, "big"))


def to_this_host() -> bytes:
    """Matches `fib daddr type local`."""
    local = expression.LOCAL.to_bytes(4, sys.byteorder)
    return expression.fib_type(expression.FIB_DADDR) + expression.compare(EQ, local)


def mark_statement(bit: int) -> bytes:
    """Sets a bit of the packet's mark: `meta mark set meta mark | <1 << bit>`."""
    load, store = expression.meta(expression.META_MARK), expression.meta_set(expression.META_MARK)
    return load + expression.bitwise(_bits(~(1 << bit)), _bits(1 << bit)) + store


def mark_match(bit: int) -> bytes:
    """Matches `meta mark & <1 << bit> == <1 << bit>`."""
    set_bit = _bits(1 << bit)
    return expression.meta(expression.META_MARK) + expression.bitwise(set_bit) + expression.compare(EQ, set_bit)


def _bits(mask: int) -> bytes:
    return (mask & 0xFFFFFFFF).to_bytes(4, sys.byteorder)


def dnat(address: Address, port: int) -> bytes:
    """Forwards the packet's connection to another address: `dnat to <address>:<port>`."""
    return expression.dnat(_NFPROTO[address.version], address.packed, port.to_bytes(2, "big"))


def compared_value(data: bytes) -> bytes:
    """Returns the bytes in every rule that compares a field with `data`, for searching messages."""
    return expression.attribute(DATA_VALUE, data)


def compared_byte_pairs(message: bytes) -> list[bytes]:
    """Returns all two-byte values that the rule in `message` compares a field with, such as ports.

    Takes 1 us; decoding the message takes 50 us.
    """
    values: list[bytes] = _COMPARED.findall(message)
    return values


def ether_source(mac: bytes) -> bytes:
    """Matches `ether saddr <mac>` in a table of family bridge."""
    return expression.payload(expression.LINK_HEADER, 6, 6) + expression.compare(EQ, mac)


def masquerade() -> bytes:
    """Changes the source of the packet's connection to the address of the outgoing interface: `masquerade`."""
    return expression.masquerade()


def jump(chain: str) -> bytes:
    """Continues in `chain` and returns afterwards."""
    return expression.verdict(_JUMP, chain)


def goto(chain: str) -> bytes:
    """Continues in `chain` without returning."""
    return expression.verdict(GOTO, chain)


def jump_pattern(start: str) -> re.Pattern[bytes]:
    """Returns a pattern for messages; its group is the target of a jump or goto whose name is `start` and hex digits.

    It matches the verdict, not the name alone, which may also end a comment.
    """
    codes = b"|".join(re.escape(code.to_bytes(4, "big", signed=True)) for code in (_JUMP, GOTO))
    name = re.escape(start).encode() + rb"[0-9a-f]+"
    # NFTA_VERDICT_CODE, then NFTA_VERDICT_CHAIN.
    return re.compile(rb"\x08\0\x01\0(?:" + codes + rb")..\x02\0(" + name + rb")\0", re.DOTALL)


def comment_userdata(text: str, *further: tuple[int, bytes]) -> bytes:
    """Returns the userdata of a rule, table or chain: a comment, truncated to nft's limit, and `further` items.

    Double quotes are removed, since `nft` cannot load a listing that has them in comments. The items are (type, bytes);
    nft ignores types that it does not know.
    """
    items = [(_UDATA_COMMENT, fsencode(text.replace('"', ""))[:COMMENT_MAX] + b"\0"), *further]
    return b"".join(bytes([kind, len(value)]) + value for kind, value in items)


def parse_userdata(data: bytes) -> dict[int, bytes]:
    """Returns the items of a rule's userdata by type; a truncated item has fewer bytes."""
    values = {}
    while len(data) >= 2:
        values[data[0]] = data[2 : 2 + data[1]]
        data = data[2 + data[1] :]
    return values


def parse_comment(data: bytes) -> str:
    """Returns the comment in a rule's userdata, "" when there is none."""
    return parse_userdata(data).get(_UDATA_COMMENT, b"").rstrip(b"\0").decode(errors="replace")


class MatchedDestination(NamedTuple):
    """The destination that a rule matches; "", 0 and None for parts that it does not compare for equality.

    `other_matches`: the expressions of all other matches.
    """

    protocol: str
    port: int
    address: Address | None
    other_matches: bytes


def parse_destination(expressions: bytes) -> MatchedDestination:
    """Parses the destination that a rule matches; the rule may be built here or by any version of nft, or invalid."""
    loaded: tuple[int, ...] = ()
    values: dict[tuple[int, ...], bytes] = {}
    other_matches, load = b"", b""  # `load`: its value is not compared yet
    for part in split_expressions(expressions):
        content = parse_content(parse_content(part).get(expression.LIST_ELEM, b""))
        name, fields = content.get(expression.NAME, b""), parse_content(content.get(expression.DATA, b""))
        if (
            name == b"cmp\0"
            and fields.get(2) == _NUMBER.pack(EQ)
            and loaded in _DESTINATION_AT
            and loaded not in values
        ):
            values[loaded] = parse_content(fields.get(3, b"")).get(DATA_VALUE, b"")
            load = b""
        elif name in _LOADS:
            loaded = tuple(_NUMBER.unpack(fields[key])[0] for key in _LOADS[name] if len(fields.get(key, b"")) == 4)
            other_matches, load = other_matches + load, part
        else:
            loaded = loaded if name == b"cmp\0" else ()
            if name not in _ACTIONS:
                other_matches, load = other_matches + load + part, b""
    protocol = next((_BY_NUMBER[values[at]] for at in _PROTOCOL_AT if values.get(at) in _BY_NUMBER), "")
    address = next((values[at] for at in _ADDRESS_AT if len(values.get(at, b"")) == at[2]), b"")
    port = int.from_bytes(values.get(_DPORT, b"")[:2], "big")
    return MatchedDestination(protocol, port, ip_address(address) if address else None, other_matches + load)


def split_expressions(expressions: bytes) -> list[bytes]:
    """Splits a rule into its expressions, which concatenated are the rule."""
    values, offset = [], 0
    while offset + ATTRIBUTE.size <= len(expressions):
        length = max(ATTRIBUTE.size, (ATTRIBUTE.unpack_from(expressions, offset)[0] + 3) & ~3)
        values.append(expressions[offset : offset + length])
        offset += length
    return values


def parse_expressions(expressions: bytes) -> Iterator[tuple[str, dict[int, bytes]]]:
    """Yields name and attributes of each expression of a rule."""
    for part in split_expressions(expressions):
        content = parse_content(parse_content(part).get(expression.LIST_ELEM, b""))
        name = content.get(expression.NAME, b"").rstrip(b"\0")
        yield name.decode("ascii", "replace"), parse_content(content.get(expression.DATA, b""))


def is_same_rule(desired: bytes, existing: bytes) -> bool:
    """Returns whether the kernel's rule equals the one built here.

    Both must have the same expressions in the same order. The kernel lists attributes in another order and adds
    defaults, more with each version: `existing` may have more attributes than `desired`.
    """
    is_same: bool = same_attributes(desired, existing)
    return is_same


def is_any_of(desired: Iterable[bytes], existing: bytes) -> bool:
    """Returns whether the kernel's rule equals one of the rules built here."""
    return any(is_same_rule(expressions, existing) for expressions in desired)


ACCEPT, DROP, RETURN = (expression.verdict(code) for code in (_NF_ACCEPT, _NF_DROP, _RETURN))
