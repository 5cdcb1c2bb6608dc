"""Compiles a rule, in the form that `nft list` prints, to its expressions. Pure.

It supports only the fields and statements of podwire's tables. Like the `nft` tool, it adds the matches of protocols
that a field needs, such as the match of the IP version before the first `ip` field of a rule.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from kernel.netfilter import nft, nft_rule
from kernel.netfilter import nft_expression as expression
from kernel.netfilter.nft_expression import EQ, LINK_HEADER, NETWORK_HEADER, TRANSPORT_HEADER

_FIRST_REGISTER, _FIRST_REGISTER32 = 1, 8  # NFT_REG_1 (16 bytes), and NFT_REG32_00, its first 4 bytes
_ETHER_TYPES = {"ip": 0x0800, "ip6": 0x86DD, "arp": 0x0806}
_ICMPV6_TYPES = {"nd-router-advert": 134, "nd-neighbor-advert": 136, "mld2-listener-report": 143}
_NUMBERS = {**nft_rule.PROTOCOLS, "ipv6-icmp": 58, **_ETHER_TYPES, **_ICMPV6_TYPES}


class _Field(NamedTuple):
    """A field of a packet: a builder of the expression that loads it, its size, and the protocols that it requires."""

    load: Callable[[int], bytes]
    size: int
    protocols: tuple[str, ...] = ()


def _meta(key: int, size: int) -> _Field:
    return _Field(lambda register: expression.meta(key, register), size)


def _payload(header: int, offset: int, size: int, *protocols: str) -> _Field:
    return _Field(lambda register: expression.payload(header, offset, size, register), size, protocols)


_FIELDS = {
    "iifname": _meta(expression.META_IIFNAME, 16),
    "oifname": _meta(expression.META_OIFNAME, 16),
    "meta l4proto": _meta(expression.META_L4PROTO, 1),
    "ether daddr": _payload(LINK_HEADER, 0, 6),
    "ether saddr": _payload(LINK_HEADER, 6, 6),
    "ether type": _payload(LINK_HEADER, 12, 2),
    "arp htype": _payload(NETWORK_HEADER, 0, 2, "arp"),
    "arp ptype": _payload(NETWORK_HEADER, 2, 2, "arp"),
    "arp hlen": _payload(NETWORK_HEADER, 4, 1, "arp"),
    "arp plen": _payload(NETWORK_HEADER, 5, 1, "arp"),
    "arp saddr ether": _payload(NETWORK_HEADER, 8, 6, "arp"),
    "arp saddr ip": _payload(NETWORK_HEADER, 14, 4, "arp"),
    "ip saddr": _payload(NETWORK_HEADER, 12, 4, "ip"),
    "ip daddr": _payload(NETWORK_HEADER, 16, 4, "ip"),
    "ip6 saddr": _payload(NETWORK_HEADER, 8, 16, "ip6"),
    "ip6 daddr": _payload(NETWORK_HEADER, 24, 16, "ip6"),
    "icmpv6 type": _payload(TRANSPORT_HEADER, 0, 1, "ip6", "ipv6-icmp"),
    "icmpv6 taddr": _payload(TRANSPORT_HEADER, 8, 16, "ip6", "ipv6-icmp"),
    **{f"{name} sport": _payload(TRANSPORT_HEADER, 0, 2, name) for name in nft_rule.PROTOCOLS},
    **{f"{name} dport": _payload(TRANSPORT_HEADER, 2, 2, name) for name in nft_rule.PROTOCOLS},
}
_CONSTANTS = {
    "ct state established,related": nft_rule.state(nft_rule.ESTABLISHED | nft_rule.RELATED),
    "ct state related": nft_rule.state(nft_rule.RELATED),
    "ct status expected": nft_rule.status(nft_rule.EXPECTED),
    "ct direction reply": expression.ct(expression.CT_DIRECTION) + expression.compare(EQ, bytes([expression.REPLY])),
    "fib saddr type local": expression.fib_type(expression.FIB_SADDR)
    + expression.compare(EQ, expression.LOCAL.to_bytes(4, sys.byteorder)),
    "counter": expression.ANY_COUNTER,  # starts at 0
    "accept": nft_rule.ACCEPT,
    "drop": nft_rule.DROP,
    "return": nft_rule.RETURN,
}
_ADDRESSES = {
    "ip saddr": nft_rule.source,
    "ip6 saddr": nft_rule.source,
    "ip daddr": nft_rule.destination,
    "ip6 daddr": nft_rule.destination,
}
_WITH_NAME = {"jump": nft_rule.jump, "goto": nft_rule.goto, "counter name": expression.count}


_STATEMENT = re.compile(
    rf'(?P<with_name>{"|".join(_WITH_NAME)}) "?(?P<name>[^ "]+)"?|(?P<constant>{"|".join(_CONSTANTS)})'
    rf"|(?P<fields>(?:{'|'.join(_FIELDS)})(?: \. (?:{'|'.join(_FIELDS)}))*) (?P<map>vmap )?(?P<value>\S+)"
)


def compile_rule(text: str, family: int) -> bytes:
    """Returns the expressions of a rule in a table of `family` (INET or BRIDGE); raises ValueError, KeyError."""
    expressions, matched, position = b"", set[str](), 0
    while position < len(text):
        statement = _STATEMENT.match(text, position)
        if statement is None:
            raise ValueError(f'cannot compile "{text[position:]}" of the rule "{text}"')
        if statement["constant"]:
            expressions += _CONSTANTS[statement["constant"]]
        elif statement["with_name"]:
            expressions += _WITH_NAME[statement["with_name"]](statement["name"])
        else:
            fields = statement["fields"].split(" . ")
            expressions += _protocol_matches(fields, family, matched)
            expressions += _value_match(fields, statement["value"], is_map=bool(statement["map"]))
        position = statement.end() + 1
    return expressions


def _protocol_matches(fields: list[str], family: int, matched: set[str]) -> bytes:
    """Returns the matches of the protocols that fields require, without those in `matched`; adds them to it."""
    expressions = b""
    for protocol in (protocol for field in fields for protocol in _FIELDS[field].protocols):
        if protocol not in matched:
            matched.add(protocol)
            expressions += _protocol_match(protocol, family)
    return expressions


@cache
def _protocol_match(protocol: str, family: int) -> bytes:
    if protocol not in _ETHER_TYPES:
        return _value_match(["meta l4proto"], protocol)
    if family == nft.BRIDGE:
        return _value_match(["ether type"], protocol)
    return nft_rule.of_version(4 if protocol == "ip" else 6)


def _value_match(fields: list[str], value: str, *, is_map: bool = False) -> bytes:
    """Returns the match of fields in a set, of fields in a verdict map, or of one field with a value."""
    if value.startswith("@"):
        expressions, offset = b"", 0
        for field in fields:
            # The kernel pads each part of a key to four bytes.
            register = _FIRST_REGISTER + offset // 16 if offset % 16 == 0 else _FIRST_REGISTER32 + offset // 4
            expressions += _load(field, register)
            offset += (_FIELDS[field].size + 3) & ~3
        return expressions + (expression.lookup_verdict if is_map else expression.lookup)(value[1:])
    (field,) = fields
    if field in _ADDRESSES:
        return _ADDRESSES[field](ip_network(value) if "/" in value else ip_address(value))
    first, _, last = (value, "", "") if value in _NUMBERS else value.partition("-")
    load, size = _load(field, _FIRST_REGISTER), _FIELDS[field].size
    if last:
        return load + expression.between(EQ, _value_bytes(first, size), _value_bytes(last, size))
    return load + expression.compare(EQ, _value_bytes(first, size))


@cache
def _load(field: str, register: int) -> bytes:
    return _FIELDS[field].load(register)


def _value_bytes(text: str, size: int) -> bytes:
    if "." in text:
        return ip_address(text).packed
    return (int(text) if text.isdigit() else _NUMBERS[text]).to_bytes(size, "big")
