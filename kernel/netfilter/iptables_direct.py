"""Creates and recognises iptables-nft's rules over netlink, without running a program.

A program takes some 2.5 ms, a transaction a tenth of that. The kernel's rules are the same, byte for byte, so an
existing rule is recognised by comparing it with the bytes that would be written.

This module only adds to tables that the program has created, and only if the host's programs are iptables-nft's. In all
other cases, and after any failure, the program runs and reports the error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from kernel.errors import KernelError
from kernel.netfilter import nft
from kernel.netfilter.iptables_rule import ParsedLine, parse_line
from kernel.netfilter.nft import Chain, Hook, Rule, Table
from kernel.rtnl import Request

_LINES_MAX = 60  # of a family; parsing more takes longer than running the program
_LINKS_MAX = 40  # the kernel's limit
_PROGRAM = "xtables-nft-multi"  # the target of the links that are iptables-nft's programs
# The hooks of the chains that the program creates: NF_INET_* and priorities (nftables' names: dstnat, srcnat, filter).
_BUILT_IN = {
    ("nat", "PREROUTING"): Hook("nat", 0, -100),
    ("nat", "INPUT"): Hook("nat", 1, 100),
    ("nat", "OUTPUT"): Hook("nat", 3, -100),
    ("nat", "POSTROUTING"): Hook("nat", 4, 100),
    ("filter", "INPUT"): Hook("filter", 1, 0),
    ("filter", "FORWARD"): Hook("filter", 2, 0),
    ("filter", "OUTPUT"): Hook("filter", 3, 0),
}


def apply_by_netlink(changes: Mapping[int, Sequence[str]], table: str, programs: Mapping[int, str]) -> frozenset[int]:
    """Applies the lines of the families that netlink allows, all or none; returns those families.

    `changes` as for netfilter.iptables.apply, by IP version; `programs` are the paths of the families' programs.
    """
    requests: list[Request] = []
    built_in: list[Chain] = []
    done = []
    for version, lines in changes.items():
        if len(lines) > _LINES_MAX:
            continue
        kernel_table = Table(nft.NFPROTO[version], table)
        rules = [parse_line(version, line) for line in lines]
        if not lines or not all(rules) or not is_nft(programs[version]):
            continue
        parsed = [rule for rule in rules if rule]
        names = dict.fromkeys(rule.chain for rule in parsed if (table, rule.chain) in _BUILT_IN)
        built_in += [Chain(kernel_table, name, _BUILT_IN[table, name]) for name in names]
        requests += [_request(kernel_table, rule) for rule in parsed]
        done.append(version)
    if not requests:
        return frozenset()
    try:
        with nft.open_socket() as socket:
            if built_in and nft.get_chains(socket, *built_in) != built_in:
                return frozenset()
            nft.change(socket, *requests, recorded=False)
    except KernelError:
        return frozenset()
    return frozenset(done)


class LineMatcher:
    """Recognises lines of one IP version among the existing rules of a chain.

    Does not recognise rules in the form of another version of the program, nor lines that parse_line() does not know.
    A line is parsed when it is first compared.
    """

    def __init__(self, version: int, lines: Iterable[str]) -> None:
        self._version = version
        self._parsed: dict[str, ParsedLine | None] = {}
        self._lines = list(dict.fromkeys(lines))

    def line(self, rule: Rule) -> str:
        """Returns the line that equals a rule, "" if none does; each line matches one rule only."""
        for line in self._lines:
            if line not in self._parsed:
                self._parsed[line] = parse_line(self._version, line)
            parsed = self._parsed[line]
            if parsed and not rule.userdata and parsed.is_rule(rule.expressions):
                self._lines.remove(line)
                return line
        return ""


def match_lines(version: int, lines: Sequence[str], rules: Iterable[Rule]) -> list[str] | None:
    """Returns the `lines` that equal a chain's rules, in the rules' order; None if a rule is not recognised."""
    if len(lines) > _LINES_MAX:
        return None
    matcher = LineMatcher(version, lines)
    matched = [matcher.line(rule) for rule in rules]
    return matched if all(matched) else None


def is_nft(program: str) -> bool:
    """Returns whether a program is iptables-nft's; False for a wrapper script."""
    path = program
    try:
        for _ in range(_LINKS_MAX):
            path = os.path.join(os.path.dirname(path), os.readlink(path))
    except OSError:  # not a link: the end of the chain
        return os.path.basename(path) == _PROGRAM
    return False


def _request(table: Table, rule: ParsedLine) -> Request:
    chain = Chain(table, rule.chain)
    if rule.verb == "-N":
        return nft.chain_request(chain, new=True)
    return nft.rule_request(chain, rule.expressions, first=rule.verb == "-I", protocol=rule.protocol)
