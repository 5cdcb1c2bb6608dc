"""Deletes container chains of iptables-nft over netlink: its tables are nftables tables of the same names.

This module does not parse rules as iptables does. It recognises jumps by the verdict in their bytes, and owners by the
comment, so it needs no program and ignores rules that iptables cannot express.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from cni.address import Cidr
from cni.errors import run_all
from kernel.errors import KernelError
from kernel.netfilter import nft, nft_rule
from kernel.netfilter.iptables import NFPROTO
from kernel.netfilter.iptables_chains import TABLE, ChainScheme, report_emptied_chain, report_unproven
from kernel.netfilter.nft import Chain, NftRule, NftSocket, Table
from kernel.netfilter.owned import IPTABLES, OwnedRule
from kernel.rtnl import Request

TABLES = {version: Table(family, TABLE) for version, family in NFPROTO.items()}

_CHAINS_MAX = 100  # in one transaction, each with a few rules: 2,800 requests fill a socket's send buffer


def delete(socket: NftSocket, scheme: ChainScheme, chain: str, other_addresses: Iterable[Cidr] = ()) -> None:
    """Deletes the jumps to a chain, and the chain with its last jump, in both families; absence is success.

    Keeps the jumps that match one of `other_addresses`, those of the container's other interfaces. A chain to which
    another rule jumps cannot be deleted: it is flushed and reported on stderr. Raises KernelError.
    """
    if not nft.delete_or_flush(partial(_delete, socket, scheme, (chain,), tuple(other_addresses))):
        report_emptied_chain(chain)


def gc(socket: NftSocket, scheme: ChainScheme, network: str, kept: Collection[str]) -> None:
    """Deletes the chains of `network` that are not in `kept`, and the jumps to them; raises KernelError.

    Truncated comments prove nothing: their jumps stay, and stderr reports how many.
    """
    stale: dict[str, None] = {}
    doubtful = 0
    for table in TABLES.values():
        for rule in nft.list_rules(socket, Chain(table, scheme.entry), scheme.comment(network)):
            targets = _targets(scheme, rule)
            if any(chain in kept for chain in targets):
                continue
            proven = [chain for chain in targets if _proven_owner(scheme, rule, chain)]
            stale.update(dict.fromkeys(proven))
            doubtful += not proven
    if doubtful:
        report_unproven(doubtful, scheme, network)
    names = list(stale)
    for start in range(0, len(names), _CHAINS_MAX):
        _delete_all(socket, scheme, names[start : start + _CHAINS_MAX])


def list_owned_rules(socket: NftSocket, scheme: ChainScheme, what: str) -> list[tuple[OwnedRule, NftRule]]:
    """Lists the owners of the jumps to such chains, in both families; raises KernelError.

    The owner key is the name of the chain. An owner's names are set only if the chain's name proves them, see `gc`.
    """
    existing = []
    for table in TABLES.values():
        for rule in nft.list_rules(socket, Chain(table, scheme.entry), scheme.start):
            for chain in _targets(scheme, rule):
                names = _proven_owner(scheme, rule, chain) or ("", "")
                existing.append((OwnedRule(what, IPTABLES, f"chain {chain}", chain.encode(), *names), rule))
    return existing


def _delete_all(socket: NftSocket, scheme: ChainScheme, chains: Sequence[str]) -> None:
    """Deletes chains and the jumps to them in one transaction; splits the transaction in halves if it fails."""
    if len(chains) == 1:
        delete(socket, scheme, chains[0])
        return
    try:
        nft.retry(partial(_delete, socket, scheme, chains, (), nft.delete_chain_request))
    except KernelError:
        half = len(chains) // 2
        run_all(*(partial(_delete_all, socket, scheme, part) for part in (chains[:half], chains[half:])))


def _delete(
    socket: NftSocket,
    scheme: ChainScheme,
    names: Sequence[str],
    other_addresses: tuple[Cidr, ...],
    end: Callable[[Chain], Request],
) -> None:
    """Deletes the jumps to chains, and each chain with the request that `end` returns, in one transaction."""
    requests: list[Request] = []
    existing = iter(nft.get_chains(socket, *(Chain(table, name) for table in TABLES.values() for name in names)))
    for version, table in TABLES.items():
        chains = [chain for _, chain in zip(names, existing, strict=False) if chain]
        if not chains:
            continue
        entry = Chain(table, scheme.entry)
        kept = [nft_rule.compared_value(other.ip.packed) for other in other_addresses if other.version == version]
        jumps = _jumps(socket, entry, scheme, chains)
        for chain in chains:
            removed = [rule for rule in jumps[chain.name] if not any(source in rule.expressions for source in kept)]
            details = partial(str, f"-j {chain.name}")
            requests += [nft.delete_rule_request(entry, rule)._replace(details=details) for rule in removed]
            if len(removed) == len(jumps[chain.name]):
                requests += [nft.flush_chain_request(chain), end(chain)]
    nft.change(socket, *requests)


def _jumps(socket: NftSocket, entry: Chain, scheme: ChainScheme, chains: Iterable[Chain]) -> dict[str, list[NftRule]]:
    """Returns the rules of chain `entry` that jump to `chains`, by the chains' names, from one listing."""
    existing: dict[str, list[NftRule]] = {chain.name: [] for chain in chains}
    names = {name.encode() for name in existing}
    pattern = scheme.jump_pattern
    for rule in nft.list_rules(socket, entry, lambda message: not names.isdisjoint(pattern.findall(message))):
        for name in names.intersection(pattern.findall(rule.expressions)):
            existing[name.decode()].append(rule)
    return existing


def _targets(scheme: ChainScheme, rule: NftRule) -> list[str]:
    """Returns the container chain to which a rule jumps, none if it does not."""
    return [name.decode() for name in scheme.jump_pattern.findall(rule.expressions)]


def _proven_owner(scheme: ChainScheme, rule: NftRule, chain: str) -> tuple[str, str] | None:
    return scheme.proven_owner((rule.expressions + rule.userdata).decode(errors="replace"), chain)
