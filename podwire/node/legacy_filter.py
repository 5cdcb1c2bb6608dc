"""Reads the rules of iptables-legacy as chains and rules of kernel.netfilter.ruleset.

Cost: a process for each table that iptables-legacy has created; none where it has none.
"""

from __future__ import annotations

import shlex

from kernel.netfilter import iptables, nft
from kernel.netfilter.ruleset import FilterChain, FilterRule, Ruleset
from podwire.node.programs import list_legacy_rules
from process.values import replace

_TABLES = ("raw", "mangle", "nat", "filter", "security")
_HOOKS = {"PREROUTING": 0, "INPUT": 1, "FORWARD": 2, "OUTPUT": 3, "POSTROUTING": 4}  # NF_INET_*
_PRIORITIES = {"raw": -300, "mangle": -150, "filter": 0, "security": 50}  # NF_IP_PRI_*


def with_legacy(ruleset: Ruleset) -> Ruleset:
    """Returns the rule set with the rules of iptables-legacy; raises CniError if they cannot be listed."""
    chains: list[FilterChain] = []
    rules: dict[tuple[int, str, str, str], list[FilterRule]] = {}
    for version, tool in iptables.TOOLS.items():
        for table in _TABLES:
            for line in list_legacy_rules(version, table):
                words = shlex.split(line)
                if words[0] in ("-P", "-N"):
                    chains.append(_chain(nft.NFPROTO[version], table, words, f"{tool}-legacy"))
                elif words[0] == "-A":
                    chain = FilterChain(nft.NFPROTO[version], table, words[1], tool=f"{tool}-legacy")
                    above = rules.setdefault(chain.place, [])
                    above.append(FilterRule(chain, len(above) + 1, (), tuple(words[2:]) or ("",), "", line.encode()))
    if not chains:
        return ruleset
    return replace(ruleset, chains=(*ruleset.chains, *chains), rules={**ruleset.rules, **rules})


def _chain(family: int, table: str, words: list[str], tool: str) -> FilterChain:
    name = words[1]
    if words[0] == "-N":
        return FilterChain(family, table, name, tool=tool)
    kind = "nat" if table == "nat" else "filter"
    priority = _PRIORITIES.get(table, 100 if name in ("POSTROUTING", "INPUT") else -100)  # NF_IP_PRI_NAT_*
    return FilterChain(family, table, name, kind, _HOOKS[name], priority, words[2] == "DROP", (), tool)
