"""Whether rules before another one permit some packets: then what they leave out may be an intended restriction.

One rule: what is not read for certain counts as a permission. Answers of connections, and ICMP for everybody, count as
none: every set of rules accepts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_network
from typing import NamedTuple

from cni.address import Network
from kernel.netfilter.nft_expression import parse_content
from kernel.netfilter.ruleset import FilterChain, FilterRule, Ruleset
from podwire.predictions import xt_rules
from podwire.predictions.conditions import InterfaceMatch, conditions_of, effect_of, position_of
from podwire.predictions.evaluation import PacketEvent
from podwire.predictions.nft_machine import DEEPEST, number_of

_ANSWERS, _ICMP, _OTHER = "answers", "icmp", "other"
_META_INTERFACES, _META_PROTOCOL = (4, 5, 6, 7), 16  # NFT_META_IIF, OIF, IIFNAME, OIFNAME; L4PROTO
_CT_STATE, _CT_STATUS, _STATE_NEW = 0, 2, 8  # NFT_CT_STATE, NFT_CT_STATUS; NF_CT_STATE_BIT(IP_CT_NEW)
_NETWORK, _PROTOCOL_OFFSET = 1, 9  # of the IPv4 header
_ICMP_NUMBERS = (b"\x01", b"\x3a")
_ANSWER_STATES = {"RELATED", "ESTABLISHED", "DNAT"}
_NEUTRAL = ("cmp", "counter", "immediate", "log", "last", "objref", "target", "reject", "lookup", "bitwise")


class Pods(NamedTuple):
    """The pods of one network: the interfaces of the host through which it reaches them, and their subnets."""

    interfaces: tuple[str, ...]
    networks: tuple[Network, ...]


def is_preceded_by_permission(
    ruleset: Ruleset, event: PacketEvent, pods: Pods, is_ignored: Callable[[FilterRule], bool]
) -> bool:
    """Returns whether a rule before the event's rule, or before its chain's policy, permits packets of pods.

    Rules that `is_ignored` selects, and what they jump to, permit none.
    """
    earlier = ruleset.rules.get(event.chain.place, []) if event.rule is None else []
    for step in event.rules:
        chain = ruleset.rules.get(step.chain.place, [])
        earlier = [*earlier, *chain[: position_of(ruleset, step) - 1]]
    return any(_permits(ruleset, (rule,), pods, is_ignored, rule.chain.place != event.base.place) for rule in earlier)


def _permits(
    ruleset: Ruleset, rules: Sequence[FilterRule], pods: Pods, is_ignored: Callable[[FilterRule], bool], is_inner: bool
) -> bool:
    """Returns whether the last of rules, each of which jumps to the next one, permits packets of pods."""
    rule = rules[-1]
    effect = effect_of(rule)
    if is_ignored(rule):
        return False
    if effect.kind in ("jump", "goto"):
        if len(rules) > DEEPEST:
            return True
        chain = FilterChain(rule.chain.family, rule.chain.table, effect.chain, tool=rule.chain.tool)
        inner = ruleset.rules.get(chain.place, ())
        return any(_permits(ruleset, (*rules, one), pods, is_ignored, is_inner=False) for one in inner)
    is_permission = effect.kind in ("accept", "other") or (effect.kind == "return" and is_inner)
    return is_permission and _concerns(rules, pods)


def _concerns(rules: Sequence[FilterRule], pods: Pods) -> bool:
    """Returns whether the conditions of rules distinguish packets of pods from others."""
    conditions = conditions_of(*rules)
    kinds = {kind for rule in rules for kind in _kinds(rule)}
    named = [one for one in conditions.interfaces if not one.inverted]
    if any(_matches(one, name) for one in named for name in pods.interfaces):
        return not kinds or kinds != {_ANSWERS}
    if any(_names_address(rule, pods) for rule in rules):
        return True
    if named:  # of other interfaces only: the whole traffic to one of them, as to a VPN
        return not conditions.has_others and not any(one.is_input for one in named)
    return bool(kinds - {_ANSWERS, _ICMP})


def _matches(one: InterfaceMatch, name: str) -> bool:
    return name.startswith(one.name[:-1]) if one.name.endswith("+") else name == one.name


def _kinds(rule: FilterRule) -> Iterator[str]:
    """Yields the kinds of a rule's conditions, without those about interfaces."""
    yield from _kinds_of_words(rule.words) if rule.words else _kinds_of_expressions(rule)


def _kinds_of_words(words: tuple[str, ...]) -> Iterator[str]:
    end = next((index for index, word in enumerate(words) if word in ("-j", "-g")), len(words))
    skipped = False
    for word, value in zip(words[:end], (*words[1:end], ""), strict=True):
        if skipped:
            skipped = False
        elif word in ("-i", "-o", "--comment") or (word, value) in (
            ("-m", "comment"),
            ("-m", "conntrack"),
            ("-m", "state"),
        ):
            skipped = True
        elif word in ("--ctstate", "--state") and set(value.split(",")) <= _ANSWER_STATES:
            skipped = True
            yield _ANSWERS
        elif (word in ("-p", "-m") and value in ("icmp", "ipv6-icmp", "icmp6")) or word in (
            "--icmp-type",
            "--icmpv6-type",
        ):
            skipped = True
            yield _ICMP
        else:
            yield _OTHER


def _kinds_of_expressions(rule: FilterRule) -> Iterator[str]:
    loaded = ""
    for name, fields in rule.expressions:
        if name == "meta" and 3 not in fields:
            key = number_of(fields, 2)
            loaded = "" if key in _META_INTERFACES else "protocol" if key == _META_PROTOCOL else _OTHER
        elif name == "payload":
            place = number_of(fields, 2), number_of(fields, 3)
            loaded = "protocol" if place == (_NETWORK, _PROTOCOL_OFFSET) else _ICMP if loaded == _ICMP else _OTHER
        elif name == "ct" and 4 not in fields:
            loaded = "state" if number_of(fields, 2) in (_CT_STATE, _CT_STATUS) else _OTHER
        elif name == "match":
            yield from _kinds_of_match(fields)
            continue
        elif name not in _NEUTRAL or (name == "lookup" and loaded != "state"):
            loaded = _OTHER
        if name == "bitwise" and loaded == "state":
            mask = parse_content(fields.get(4, b"")).get(1, b"")
            loaded = _OTHER if int.from_bytes(mask, "little") & _STATE_NEW else loaded
        if name == "cmp" and loaded == "protocol":
            loaded = _ICMP if parse_content(fields.get(3, b"")).get(1, b"")[:1] in _ICMP_NUMBERS else _OTHER
        if loaded == "state":
            yield _ANSWERS
        elif loaded in (_ICMP, _OTHER):
            yield loaded


def _kinds_of_match(fields: dict[int, bytes]) -> Iterator[str]:
    name = fields.get(1, b"").rstrip(b"\0").decode(errors="replace")
    if name == "conntrack":
        yield _ANSWERS if xt_rules.is_of_answers(fields.get(3, b"")) else _OTHER
    elif name != "comment":
        yield _ICMP if name in ("icmp", "icmp6") else _OTHER


def _names_address(rule: FilterRule, pods: Pods) -> bool:
    """Returns whether a rule compares an address with one of the pods' networks, or with an address in them."""
    if rule.words:
        return any(_is_in(word, pods) for word in rule.words)
    starts = {network.network_address.packed[: max(1, network.prefixlen // 8)] for network in pods.networks}
    data = [parse_content(fields.get(3, b"")).get(1, b"") for name, fields in rule.expressions if name == "cmp"]
    return any(one.startswith(start) for one in data for start in starts)


def _is_in(word: str, pods: Pods) -> bool:
    try:
        network = ip_network(word, strict=False)
    except ValueError:
        return False
    return any(map(network.overlaps, pods.networks))
