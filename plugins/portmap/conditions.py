"""Compiles conditions in the language of nft ("ip daddr != 192.0.2.9") without running `nft`.

An unsupported match raises an error that quotes it; a supported match is compiled to the expressions that
nft creates. There are two exceptions: a set of values becomes several rules, so that no set remains when they are
deleted; and interfaces are compared by name, since the ifindex changes when an interface is created again.
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
    'supported: "ip saddr", "ip daddr", "ip protocol" (in conditionsV6 "ip6 saddr", "ip6 daddr"), "tcp", "udp", '
    '"sctp" or "th" with "sport" or "dport", "iif", "oif", "iifname", "oifname", "meta l4proto", "meta mark", '
    '"ct mark", "ct state", "fib saddr type" and "fib daddr type", each with or without "==" or "!=", and a value or '
    "a set of values like { 80, 443 }"
)

_TOKEN = re.compile(r'"[^"]*"|[!=]=|[{},&]|[^\s{},=!&"]+|\S')
_SELECTOR_WORDS_MAX = 3
_RULES_MAX = 64  # for one mapping: the product of the sizes of all sets
_INTERFACE_NAME_MAX = 15
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
class _RuleStart:
    """The first expressions of a rule; `protocol` is the transport protocol that they match, "" for any."""

    expressions: bytes = b""
    protocol: str = ""


@dataclass(frozen=True)
class _Selector:
    """A packet field that a condition can match.

    `compare` builds the expressions from operator ("", "==", "!="), value and mask (0 for none). `protocol` is the
    transport protocol that has the field, "" for any; with `is_protocol` the value itself is a transport protocol.
    """

    compare: Callable[[str, str, int], bytes]
    protocol: str = ""
    is_protocol: bool = False
    has_mask: bool = False


def compile_conditions(words: Sequence[str], version: int) -> tuple[bytes, ...]:
    """Returns the first expressions of one or more rules; a packet meets the conditions if one of the rules matches.

    The text may be split into `words` anywhere. Raises ValueError that quotes the unsupported part.
    """
    tokens = _Tokens(_TOKEN.findall(" ".join(words)))
    rules = [_RuleStart()]
    while tokens.remaining:
        rules = _with_next_match(tokens, rules, version)
        if len(rules) > _RULES_MAX:
            raise ValueError(f"needs more than {_RULES_MAX} rules for each port: use fewer or smaller sets")
    return tuple(rule.expressions for rule in rules)


class _Tokens:
    """The words that have not been parsed yet."""

    def __init__(self, remaining: list[str]) -> None:
        self.remaining = remaining

    def pop(self) -> str:
        """Removes and returns the next word, "" at the end."""
        return self.remaining.pop(0) if self.remaining else ""

    def accept(self, *words: str) -> str:
        """Removes and returns the next word if it is one of `words`; else returns ""."""
        return self.pop() if self.remaining and self.remaining[0] in words else ""

    def pop_selector(self, known: dict[str, _Selector]) -> _Selector:
        """Removes the longest name of a selector from the next words; returns that selector."""
        for count in range(_SELECTOR_WORDS_MAX, 0, -1):
            selector = known.get(" ".join(self.remaining[:count]))
            if selector and len(self.remaining) >= count:
                del self.remaining[:count]
                return selector
        raise ValueError(f'contains an unsupported match: "{" ".join(self.remaining[:2])}"')


def _with_next_match(tokens: _Tokens, rules: list[_RuleStart], version: int) -> list[_RuleStart]:
    """Parses the next match; returns the rules with that match appended."""
    selector = tokens.pop_selector(_SELECTORS | _IP_HEADER_SELECTORS[version])
    mask = 0
    if selector.has_mask and tokens.accept("&", "and"):
        mask = _parse_number(tokens.pop(), 0xFFFFFFFF)
        if not mask:
            raise ValueError("has a mask of 0")
    operator = tokens.accept("==", "!=")
    values, in_set = _parse_values(tokens)
    if operator == "!=":
        matches = b"".join(selector.compare(operator, value, mask) for value in values)
        return [_append_match(rule, selector, matches) for rule in rules]
    # Each value of a set gets a rule like `ct state new`, which nft compiles differently from `ct state == new`.
    operator = "" if in_set else operator
    return [
        _append_match(rule, selector, selector.compare(operator, value, mask), value)
        for rule in rules
        for value in values
    ]


def _parse_values(tokens: _Tokens) -> tuple[list[str], bool]:
    """Parses a value or a set of values, and returns whether it is a set; `new,related` without braces is one value."""
    if not tokens.accept("{"):
        value = _parse_value(tokens)
        while tokens.accept(","):
            value += f",{_parse_value(tokens)}"
        return [value], False
    values = [_parse_value(tokens)]
    while tokens.accept(","):
        if tokens.remaining[:1] != ["}"]:
            values.append(_parse_value(tokens))
    if not tokens.accept("}"):
        word = tokens.pop()
        raise ValueError(f'lacks the "}}" of a set before "{word}"' if word else 'lacks the "}" of a set')
    return values, True


def _parse_value(tokens: _Tokens) -> str:
    value = tokens.pop()
    if not value or value in ("{", "}", ",", "&", "==", "!=", "="):
        raise ValueError(f'lacks a value before "{value}"' if value else "lacks a value at the end")
    return value.strip('"')


def _append_match(rule: _RuleStart, selector: _Selector, match: bytes, value: str = "") -> _RuleStart:
    """Appends a match, preceded by a match on its transport protocol unless the rule has one already, as nft does."""
    transport, protocol = b"", rule.protocol
    if selector.protocol and selector.protocol != protocol:
        if protocol:
            raise ValueError(f"matches {protocol} and {selector.protocol} at once, which no packet does")
        transport, protocol = nft_rule.transport(selector.protocol), selector.protocol
    if selector.is_protocol and value in nft_rule.PROTOCOLS:
        protocol = value
    return _RuleStart(rule.expressions + transport + match, protocol)


def _comparison(operator: str) -> int:
    return NEQ if operator == "!=" else EQ


def _address_selector(version: int, side: str) -> _Selector:
    compare_network, compare_range = {
        "saddr": (nft_rule.source, nft_rule.source_range),
        "daddr": (nft_rule.destination, nft_rule.destination_range),
    }[side]

    def compare(operator: str, value: str, mask: int) -> bytes:
        is_positive = operator != "!="
        try:
            first, dash, last = value.partition("-")
            if dash:
                ends = parse_ip(first), parse_ip(last)
                if [end.version for end in ends] == [version, version] and ends[0].packed <= ends[1].packed:
                    return compare_range(*ends, positive=is_positive)
            else:
                network = ip_network(value, strict=False)
                if network.version == version:
                    return compare_network(network, positive=is_positive)
        except ValueError:
            pass
        raise ValueError(f'needs an IPv{version} address, prefix or range, not "{value}"')

    return _Selector(compare)


def _port_selector(offset: int, protocol: str) -> _Selector:
    def compare(operator: str, value: str, mask: int) -> bytes:
        load = expression.payload(expression.TRANSPORT_HEADER, offset, 2)
        first, dash, last = value.partition("-")
        low = _parse_number(first, 0xFFFF).to_bytes(2, "big")
        if not dash:
            return load + expression.compare(_comparison(operator), low)
        high = _parse_number(last, 0xFFFF).to_bytes(2, "big")
        if high < low:
            raise ValueError(f'has a range whose end is less than its start: "{value}"')
        return load + expression.between(_comparison(operator), low, high)

    return _Selector(compare, protocol)


def _interface_selector(key: int) -> _Selector:
    def compare(operator: str, value: str, mask: int) -> bytes:
        name = value.encode()
        is_prefix = name.endswith(b"*") and not name.endswith(b"\\*")
        name = name[:-1] if is_prefix else name.replace(b"\\*", b"*")
        if not 0 < len(name) <= _INTERFACE_NAME_MAX:
            raise ValueError(f'needs an interface name, not "{value}"')
        data = name if is_prefix else name.ljust(_INTERFACE_NAME_MAX + 1, b"\0")
        return expression.meta(key) + expression.compare(_comparison(operator), data)

    return _Selector(compare)


def _interface_or_index_selector(index_key: int, name_key: int) -> _Selector:
    by_name_selector = _interface_selector(name_key)

    def compare(operator: str, value: str, mask: int) -> bytes:
        if not value.isdigit():
            return by_name_selector.compare(operator, value, mask)
        index = _host_order(_parse_number(value, 0x7FFFFFFF))
        return expression.meta(index_key) + expression.compare(_comparison(operator), index)

    return _Selector(compare)


def _protocol_selector(load: bytes) -> _Selector:
    def compare(operator: str, value: str, mask: int) -> bytes:
        number = nft_rule.PROTOCOLS.get(value)
        data = bytes([_parse_number(value, 0xFF) if number is None else number])
        return load + expression.compare(_comparison(operator), data)

    return _Selector(compare, is_protocol=True)


def _packet_mark_selector(load: bytes) -> _Selector:
    def compare(operator: str, value: str, mask: int) -> bytes:
        masked = expression.bitwise(_host_order(mask)) if mask else b""
        return load + masked + expression.compare(_comparison(operator), _host_order(_parse_number(value, 0xFFFFFFFF)))

    return _Selector(compare, has_mask=True)


def _compare_state(operator: str, value: str, mask: int) -> bytes:
    names = value.split(",")
    for name in names:
        if name not in _STATES:
            raise ValueError(f'needs a connection state ({", ".join(_STATES)}), not "{name}"')
    bits = _host_order(sum({_STATES[name] for name in names}))
    load = expression.ct(expression.CT_STATE)
    if operator:
        return load + expression.compare(_comparison(operator), bits)
    return load + expression.bitwise(bits) + expression.compare(NEQ, bytes(4))


def _address_type_selector(flag: int) -> _Selector:
    def compare(operator: str, value: str, mask: int) -> bytes:
        if value not in _ADDRESS_TYPES:
            raise ValueError(f'needs an address type ({", ".join(_ADDRESS_TYPES)}), not "{value}"')
        data = _host_order(_ADDRESS_TYPES[value])
        return expression.fib_type(flag) + expression.compare(_comparison(operator), data)

    return _Selector(compare)


def _parse_number(text: str, maximum: int) -> int:
    try:
        number = int(text, 16) if text.startswith("0x") else int(text) if text.isascii() and text.isdigit() else -1
    except ValueError:
        number = -1
    if not 0 <= number <= maximum:
        raise ValueError(f'needs a number from 0 to {maximum}, not "{text}"')
    return number


def _host_order(number: int) -> bytes:
    return number.to_bytes(4, sys.byteorder)


_IP_HEADER_SELECTORS = {
    4: {f"ip {side}": _address_selector(4, side) for side in ("saddr", "daddr")}
    | {"ip protocol": _protocol_selector(expression.payload(expression.NETWORK_HEADER, 9, 1))},
    6: {f"ip6 {side}": _address_selector(6, side) for side in ("saddr", "daddr")},
}
_META = {
    "iif": _interface_or_index_selector(expression.META_IIF, expression.META_IIFNAME),
    "oif": _interface_or_index_selector(expression.META_OIF, expression.META_OIFNAME),
    "iifname": _interface_selector(expression.META_IIFNAME),
    "oifname": _interface_selector(expression.META_OIFNAME),
    "mark": _packet_mark_selector(expression.meta(expression.META_MARK)),
}
_SELECTORS = {
    **{f"{protocol} sport": _port_selector(0, protocol) for protocol in nft_rule.PROTOCOLS},
    **{f"{protocol} dport": _port_selector(2, protocol) for protocol in nft_rule.PROTOCOLS},
    "th sport": _port_selector(0, ""),
    "th dport": _port_selector(2, ""),
    **_META,
    **{f"meta {name}": selector for name, selector in _META.items()},
    "meta l4proto": _protocol_selector(expression.meta(expression.META_L4PROTO)),
    "ct state": _Selector(_compare_state),
    "ct mark": _packet_mark_selector(expression.ct(expression.CT_MARK)),
    "fib saddr type": _address_type_selector(expression.FIB_SADDR),
    "fib daddr type": _address_type_selector(expression.FIB_DADDR),
}
