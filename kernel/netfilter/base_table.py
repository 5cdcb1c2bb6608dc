"""A table of nftables whose sets, chains and rules never change: its creation where it is absent, and its check.

Only the elements of its sets change, which are the caller's. A `BaseTable` is a value; functions named *_requests
return Requests and change nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from kernel.netfilter import nft, nft_rule, nft_set
from kernel.netfilter.nft import Chain, NftSocket, Table
from kernel.netfilter.nft_set import Set
from kernel.rtnl import Request


class TextRule(NamedTuple):
    """A rule as `nft list` prints it, and its bytes."""

    text: str
    expressions: bytes


class BaseTable(NamedTuple):
    """A table without its elements; `uses` is `Chain.uses` of each complete chain."""

    table: Table
    sets: tuple[Set, ...]
    chains: tuple[Chain, ...]
    rules: dict[Chain, tuple[TextRule, ...]]
    uses: dict[Chain, int]


def missing_table_requests(socket: NftSocket, base: BaseTable) -> list[Request]:
    """Returns the requests that create a table; none if it is complete."""
    return [] if is_complete(socket, base) else table_requests(base)


def is_complete(socket: NftSocket, base: BaseTable) -> bool:
    """Returns whether all chains exist with their number of rules; raises KernelError.

    Only counts the rules, as other programs add none; `find_problem` looks at each.
    """
    existing = nft.get_chains(socket, *base.uses)
    return all(
        chain == desired and chain.uses == uses
        for chain, (desired, uses) in zip(existing, base.uses.items(), strict=True)
    )


def table_requests(base: BaseTable) -> list[Request]:
    """Returns the requests that create a table, and repair its rules if it exists."""
    requests = [
        nft.table_request(base.table),
        *map(nft_set.set_request, base.sets),
        *map(nft.chain_request, base.chains),
    ]
    for chain, content in base.rules.items():
        # Flushed even if it is empty: a parallel ADD may fill it first.
        requests += [nft.flush_chain_request(chain), *(nft.rule_request(chain, rule.expressions) for rule in content)]
    return requests


def find_problem(socket: NftSocket, base: BaseTable) -> str:
    """Returns which chain has no such hook, or lacks a rule that refers to the sets; "" for none. Raises KernelError.

    Further rules between them are accepted.
    """
    for chain, existing in zip(base.chains, nft.get_chains(socket, *base.chains), strict=True):
        if existing != chain:
            return f"chain {chain} {'has another hook or priority' if existing else 'is missing'}"
    for chain, content in base.rules.items():
        remaining = iter(nft.list_rules(socket, chain))
        for rule in content:
            if not any(nft_rule.is_same_rule(rule.expressions, existing.expressions) for existing in remaining):
                return f'rule "{rule.text}" of chain {chain} is missing, or not in its position'
    return ""


def differs(socket: NftSocket, base: BaseTable) -> bool:
    """Returns whether an existing chain or set of this table has another type, for which the kernel's errno varies."""
    chains = zip(base.chains, nft.get_chains(socket, *base.chains), strict=True)
    return any(existing not in (None, desired) for desired, existing in chains) or False in nft_set.get_key_matches(
        socket, *base.sets
    )
