"""iptables' rules, changes and listings as values, and their text: what `iptables -S` lists and iptables-restore reads.

This module is pure, and the only one that writes or parses that text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from socket import AF_INET, AF_INET6, inet_ntop
from typing import NamedTuple

from cni.address import Network
from process.values import dataclass, field

COMMENT_MAX = 255  # bytes: XT_MAX_COMMENT_LEN - 1 (linux/netfilter/xt_comment.h)

_PLAIN = re.compile(r"[-\w]+", re.ASCII)  # a word that iptables lists without quotes
_SPECIAL = re.compile(r"""(["'\\])""")
_ESCAPED = re.compile(r"\\(.)")
_COMMENT = re.compile(r'--comment (?:"((?:[^"\\]|\\.)*)"|(\S+))')
_OPTION = re.compile(r'((?:! )?--?\w[-\w]*)((?: (?:"(?:[^"\\]|\\.)*"|[^-!\s]\S*))*)')


def quoted(text: str) -> str:
    """Returns a text as one quoted word: iptables-restore takes it for an argument, whatever it contains."""
    return f'"{_SPECIAL.sub(_escape, text)}"'


def comment_match(text: str) -> str:
    """Returns the match for a comment, as iptables lists it."""
    return f"-m comment --comment {text if _PLAIN.fullmatch(text) else quoted(text)}"


def address_text(packed: bytes) -> str:
    """Returns an address as iptables lists it: inet_ntop() writes ::1.2.3.4 where ipaddress writes ::102:304."""
    return inet_ntop(AF_INET if len(packed) == 4 else AF_INET6, packed)


def network_text(network: Network) -> str:
    """Returns a network as iptables lists it."""
    return f"{address_text(network.network_address.packed)}/{network.prefixlen}"


class IptablesRule(NamedTuple):
    """A rule: `spec` has its matches and its target, as they are listed: "-s 10.22.0.2/32 -j ACCEPT"."""

    chain: str
    spec: str

    def __str__(self) -> str:
        return f"-A {self.chain} {self.spec}"

    @property
    def target(self) -> str:
        """The chain or verdict in which the rule ends, "" for none and for one with options, such as DNAT."""
        start, _, word = self.spec.rpartition(" ")
        is_comment = word.endswith('"')
        return word if start.endswith(("-j", "-g")) and not is_comment else ""

    @property
    def comment(self) -> str:
        """The text of the rule's comment, "" without one."""
        match = _COMMENT.search(self.spec)
        return match[2] or _ESCAPED.sub(_unescape, match[1]) if match else ""

    @property
    def options(self) -> list[tuple[str, str]]:
        """The options with their values, in order; "-m NAME" has none, and an inverted option has "! " before its name.

        [("-p", "tcp"), ("-m comment", ""), ("--comment", '"x"'), ("! -o", "br0"), ("-j", "X")]
        """
        options = ((name, words[1:]) for name, words in _OPTION.findall(self.spec))
        return [(f"-m {value}", "") if name == "-m" else (name, value) for name, value in options]


class IptablesChange(NamedTuple):
    """A change of a chain ("-N", "-F", "-X"), or of a rule ("-A", "-I" before the rule at `position`, "-D")."""

    verb: str
    chain: str
    spec: str = ""
    position: int = 1

    def __str__(self) -> str:
        number = f" {self.position}" if self.position > 1 else ""
        return f"{self.verb} {self.chain}{number} {self.spec}".rstrip(" ")

    @classmethod
    def new_chain(cls, chain: str) -> IptablesChange:
        """Returns the change that creates a chain."""
        return cls("-N", chain)

    @classmethod
    def flush_chain(cls, chain: str) -> IptablesChange:
        """Returns the change that deletes all rules of a chain."""
        return cls("-F", chain)

    @classmethod
    def delete_chain(cls, chain: str) -> IptablesChange:
        """Returns the change that deletes an empty chain."""
        return cls("-X", chain)

    @classmethod
    def append(cls, rule: IptablesRule) -> IptablesChange:
        """Returns the change that adds a rule at the end of its chain."""
        return cls("-A", *rule)

    @classmethod
    def insert(cls, rule: IptablesRule, position: int = 1) -> IptablesChange:
        """Returns the change that adds a rule before the one at `position`, which starts at 1."""
        return cls("-I", *rule, position)

    @classmethod
    def delete(cls, rule: IptablesRule) -> IptablesChange:
        """Returns the change that deletes the first rule equal to `rule`."""
        return cls("-D", *rule)


@dataclass
class ChainList:
    """The existing chains of a table, or some of them, each with its rules in order.

    `confirmed`: the number of rules, from the first, that a program has confirmed (netfilter.iptables.list_chains).
    """

    # Text instead of rules: most rules of a whole table are never read.
    _specs: dict[str, list[str]] = field(default_factory=dict)
    confirmed: int = 0

    @classmethod
    def of(cls, chains: Iterable[str], rules: Iterable[IptablesRule] = ()) -> ChainList:
        """Returns a listing of chains and rules."""
        specs: dict[str, list[str]] = {chain: [] for chain in chains}
        for rule in rules:
            specs.setdefault(rule.chain, []).append(rule.spec)
        return cls(specs)

    @classmethod
    def parse(cls, text: str) -> ChainList:
        """Parses what `-S` prints; skips lines that are no chains (-P, -N) and no rules (-A)."""
        specs: dict[str, list[str]] = {}
        for line in text.split("\n"):
            verb, _, rest = line.partition(" ")
            if verb in ("-A", "-N", "-P"):
                chain, _, spec = rest.partition(" ")
                of_chain = specs.setdefault(chain, [])
                if verb == "-A":
                    of_chain.append(spec)
        return cls(specs)

    @property
    def chains(self) -> Collection[str]:
        """The names of the chains."""
        return self._specs.keys()

    def rules(self, chain: str) -> list[IptablesRule]:
        """Returns the rules of a chain, none if it is missing."""
        return [IptablesRule(chain, spec) for spec in self._specs.get(chain, ())]

    def __contains__(self, rule: IptablesRule) -> bool:
        return rule.spec in self._specs.get(rule.chain, ())

    def __or__(self, other: ChainList) -> ChainList:
        """Returns the chains of both listings, with the rules of `other` for those in both."""
        return ChainList(self._specs | other._specs, other.confirmed)

    def jumps_to(self, chain: str) -> list[str]:
        """Returns the chains with a rule that jumps to `chain`."""
        ends = (f"-j {chain}", f"-g {chain}")
        return [name for name, specs in self._specs.items() if any(spec.endswith(ends) for spec in specs)]


def _escape(match: re.Match[str]) -> str:
    return f"\\{match[1]}"


def _unescape(match: re.Match[str]) -> str:
    return match[1]
