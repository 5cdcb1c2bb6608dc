"""Predicts what a packet filter does to a packet: which rule or policy drops, rewrites or marks it.

Nothing is sent. A condition on something unknown (a limit, a counter, another module's set) leaves a rule undecided:
what an undecided rule might do is never reported as certain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple

from kernel.netfilter import nft
from kernel.netfilter.packet import DNAT_STATUS, TRANSPORT, UNTRACKED, Packet
from kernel.netfilter.ruleset import ARP, NETDEV, FilterChain, FilterRule, Ruleset
from podwire.predictions import legacy_rules
from podwire.predictions.nft_machine import DEEPEST, Machine
from podwire.predictions.verdicts import UNCHANGED, Match, RuleAction
from process.values import dataclass, replace

PREROUTING, INPUT, FORWARD, OUTPUT, POSTROUTING = range(5)  # NF_INET_*
INGRESS, EGRESS = 0, 1  # NF_NETDEV_*
_FAMILIES = {4: (nft.INET, nft.IPV4), 6: (nft.INET, nft.IPV6), 0: (ARP,)}
_ARP_HOOKS = {INPUT: 0, OUTPUT: 1}  # NF_ARP_*
ENDS = ("drop", "reject", "queue", "expire")  # actions after which a packet does not continue
_REWRITES = ("dnat", "snat", "masquerade", "redirect")


class Fate(IntEnum):
    """The certainty with which a packet is dropped."""

    PASSES = 0
    PERHAPS = 1  # an earlier rule may have accepted it
    PARTLY = 2  # the rule drops some of such packets: at random, or above a rate
    CERTAIN = 3


class PacketEvent(NamedTuple):
    """An event on a packet's way: it is dropped (also by a policy, then `rule` is None), rewritten, not tracked.

    `base` is the base chain, `path` the rules whose jumps lead from it to `chain`.
    """

    action: RuleAction
    chain: FilterChain
    rule: FilterRule | None
    fate: Fate
    packet: Packet
    base: FilterChain
    path: tuple[FilterRule, ...] = ()

    @property
    def rules(self) -> tuple[FilterRule, ...]:
        """The rule with those whose jumps lead to it: their conditions are all met."""
        return (*self.path, self.rule) if self.rule else self.path


@dataclass(frozen=True)
class Traversal:
    """The events of a packet at some hooks, in order, and the packet as it leaves the last one.

    `marking` are the rules that change its mark.
    """

    packet: Packet
    events: tuple[PacketEvent, ...] = ()
    marking: tuple[FilterRule, ...] = ()

    @property
    def drop(self) -> PacketEvent | None:
        """The event that ends the packet for certain."""
        return next((one for one in self.events if one.fate is Fate.CERTAIN and one.action.kind in ENDS), None)


def traverse(ruleset: Ruleset, packet: Packet, hook: int, *, bridge: bool = False) -> Traversal:
    """Returns what happens to a packet at a hook, in the tables of its IP version or (`bridge`) of bridges."""
    families = (nft.BRIDGE,) if bridge else _FAMILIES[packet.version]
    number = hook if bridge or packet.version else _ARP_HOOKS.get(hook, -1)
    return _Walk(ruleset).run(packet, ruleset.base_chains(families, number))


def traverse_chain(
    ruleset: Ruleset, packet: Packet, base: FilterChain, excluded: Callable[[FilterRule], bool]
) -> Traversal:
    """Returns what happens to a packet in one base chain.

    It ignores the `excluded` rules if it is unknown whether they match.
    """
    return _Walk(ruleset, excluded).run(packet, [base])


def traverse_device(ruleset: Ruleset, packet: Packet, hook: int, device: str) -> Traversal:
    """Returns what happens to a packet that an interface receives (INGRESS) or sends (EGRESS) in netdev tables."""
    chains = [chain for chain in ruleset.base_chains((NETDEV,), hook) if device in chain.devices]
    if hook == INGRESS:
        chains += [one for one in ruleset.base_chains((nft.INET,), 5) if device in one.devices]  # NF_INET_INGRESS
    return _Walk(ruleset).run(packet, chains)


def list_services(
    ruleset: Ruleset, packet: Packet, accepts: Callable[[FilterRule], bool] = lambda rule: True
) -> Iterator[tuple[int, int]]:
    """Yields the (protocol, destination port) that rules compare packets with: those rules that `accepts` accepts."""
    seen = set()
    for rules in ruleset.rules.values():
        for rule in rules:
            if not accepts(rule):
                continue
            if rule.words:
                matching = legacy_rules.services(rule.words)
            else:
                machine = Machine(ruleset, rule, replace(packet, port=None, protocol=0), is_free=True)
                machine.run()
                matching = machine.services()
            for one in matching:
                if one not in seen:
                    seen.add(one)
                    yield one


class _Ended(Exception):  # noqa: N818 - the way out of nested chains
    """A verdict that ends a base chain."""


class _Walk:
    """The way of one packet through base chains."""

    def __init__(self, ruleset: Ruleset, excluded: Callable[[FilterRule], bool] = lambda rule: False) -> None:
        self._ruleset = ruleset
        self._excluded = excluded
        self._events: list[PacketEvent] = []
        self._marking: list[FilterRule] = []
        self._path: list[FilterRule] = []
        self._certain = True
        self._is_rewritten = False

    def run(self, packet: Packet, chains: list[FilterChain]) -> Traversal:
        for chain in chains:
            if chain.kind == "nat" and (self._is_rewritten or packet.state != 8):  # NEW
                continue
            self._packet = packet
            self._base = chain
            self._path.clear()
            self._certain = True
            try:
                self._chain(chain, 0)
                if chain.drops:
                    self._add(RuleAction("drop"), chain, None, Fate.CERTAIN if self._certain else Fate.PERHAPS)
            except _Ended:
                pass
            packet = self._packet
            if any(one.fate is Fate.CERTAIN and one.action.kind in ENDS for one in self._events):
                break
        return Traversal(packet, tuple(self._events), tuple(self._marking))

    def _chain(self, chain: FilterChain, depth: int) -> None:
        """Evaluates a chain; returns at its end or at "return". Raises _Ended."""
        if depth > DEEPEST:
            return
        port = self._packet.payload(TRANSPORT, 2, 2)
        for rule in self._ruleset.candidates(chain, int.from_bytes(port, "big") if port else None):
            match, action, mark = self._match(rule)
            if match is Match.NO or (match is Match.MAYBE and self._excluded(rule)):
                continue
            if mark is not UNCHANGED:
                number = mark if isinstance(mark, int) and match is Match.YES else None
                if number != self._packet.mark:
                    self._marking.append(rule)
                self._packet = replace(self._packet, mark=number)
            if action is None:
                continue
            if action.kind == "return":
                if match is Match.YES:
                    return
                self._certain = False
            elif action.kind in ("jump", "goto"):
                self._path.append(rule)
                self._jump(chain, action, match, depth)
                del self._path[depth:]
                if action.kind == "goto" and match is Match.YES:
                    return
            else:
                self._end(chain, rule, action, match)

    def _jump(self, chain: FilterChain, action: RuleAction, match: Match, depth: int) -> None:
        target = FilterChain(chain.family, chain.table, action.chain, tool=chain.tool)
        if match is Match.YES:
            self._chain(target, depth + 1)
            return
        number = len(self._events)
        with suppress(_Ended):
            self._chain(target, depth + 1)
        ends = [one.action.kind in ENDS for one in self._events[number:]]
        del self._events[number:]  # whether the packet gets there is not known
        if not all(ends) or not ends:
            self._certain = False

    def _end(self, chain: FilterChain, rule: FilterRule, action: RuleAction, match: Match) -> None:
        if action.kind == "accept":
            if match is Match.YES:
                if self._base.kind == "nat":  # it may keep the packet from a later rule of the chain
                    self._add(action, chain, rule, Fate.PASSES)
                raise _Ended
            self._certain = False
        elif action.kind in ENDS:
            if match is Match.SOME:
                self._add(action, chain, rule, Fate.PARTLY)
            elif match is Match.YES:
                self._add(action, chain, rule, Fate.CERTAIN if self._certain else Fate.PERHAPS)
                raise _Ended
        elif match is Match.YES:
            self._add(action, chain, rule, Fate.CERTAIN if self._certain else Fate.PERHAPS)
            self._rewrite(action)
            if action.kind in _REWRITES:
                raise _Ended

    def _rewrite(self, action: RuleAction) -> None:
        if action.kind == "untrack":
            self._packet = replace(self._packet, state=UNTRACKED)
        elif action.kind == "dnat":
            target = action.address or self._packet.destination
            port = action.port or self._packet.port
            status = self._packet.status | DNAT_STATUS
            self._packet = replace(self._packet, destination=target, port=port, status=status, destination_type=1)
        if action.kind in _REWRITES:
            self._is_rewritten = True

    def _match(self, rule: FilterRule) -> tuple[Match, RuleAction | None, object]:
        if rule.words:
            return legacy_rules.evaluate(rule.words, self._packet)
        machine = Machine(self._ruleset, rule, self._packet)
        return machine.run(), machine.action, machine.mark

    def _add(self, action: RuleAction, chain: FilterChain, rule: FilterRule | None, fate: Fate) -> None:
        self._events.append(PacketEvent(action, chain, rule, fate, self._packet, self._base, tuple(self._path)))
