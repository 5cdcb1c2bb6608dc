"""The rules of a chain by the destination port that they require, as most rules of published ports do.

A packet needs only the rules without such a port and those with its own: with hundreds of published ports, evaluating
all rules for a packet to each of them took seconds.
"""

from __future__ import annotations

from heapq import merge
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from kernel.netfilter.nft_expression import parse_content
from kernel.netfilter.packet import TRANSPORT

if TYPE_CHECKING:
    from kernel.netfilter.ruleset import FilterRule

_BASE, _OFFSET, _LENGTH = 2, 3, 4  # attributes of "payload" (linux/netfilter/nf_tables.h); 1 is the register
_PORT_OFFSET, _PORT_BYTES = 2, 2
_CONDITIONS = ("payload", "cmp", "meta", "bitwise", "lookup", "range", "byteorder", "fib", "counter", "match")
_META_SOURCE = 3  # NFTA_META_SREG: the expression sets a value


class RuleIndex:
    """The `rules` of one chain."""

    def __init__(self, rules: list[FilterRule]) -> None:
        self.rules = rules
        self._others: list[tuple[int, FilterRule]] = []
        self._by_port: dict[int, list[tuple[int, FilterRule]]] = {}
        for item in enumerate(rules):
            port = _required_port(item[1])
            (self._others if port is None else self._by_port.setdefault(port, [])).append(item)

    def candidates(self, port: int | None) -> list[FilterRule]:
        """Returns the rules that may match a packet to `port`, in their order; all rules if the port is unknown."""
        if port is None:
            return self.rules
        return [rule for _, rule in merge(self._others, self._by_port.get(port, ()), key=itemgetter(0))]


def _required_port(rule: FilterRule) -> int | None:
    """Returns the destination port that a rule compares for equality, None for a rule that compares none.

    Also None if a statement comes before the comparison: it is about packets to any port.
    """
    for one, two in pairwise(rule.words):
        if one == "--dport":
            is_plain = two.isdigit() and "!" not in rule.words
            return int(two) if is_plain else None
    for (name, fields), (next_name, next_fields) in pairwise(rule.expressions):
        if name not in _CONDITIONS or (name == "meta" and _META_SOURCE in fields):
            return None
        if name == "payload" and next_name == "cmp" and fields.get(1) == next_fields.get(1):
            place = tuple(int.from_bytes(fields.get(key, b""), "big") for key in (_BASE, _OFFSET, _LENGTH))
            if place == (TRANSPORT, _PORT_OFFSET, _PORT_BYTES) and not int.from_bytes(next_fields.get(2, b""), "big"):
                return int.from_bytes(parse_content(next_fields.get(3, b"")).get(1, b""), "big")
    return None
