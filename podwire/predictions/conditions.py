"""The conditions and the effect of a rule, derived from the rule alone, without a packet.

One rule: what is not read for certain counts as a condition, and as an effect that may stop a packet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kernel.netfilter.nft_expression import parse_content
from kernel.netfilter.ruleset import FilterChain, FilterRule, Ruleset
from podwire.predictions.nft_machine import CONTINUING_OBJECTS, DEEPEST, VERDICTS, number_of

_IN, _OUT = 6, 7  # NFT_META_IIFNAME, OIFNAME
_LOADS = ("meta", "payload", "ct", "fib", "socket", "rt", "exthdr", "bitwise", "byteorder", "immediate", "osf", "xfrm")
_PASSING = ("counter", "log", "last", "reject", "queue", "target", "notrack", "masq", "nat", "redir")
_TARGETS = {"DROP": "drop", "REJECT": "reject", "ACCEPT": "accept", "RETURN": "return"}
_HARMLESS_TARGETS = ("LOG", "NFLOG", "ULOG", "CHECKSUM", "TCPMSS", "TRACE")
_RANDOM = ("numgen", "hash", "statistic")
_OTHER_EFFECTS = ("synproxy", "dynset", "dup", "fwd", "tproxy")


class InterfaceMatch(NamedTuple):
    """A comparison of an interface's name, which ends in "+" if further characters may follow."""

    is_input: bool
    name: str
    inverted: bool

    def excludes(self, iif: str, oif: str) -> bool:
        """Returns whether no packet with these interfaces, "" if not known, is accepted."""
        name = iif if self.is_input else oif
        equal = name.startswith(self.name[:-1]) if self.name.endswith("+") else name == self.name
        return bool(name) and equal == self.inverted


class Conditions(NamedTuple):
    """The conditions of a rule: the interfaces that it names, and whether it has any other one."""

    interfaces: tuple[InterfaceMatch, ...] = ()
    has_others: bool = False
    is_random: bool = False

    @property
    def are_narrow(self) -> bool:
        """Whether they say more than one interface."""
        return self.has_others or len(self.interfaces) > 1 or any(one.inverted for one in self.interfaces)


class Effect(NamedTuple):
    """The effect of a rule: "" for none on the packet, a verdict, or "other"; `chain` is the target of a jump."""

    kind: str
    chain: str = ""


def conditions_of(*rules: FilterRule) -> Conditions:
    """Returns the conditions of rules that must all match."""
    parts = [_of_words(rule.words) if rule.words else _of_expressions(rule) for rule in rules]
    interfaces = dict.fromkeys(one for part in parts for one in part.interfaces)
    return Conditions(tuple(interfaces), any(part.has_others for part in parts), any(part.is_random for part in parts))


def effect_of(rule: FilterRule) -> Effect:
    """Returns the effect of a rule that matches."""
    if rule.words:
        return _effect_of_words(rule.words)
    effect = Effect("")
    for name, fields in rule.expressions:
        if name == "immediate" and 2 in (content := parse_content(fields.get(2, b""))):
            verdict = parse_content(content[2])
            kind = VERDICTS.get(number_of(verdict, 1), "other")
            effect = Effect(kind, verdict.get(2, b"").rstrip(b"\0").decode(errors="replace"))
        elif name == "target":
            effect = _target(fields.get(1, b"").rstrip(b"\0").decode(errors="replace"))
        elif name == "lookup" and 3 in fields:
            effect = Effect("other")  # a map of verdicts
        elif name in _OTHER_EFFECTS or (name == "meta" and 3 in fields) or (name == "ct" and 4 in fields):
            effect = Effect("other")  # a mark, by which another rule may decide
        elif name in ("reject", "queue"):
            effect = Effect(name)
    return effect


def is_followed_by_restriction(ruleset: Ruleset, rules: Iterable[FilterRule], *, iif: str = "", oif: str = "") -> bool:
    """Returns whether a rule behind one of `rules`, in its chain, may stop packets with these interfaces, or mark them.

    An unconditional drop does not count: the earlier rule drops the same packets already.
    """
    return any(
        _may_restrict(ruleset, later, iif, oif, is_narrow=False)
        for rule in rules
        for later in _rules_behind(ruleset, rule)
    )


def position_of(ruleset: Ruleset, rule: FilterRule) -> int:
    """Returns the number of a rule in its chain; the first is 1."""
    handles = [one.handle for one in ruleset.rules.get(rule.chain.place, ())]
    return handles.index(rule.handle) + 1


def _rules_behind(ruleset: Ruleset, rule: FilterRule) -> list[FilterRule]:
    every = ruleset.rules.get(rule.chain.place, [])
    return every[position_of(ruleset, rule) :]


def _may_restrict(ruleset: Ruleset, rule: FilterRule, iif: str, oif: str, *, is_narrow: bool, depth: int = 0) -> bool:
    conditions, effect = conditions_of(rule), effect_of(rule)
    if any(one.excludes(iif, oif) for one in conditions.interfaces) or effect.kind in ("", "accept", "return"):
        return False
    is_narrow = is_narrow or conditions.are_narrow
    if effect.kind in ("drop", "reject"):
        return is_narrow
    if effect.kind not in ("jump", "goto") or depth > DEEPEST:
        return True
    chain = FilterChain(rule.chain.family, rule.chain.table, effect.chain, tool=rule.chain.tool)
    inner = ruleset.rules.get(chain.place, ())
    return any(_may_restrict(ruleset, one, iif, oif, is_narrow=is_narrow, depth=depth + 1) for one in inner)


def _of_words(words: tuple[str, ...]) -> Conditions:
    interfaces: list[InterfaceMatch] = []
    has_others = is_random = inverted = False
    index = 0
    while index < len(words) and words[index] not in ("-j", "-g"):
        word, value = words[index], words[index + 1] if index + 1 < len(words) else ""
        index += 1
        if word == "!":
            inverted = True
            continue
        if word in ("-i", "-o"):
            interfaces.append(InterfaceMatch(word == "-i", value, inverted))
        elif word == "--comment":
            index += 1
        elif word.startswith("-") and (word, value) != ("-m", "comment"):
            has_others = True
            is_random |= value in _RANDOM
        inverted = False
    return Conditions(tuple(interfaces), has_others, is_random)


def _of_expressions(rule: FilterRule) -> Conditions:
    interfaces: list[InterfaceMatch] = []
    has_others = is_random = False
    loaded: dict[int, int] = {}  # by register: the direction of the interface whose name it holds
    for name, fields in rule.expressions:
        if name == "meta" and 3 not in fields:
            loaded[number_of(fields, 1)] = number_of(fields, 2)
        elif name == "cmp" and loaded.get(register := number_of(fields, 1)) in (_IN, _OUT):
            data = parse_content(fields.get(3, b"")).get(1, b"")
            text = data.rstrip(b"\0").decode(errors="replace") + ("" if b"\0" in data or len(data) == 16 else "+")
            interfaces.append(InterfaceMatch(loaded[register] == _IN, text, number_of(fields, 2) == 1))
        elif name in _RANDOM:
            has_others = is_random = True
        elif name == "match":
            kind = fields.get(1, b"").rstrip(b"\0").decode(errors="replace")
            has_others |= kind != "comment"
            is_random |= kind in _RANDOM
        elif name == "objref":
            has_others |= number_of(fields, 1) not in CONTINUING_OBJECTS
        elif name in _LOADS:
            loaded.pop(number_of(fields, 1), None)
        elif name not in _PASSING:
            has_others = True
    return Conditions(tuple(interfaces), has_others, is_random)


def _effect_of_words(words: tuple[str, ...]) -> Effect:
    for option in ("-j", "-g"):
        if option in words[:-1]:
            return _target(words[words.index(option) + 1], is_legacy=True)
    return Effect("")


def _target(name: str, *, is_legacy: bool = False) -> Effect:
    if name in _TARGETS:
        return Effect(_TARGETS[name])
    if name in _HARMLESS_TARGETS:
        return Effect("")
    if is_legacy and name not in ("MARK", "CONNMARK", "NFQUEUE", "QUEUE"):
        return Effect("jump", name)  # to a chain, or to one without rules if it is another target
    return Effect("other")
