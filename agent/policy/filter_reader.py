"""Reads the kernel's table of the policy filter as a FilterTable, in the terms of the desired one.

What equals the desired content is the same object in the result, so that comparing both is short. What no FilterTable
has is listed beside it: base chains that differ, and foreign chains, sets and counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from agent.policy import filter_rules
from agent.policy.filter_rules import BASE, BASE_SETS
from agent.policy.filter_table import AcceptRule, ChainContent, FilterTable, SetChange
from attachment.policy.table import TABLE
from kernel.netfilter import nft, nft_counter, nft_interval, nft_map, nft_set, nft_table
from kernel.netfilter.nft import Chain, NftSocket
from kernel.netfilter.nft_rule import is_same_rule
from kernel.netfilter.nft_set import Set, Signature
from kernel.netfilter.nft_table import TableContent
from kernel.rtnl import Request

_OTHER_CONTENT = ChainContent("", (AcceptRule(protocol="?"),))  # equals no desired content


class ExistingFilter(NamedTuple):
    """The kernel's table: chains and sets of the desired table that exist, and the rest.

    `changes` make the existing sets equal the desired ones. `base_chains` are absent or have other rules. `foreign`
    requests delete what is not desired. `is_usable` is False if a chain has another hook or a set another type.
    """

    is_usable: bool
    table: FilterTable
    changes: Mapping[str, SetChange]
    base_chains: tuple[Chain, ...]
    foreign: list[Request]


def read(socket: NftSocket, desired: FilterTable) -> ExistingFilter:
    """Reads the kernel's table; raises KernelError."""
    content = nft_table.read_table(socket, TABLE)
    if not _is_usable(content, desired):
        return ExistingFilter(False, FilterTable({}, {}, {}), {}, BASE.chains, [])
    chains = {
        name: expected if _has_rules(content, name, filter_rules.rules_of(name, expected)) else _OTHER_CONTENT
        for name, expected in desired.chains.items()
        if name in content.chains
    }
    sets = {name: elements for name, elements in desired.sets.items() if name in content.sets}
    base_chains = tuple(
        chain
        for chain, rules in BASE.rules.items()
        if not _has_rules(content, chain.name, [rule.expressions for rule in rules])
    )
    return ExistingFilter(
        True,
        FilterTable({}, chains, sets),
        {name: _compare_set(socket, name, desired) for name in sets},
        base_chains,
        _foreign_requests(socket, content, desired),
    )


def read_verdicts(socket: NftSocket) -> dict[Set, dict[bytes, str]]:
    """Reads the elements of `BASE.sets`: chains by key, "" in the sets without verdicts; raises KernelError."""
    return {
        one: nft_map.list_gotos(socket, one) if one.verdicts else dict.fromkeys(nft_set.list_keys(socket, one), "")
        for one in BASE.sets
    }


def _is_usable(content: TableContent, desired: FilterTable) -> bool:
    sets = [*BASE.sets, *map(filter_rules.set_of, desired.sets)]
    hooks = {chain.name: chain.hook for chain in BASE.chains}
    return all(content.sets.get(one.name) in (None, Signature.of(one)) for one in sets) and all(
        chain.hook == hooks.get(name) and not chain.drops for name, chain in content.chains.items()
    )


def _has_rules(content: TableContent, chain: str, rules: list[bytes]) -> bool:
    existing = content.rules.get(chain, [])
    return chain in content.chains and len(rules) == len(existing) and all(map(is_same_rule, rules, existing))


def _compare_set(socket: NftSocket, name: str, desired: FilterTable) -> SetChange:
    """Returns the difference of the kernel's set from the desired one."""
    of_kernel = filter_rules.set_of(name)
    if of_kernel.interval:
        ranges = {filter_rules.interval_of(one): one for one in desired.sets[name]}
        intervals = nft_interval.list_intervals(socket, of_kernel)
        added = [one for interval, one in ranges.items() if interval not in intervals]
        return SetChange(added, [filter_rules.range_of(one, of_kernel) for one in intervals - ranges.keys()])
    elements = {filter_rules.key_of(one): one for one in desired.sets[name]}
    keys = nft_set.list_keys(socket, of_kernel)
    added = [one for key, one in elements.items() if key not in keys]
    return SetChange(added, [filter_rules.element_of(key, of_kernel) for key in keys - elements.keys()])


def _foreign_requests(socket: NftSocket, content: TableContent, desired: FilterTable) -> list[Request]:
    """Returns the requests that delete the chains, sets and counters that are not desired."""
    base_chains = {chain.name for chain in BASE.chains}
    chains = [Chain(TABLE, name) for name in content.chains.keys() - base_chains - desired.chains.keys()]
    sets = [Set(TABLE, name, ()) for name in content.sets.keys() - BASE_SETS - desired.sets.keys()]
    counters = nft_counter.list_counters(socket, TABLE).keys() - set(map(filter_rules.counter_of, desired.chains))
    return [
        *map(nft.flush_chain_request, chains),
        *map(nft.delete_chain_request, chains),
        *map(nft_set.delete_set_request, sets),
        *(nft_counter.delete_counter_request(TABLE, name) for name in counters),
    ]
