"""Reads the kernel's table of the policy filter, and compares it with the desired one. It changes nothing."""

from __future__ import annotations

from agent.policy import filter_rules
from agent.policy.filter_rules import BASE_SETS
from agent.policy.filter_table import FilterTable
from attachment.policy.table import TABLE
from kernel.netfilter import nft_interval, nft_set, nft_table
from kernel.netfilter.base_table import BaseTable
from kernel.netfilter.nft import NftSocket
from kernel.netfilter.nft_rule import is_same_rule
from kernel.netfilter.nft_set import Set


def equals(socket: NftSocket, base: BaseTable, desired: FilterTable) -> bool:
    """Returns whether the kernel's table has `base`, the content of `desired`, and nothing else; raises KernelError."""
    content = nft_table.read_table(socket, TABLE)
    counters = nft_table.list_counters(socket, TABLE)
    rules = {chain: list(of_chain.values()) for chain, of_chain in base.rules.items()}
    rules |= {filter_rules.chain_of(name): filter_rules.rules_of(name, chain) for name, chain in desired.chains.items()}
    hooks = {chain.name: (chain.hook, False) for chain in rules}
    return (
        {name: (chain.hook, chain.drops) for name, chain in content.chains.items()} == hooks
        and content.sets == {element_set.name for element_set in BASE_SETS} | desired.sets.keys()
        and counters.keys() == set(map(filter_rules.counter_of, desired.chains))
        and all(_have_same_rules(of_chain, content.rules.get(chain.name, [])) for chain, of_chain in rules.items())
        and read_verdicts(socket) == filter_rules.verdict_elements(desired.verdicts)
        and all(_has_elements(socket, name, desired) for name in desired.sets)
    )


def read_verdicts(socket: NftSocket) -> dict[Set, dict[bytes, str]]:
    """Reads the elements of `BASE_SETS` by key, with their chains, "" in the sets SELF; raises KernelError."""
    return {
        element_set: {item.key: item.chain for item in nft_set.list_elements(socket, element_set)}
        if element_set.verdicts
        else dict.fromkeys(nft_set.list_keys(socket, element_set), "")
        for element_set in BASE_SETS
    }


def _have_same_rules(desired: list[bytes], existing: list[bytes]) -> bool:
    return len(desired) == len(existing) and all(map(is_same_rule, desired, existing))


def _has_elements(socket: NftSocket, name: str, desired: FilterTable) -> bool:
    element_set, elements = filter_rules.set_of(name), desired.sets[name]
    if element_set.interval:
        return nft_interval.list_intervals(socket, element_set) == set(map(filter_rules.interval_of, elements))
    return nft_set.list_keys(socket, element_set) == set(map(filter_rules.key_of, elements))
