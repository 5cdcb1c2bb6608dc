"""Creates and checks an nftables table whose sets, chains and rules never change.

Only the elements of its sets change; the caller manages these. A `BaseTable` is a value; *_requests functions return
Requests and change nothing.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from kernel.errors import KernelError
from kernel.netfilter import nft, nft_compile, nft_rule, nft_set
from kernel.netfilter.nft import Chain, NftSocket, Table
from kernel.netfilter.nft_dry_run import dry_run
from kernel.netfilter.nft_set import Set
from kernel.rtnl import Request


class BaseTable(NamedTuple):
    """A table without elements; `rules` has, for each chain, its rules: their text and expressions.

    A chain without rules belongs to the administrator. For each other chain `uses` is the `Chain.uses` that the kernel
    reports when the table is complete: the number of its rules, and of rules that jump to it.
    """

    table: Table
    sets: tuple[Set, ...]
    rules: dict[Chain, dict[str, bytes]]
    uses: dict[Chain, int]

    @classmethod
    def compile(cls, table: Table, sets: tuple[Set, ...], texts: dict[Chain, tuple[str, ...]]) -> BaseTable:
        """Compiles a table from the texts of its rules, in the form that `nft list` prints."""
        rules = {
            chain: {text: nft_compile.compile_rule(text, table.family) for text in texts[chain]} for chain in texts
        }
        last_words = [
            text.rpartition(" ")[2] for of_chain in texts.values() for text in of_chain
        ]  # targets of jumps, verdicts
        uses = {chain: len(rules[chain]) + last_words.count(chain.name) for chain in texts if texts[chain]}
        return cls(table, sets, rules, uses)


def missing_table_requests(socket: NftSocket, base: BaseTable) -> list[Request]:
    """Returns the requests that create or repair a table; none if it is complete. Raises KernelError."""
    return [] if is_complete(socket, base) else table_requests(base)


def is_complete(socket: NftSocket, base: BaseTable) -> bool:
    """Returns whether all chains exist and have the right number of rules; raises KernelError.

    It only counts rules; `find_problem` compares each of them.
    """
    existing = nft.get_chains(socket, *base.uses)
    return all(
        chain == desired and chain.uses == uses
        for chain, (desired, uses) in zip(existing, base.uses.items(), strict=True)
    )


def table_requests(base: BaseTable) -> list[Request]:
    """Returns the requests that create a table, or replace the rules of an existing one."""
    requests = [
        nft.table_request(base.table),
        *map(nft_set.set_request, base.sets),
        *map(nft.chain_request, base.rules),
    ]
    for chain in base.uses:
        # Flushes even a new chain: a parallel ADD may have filled it.
        requests.append(nft.flush_chain_request(chain))
        requests += [nft.rule_request(chain, expressions) for expressions in base.rules[chain].values()]
    return requests


def find_problem(socket: NftSocket, base: BaseTable) -> str:
    """Returns a problem if a chain is missing, has another hook, or lacks a rule, else ""; raises KernelError.

    Additional rules of other programs are accepted, also between these.
    """
    for chain, existing in zip(base.rules, nft.get_chains(socket, *base.rules), strict=True):
        if existing != chain:
            return f"chain {chain} {'has another hook or priority' if existing else 'is missing'}"
    for chain, rules in base.rules.items():
        remaining = iter(nft.list_rules(socket, chain) if rules else ())
        for text, expressions in rules.items():
            if not any(nft_rule.is_same_rule(expressions, existing.expressions) for existing in remaining):
                return f'rule "{text}" of chain {chain} is missing, or not in its position'
    return ""


def find_obstacle(socket: NftSocket, base: BaseTable, requirement: str) -> str:
    """Returns why the kernel refuses the table, "" if it accepts it; changes nothing.

    `requirement` is the message for a kernel that does not support such tables.
    """
    try:
        dry_run(socket, *table_requests(base))
    except KernelError as error:
        if error.errno == errno.EPERM:
            return str(error)
        table = f"{'bridge' if base.table.family == nft.BRIDGE else 'inet'} {base.table.name}"
        if _differs(socket, base):
            return f"another program created it with other properties: nft list table {table} ({error})"
        return f"{requirement} ({error})"
    return ""


def _differs(socket: NftSocket, base: BaseTable) -> bool:
    """Returns whether an existing chain or set has other properties; the kernel's errno for this varies."""
    chains = zip(base.rules, nft.get_chains(socket, *base.rules), strict=True)
    return any(existing not in (None, desired) for desired, existing in chains) or False in nft_set.get_key_matches(
        socket, *base.sets
    )
