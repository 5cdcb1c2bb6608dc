"""Taking away what iptables-nft made for masquerading, over netlink: its tables are nftables tables of the same names.

One rule: no rule is read as iptables reads it. What jumps to a chain is found by the chain's name, whose it is by its
comment; so rules that iptables itself cannot express stand in nobody's way, and no program is needed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable
from functools import partial

from cni.address import Interface
from kernel import nft, nft_rule
from kernel.masquerade.names import ENTRY, TABLE, chain_name
from kernel.nft import Chain, NftSocket, Rule, Table
from kernel.rtnl import Request

_TABLES = {4: Table(nft.IPV4, TABLE), 6: Table(nft.IPV6, TABLE)}
_OWNER = re.compile(rb'name: "([^"\\]+)" id: "([^"\\]+)"')


def delete(socket: NftSocket, chain: str, others: Iterable[Interface] = ()) -> None:
    """Deletes the jumps to a chain, and the chain with the last of them, in both families; absent is success.

    The jumps of `others`, addresses of the container's other interfaces, stay. A chain to which something else jumps
    cannot be deleted: it stays, empty, and that is told on stderr. Raises KernelError.
    """
    if not nft.delete_or_empty(partial(_delete, socket, chain, tuple(others))):
        print(f"podwire: chain {TABLE} {chain} stays, empty: a rule that is not ours jumps there", file=sys.stderr)


def gc(socket: NftSocket, network: str, kept: Collection[str]) -> None:
    """Deletes the chains of `network` that are not `kept`, and the jumps to them; raises KernelError.

    Jumps whose comment was cut prove nothing: they stay, and are counted on stderr.
    """
    stale: dict[str, None] = {}
    doubtful = 0
    for table in _TABLES.values():
        for rule in nft.rules(socket, Chain(table, ENTRY), f'name: "{network}" id: '):
            if any(_goes_to(rule, chain) for chain in kept):
                continue
            chain = _proven_chain(rule)
            if chain:
                stale[chain] = None
            else:
                doubtful += 1
    if doubtful:
        what = f"{doubtful} masquerade rule(s) seem to be of network {network}"
        print(f"podwire: {what} and stay, since their comments do not prove it", file=sys.stderr)
    for chain in stale:
        delete(socket, chain)


def _delete(socket: NftSocket, name: str, others: tuple[Interface, ...], end: Callable[[Chain], Request]) -> None:
    """Deletes the jumps to a chain and makes an `end` of it, in one transaction for both families."""
    requests: list[Request] = []
    for version, table in _TABLES.items():
        chain = Chain(table, name)
        if nft.get(socket, chain) == [None]:
            continue
        kept = [nft_rule.value(other.ip.packed) for other in others if other.version == version]
        jumps = [rule for rule in nft.rules(socket, Chain(table, ENTRY), name) if _goes_to(rule, name)]
        gone = [rule for rule in jumps if not any(source in rule.expressions for source in kept)]
        requests += [nft.rule_deletion(Chain(table, ENTRY), rule.handle) for rule in gone]
        if len(gone) == len(jumps):
            requests += [nft.flush(chain), end(chain)]
    nft.change(socket, *requests)


def _goes_to(rule: Rule, chain: str) -> bool:
    return chain.encode() + b"\0" in rule.expressions


def _proven_chain(rule: Rule) -> str:
    """Returns the chain a jump goes to when its comment, wherever it is kept, proves whose it is, else ""."""
    owner = _OWNER.search(rule.expressions + rule.userdata)
    chain = chain_name(*(item.decode(errors="replace") for item in owner.groups())) if owner else ""
    return chain if chain and _goes_to(rule, chain) else ""
