"""Conditions in nft's language ("ip daddr != 192.0.2.9"), compiled without the `nft` tool.

One rule: an unknown word is refused and named; a supported condition becomes the bytes that nft creates, with two
exceptions: a set of values becomes several rules, so that no set remains when they are deleted, and an interface is
compared by name, since its ifindex changes when it is created again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from ipaddress import ip_network

from cni.address import parse_ip
from kernel.netfilter import nft_expression as expression
from kernel.netfilter import nft_rule
from kernel.netfilter.nft_expression import EQ, NEQ
from process.values import dataclass

SUPPORTED_CONDITIONS = (
    'understood are "ip saddr", "ip daddr", "ip protocol" (in conditionsV6 "ip6 saddr", "ip6 daddr"), "tcp", "udp", '
    '"sctp" or "th" with "sport" or "dport", "iif", "oif", "iifname", "oifname", "meta l4proto", "meta mark", '
    '"ct mark", "ct state", "fib saddr type" and "fib daddr type", each with or without "==" or "!=", and a value or '
    "a set of values like { 80, 443 }"
)

_TOKEN = re.compile(r'"[^"]*"|[!=]=|[{},&]|[^\s{},=!&"]+|\S')
_SELECTOR_WORDS = 3  # at most
_RULES_MAX = 64  # for one mapping; sets multiply
_NAME_MAX = 15
_STATES = {"invalid": 1, "established": 2, "related": 4, "new": 8, "untracked": 64}  # NF_CT_STATE_BIT
_ADDRESS_TYPES = {  # RTN_* (linux/rtnetlink.h)
    "unspec": 0,
    "unicast": 1,
    "local": 2,
    "broadcast": 3,
    "anycast": 4,
    "multicast": 5,
    "blackhole": 6,
    "unreachable": 7,
    "prohibit": 8,
}


@dataclass(frozen=True)
class _Rule:
    """The beginning of one rule; `protocol` is the transport protocol that it matches, "" for any."""

    expressions: bytes = b""
    protocol: str = ""


@dataclass(frozen=True)
class _Selector:
    """A field that a condition can match: `compare` gets operation ("", "==", "!="), value and mask (0 for none).

    `protocol` must be matched before it, "" for any; with `is_protocol` the value itself is a protocol.
    """

    compare: Callable[[str, str, int], bytes]
    protocol: str = ""
    is_protocol: bool = False
    has_mask: bool = False


def compile_conditions(words: Sequence[str], version: int) -> tuple[bytes, ...]:
    """Returns the beginnings of one or more rules; the conditions are met if one of them matches.

    `words` may be split anywhere. Raises ValueError that names what is not supported.
    """
    tokens = _Tokens(_TOKEN.findall(" ".join(words)))
    rules = [_Rule()]
    while tokens.left:
        rules = _matched(tokens, rules, version)
        if len(rules) > _RULES_MAX:
            raise ValueError(f"makes more than {_RULES_MAX} rules for each port: use fewer or smaller sets")
    return tuple(rule.expressions for rule in rules)


class _Tokens:
    """The words that have not been read yet."""

    def __init__(self, left: list[str]) -> None:
        self.left = left

    def take(self) -> str:
        """Returns the next word, "" at the end."""
        return self.left.pop(0) if self.left else ""

    def accept(self, *words: str) -> str:
        """Returns the next word if it is one of `words`, else ""."""
        return self.take() if self.left and self.left[0] in words else ""

    def selector(self, known: dict[str, _Selector]) -> _Selector:
        """Returns the selector with the longest name that the next words form."""
        for count in range(_SELECTOR_WORDS, 0, -1):
            selector = known.get(" ".join(self.left[:count]))
            if selector and len(self.left) >= count:
                del self.left[:count]
                return selector
        raise ValueError(f'has what is not understood here: "{" ".join(self.left[:2])}"')


def _matched(tokens: _Tokens, rules: list[_Rule], version: int) -> list[_Rule]:
    """Reads one match and returns the rules with it added."""
    selector = tokens.selector(_SELECTORS | _ADDRESSES[version])
    mask = 0
    if selector.has_mask and tokens.accept("&", "and"):
        mask = _number(tokens.take(), 0xFFFFFFFF)
        if not mask:
            raise ValueError("has a mask of no bits")
    operation = tokens.accept("==", "!=")
    values, in_set = _values(tokens)
    if operation == "!=":
        matches = b"".join(selector.compare(operation, value, mask) for value in values)
        return [_joined(rule, selector, matches) for rule in rules]
    operation = "" if in_set else operation  # for nft `ct state new` and `ct state == new` differ
    return [
        _joined(rule, selector, selector.compare(operation, value, mask), value) for rule in rules for value in values
    ]


def _values(tokens: _Tokens) -> tuple[list[str], bool]:
    """Reads a value, or a set of them; `new,related` without braces is one value."""
    if not tokens.accept("{"):
        value = _value(tokens)
        while tokens.accept(","):
            value += f",{_value(tokens)}"
        return [value], False
    values = [_value(tokens)]
    while tokens.accept(","):
        if tokens.left[:1] != ["}"]:
            values.append(_value(tokens))
    if not tokens.accept("}"):
        raise ValueError(f'has a set without its end at "{tokens.take()}"')
    return values, True


def _value(tokens: _Tokens) -> str:
    value = tokens.take()
    if not value or value in ("{", "}", ",", "&", "==", "!=", "="):
        raise ValueError(f'lacks a value before "{value}"' if value else "lacks a value at its end")
    return value.strip('"')


def _joined(rule: _Rule, selector: _Selector, match: bytes, value: str = "") -> _Rule:
    """Adds a match, and before it one on its transport protocol unless the rule has that already (like nft)."""
    before, protocol = b"", rule.protocol
    if selector.protocol and selector.protocol != protocol:
        if protocol:
            raise ValueError(f"is about {protocol} and about {selector.protocol} at once")
        before, protocol = nft_rule.transport(selector.protocol), selector.protocol
    if selector.is_protocol and value in nft_rule.PROTOCOLS:
        protocol = value
    return _Rule(rule.expressions + before + match, protocol)


def _operation(text: str) -> int:
    return NEQ if text == "!=" else EQ


def _address(version: int, side: str) -> _Selector:
    one, several = {
        "saddr": (nft_rule.source, nft_rule.source_range),
        "daddr": (nft_rule.destination, nft_rule.destination_range),
    }[side]

    def compare(operation: str, value: str, mask: int) -> bytes:
        is_positive = operation != "!="
        try:
            first, dash, last = value.partition("-")
            if dash:
                ends = parse_ip(first), parse_ip(last)
                if [end.version for end in ends] == [version, version] and ends[0].packed <= ends[1].packed:
                    return several(*ends, positive=is_positive)
            else:
                network = ip_network(value, strict=False)
                if network.version == version:
                    return one(network, positive=is_positive)
        except ValueError:
            pass
        raise ValueError(f'has no IPv{version} address, prefix or range: "{value}"')

    return _Selector(compare)


def _port(offset: int, protocol: str) -> _Selector:
    def compare(operation: str, value: str, mask: int) -> bytes:
        load = expression.payload(expression.TRANSPORT_HEADER, offset, 2)
        first, dash, last = value.partition("-")
        low = _number(first, 0xFFFF).to_bytes(2, "big")
        if not dash:
            return load + expression.compare(_operation(operation), low)
        high = _number(last, 0xFFFF).to_bytes(2, "big")
        if high < low:
            raise ValueError(f'has a range that ends before it begins: "{value}"')
        return load + expression.between(_operation(operation), low, high)

    return _Selector(compare, protocol)


def _interface(key: int) -> _Selector:
    def compare(operation: str, value: str, mask: int) -> bytes:
        name = value.encode()
        any_ending = name.endswith(b"*") and not name.endswith(b"\\*")
        name = name[:-1] if any_ending else name.replace(b"\\*", b"*")
        if not 0 < len(name) <= _NAME_MAX:
            raise ValueError(f'has no name of an interface: "{value}"')
        data = name if any_ending else name.ljust(_NAME_MAX + 1, b"\0")
        return expression.meta(key) + expression.compare(_operation(operation), data)

    return _Selector(compare)


def _interface_or_index(by_index: int, by_name: int) -> _Selector:
    named = _interface(by_name)

    def compare(operation: str, value: str, mask: int) -> bytes:
        if not value.isdigit():
            return named.compare(operation, value, mask)
        index = _host_order(_number(value, 0x7FFFFFFF))
        return expression.meta(by_index) + expression.compare(_operation(operation), index)

    return _Selector(compare)


def _protocol(load: bytes) -> _Selector:
    def compare(operation: str, value: str, mask: int) -> bytes:
        number = nft_rule.PROTOCOLS.get(value)
        data = bytes([_number(value, 0xFF) if number is None else number])
        return load + expression.compare(_operation(operation), data)

    return _Selector(compare, is_protocol=True)


def _mark(load: bytes) -> _Selector:
    def compare(operation: str, value: str, mask: int) -> bytes:
        masked = expression.bitwise(_host_order(mask)) if mask else b""
        return load + masked + expression.compare(_operation(operation), _host_order(_number(value, 0xFFFFFFFF)))

    return _Selector(compare, has_mask=True)


def _state(operation: str, value: str, mask: int) -> bytes:
    names = value.split(",")
    for name in names:
        if name not in _STATES:
            raise ValueError(f'has no state of a connection ({", ".join(_STATES)}): "{name}"')
    bits = _host_order(sum({_STATES[name] for name in names}))
    load = expression.ct(expression.CT_STATE)
    if operation:
        return load + expression.compare(_operation(operation), bits)
    return load + expression.bitwise(bits) + expression.compare(NEQ, bytes(4))


def _address_type(flag: int) -> _Selector:
    def compare(operation: str, value: str, mask: int) -> bytes:
        if value not in _ADDRESS_TYPES:
            raise ValueError(f'has no type of address ({", ".join(_ADDRESS_TYPES)}): "{value}"')
        data = _host_order(_ADDRESS_TYPES[value])
        return expression.fib_type(flag) + expression.compare(_operation(operation), data)

    return _Selector(compare)


def _number(text: str, maximum: int) -> int:
    try:
        number = int(text, 16) if text.startswith("0x") else int(text) if text.isascii() and text.isdigit() else -1
    except ValueError:
        number = -1
    if not 0 <= number <= maximum:
        raise ValueError(f'has no number up to {maximum}: "{text}"')
    return number


def _host_order(number: int) -> bytes:
    return number.to_bytes(4, sys.byteorder)


_ADDRESSES = {
    4: {f"ip {side}": _address(4, side) for side in ("saddr", "daddr")}
    | {"ip protocol": _protocol(expression.payload(expression.NETWORK_HEADER, 9, 1))},
    6: {f"ip6 {side}": _address(6, side) for side in ("saddr", "daddr")},
}
_META = {
    "iif": _interface_or_index(expression.META_IIF, expression.META_IIFNAME),
    "oif": _interface_or_index(expression.META_OIF, expression.META_OIFNAME),
    "iifname": _interface(expression.META_IIFNAME),
    "oifname": _interface(expression.META_OIFNAME),
    "mark": _mark(expression.meta(expression.META_MARK)),
}
_SELECTORS = {
    **{f"{protocol} sport": _port(0, protocol) for protocol in nft_rule.PROTOCOLS},
    **{f"{protocol} dport": _port(2, protocol) for protocol in nft_rule.PROTOCOLS},
    "th sport": _port(0, ""),
    "th dport": _port(2, ""),
    **_META,
    **{f"meta {name}": selector for name, selector in _META.items()},
    "meta l4proto": _protocol(expression.meta(expression.META_L4PROTO)),
    "ct state": _Selector(_state),
    "ct mark": _mark(expression.ct(expression.CT_MARK)),
    "fib saddr type": _address_type(expression.FIB_SADDR),
    "fib daddr type": _address_type(expression.FIB_DADDR),
}
