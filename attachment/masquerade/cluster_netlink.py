"""The cluster's networks over netlink: the sets of nftables, and the chains PODWIRE-CLUSTER of iptables-nft.

Both are objects of nf_tables, so one transaction changes all of them, and the ruleset's generation covers all of them.
Everything in them is podwire-agent's: a comparison deletes elements and rules that are not the cluster's.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from ipaddress import ip_address, summarize_address_range
from typing import NamedTuple

from attachment.masquerade.names import CLUSTER_CHAIN
from attachment.masquerade.nftables import CLUSTER_SETS, TABLE
from cni.address import Network
from kernel.errors import KernelError
from kernel.netfilter import nft
from kernel.netfilter.iptables import TOOLS
from kernel.netfilter.iptables_accept import accept_filter, accept_request, parse_accepted
from kernel.netfilter.iptables_nft import TABLES
from kernel.netfilter.nft import Chain, NftSocket
from kernel.netfilter.nft_interval import (
    Interval,
    add_interval_requests,
    delete_interval_requests,
    interval_of,
    list_intervals,
)
from kernel.netfilter.nft_set import Set, delete_set_request, get_key_matches, set_request
from kernel.rtnl import Request

Networks = frozenset[Network]

DELETIONS_MAX = 100  # rules; the kernel searches the chain for each: 10,000 take 10 s, adding as many takes 0.3 s
_CHAINS = {version: Chain(table, CLUSTER_CHAIN) for version, table in TABLES.items()}


class Places(NamedTuple):
    """The IP versions that have a set, and those that have a chain."""

    sets: frozenset[int] = frozenset()
    chains: frozenset[int] = frozenset()


class Comparison(NamedTuple):
    """The result of a comparison: the elements and rules that it changed, and the places that exist now."""

    number: int
    is_changed: bool
    places: Places


def compare(socket: NftSocket, desired: Networks, generation: int, *, create: bool) -> Comparison:
    """Makes sets and chains contain exactly the networks, in one transaction; raises KernelError.

    With `create` it creates missing sets and their table. It changes nothing if nftables has changed since `generation`
    (ERESTART).
    """
    matches = dict(zip(CLUSTER_SETS, get_key_matches(socket, *CLUSTER_SETS.values()), strict=True))
    existing_sets = {version for version, is_same in matches.items() if create or is_same is not None}
    requests: list[Request] = []
    if not all(matches[version] for version in existing_sets):
        requests.append(nft.table_request(TABLE))
        requests += [set_request(CLUSTER_SETS[version]) for version in existing_sets if not matches[version]]
    number = 0
    for version in existing_sets:
        intervals = {interval_of(network) for network in desired if network.version == version}
        existing = list_intervals(socket, CLUSTER_SETS[version]) if matches[version] else set()
        requests += _set_requests(CLUSTER_SETS[version], intervals - existing, existing - intervals)
        number += len(intervals ^ existing)
    chains = dict(_list_chains(socket))
    for version, chain in chains.items():
        rules = _chain_requests(socket, chain, version, {item for item in desired if item.version == version})
        requests += rules
        number += len(rules)
    nft.change(socket, *requests, generation=generation)
    return Comparison(number, bool(requests), Places(frozenset(existing_sets), frozenset(chains)))


def change(socket: NftSocket, places: Places, added: Networks, removed: Networks, generation: int) -> int:
    """Applies a difference in one transaction; returns the number of elements and rules that it changed.

    Raises KernelError if the state is not the one before (ENOENT, EEXIST), and ERESTART as `compare`.
    """
    requests: list[Request] = []
    number = 0
    for version in places.sets:
        added_intervals, removed_intervals = (
            {interval_of(network) for network in networks if network.version == version}
            for networks in (added, removed)
        )
        requests += _set_requests(CLUSTER_SETS[version], added_intervals, removed_intervals)
        number += len(added_intervals) + len(removed_intervals)
    for version in places.chains:
        chain = _CHAINS[version]
        removed_networks = {network for network in removed if network.version == version}
        rules = [accept_request(chain, network) for network in added if network.version == version]
        if removed_networks:
            for rule in nft.list_rules(socket, chain, accept_filter(removed_networks)):
                if parse_accepted(version, rule) in removed_networks:
                    rules.append(nft.delete_rule_request(chain, rule))
        requests += rules
        number += len(rules)
    nft.change(socket, *requests, generation=generation)
    return number


def list_networks(socket: NftSocket) -> dict[str, Networks]:
    """Lists the networks of each existing set and chain, by its name; raises KernelError."""
    existing = {}
    for nft_set, is_same in zip(CLUSTER_SETS.values(), get_key_matches(socket, *CLUSTER_SETS.values()), strict=True):
        if is_same:
            intervals = list_intervals(socket, nft_set)
            size = nft_set.key[0].size
            existing[f"set {nft_set}"] = frozenset(
                network for interval in intervals for network in _networks(interval, size)
            )
    for version, chain in _list_chains(socket):
        parsed = (parse_accepted(version, rule) for rule in nft.list_rules(socket, chain))
        existing[_chain_name(version)] = frozenset(network for network in parsed if network is not None)
    return existing


def remove(socket: NftSocket) -> list[str]:
    """Deletes each set and chain to which no rule refers; returns the names of the others. Raises KernelError."""
    remaining = []
    objects: dict[str, list[Request]] = {f"set {item}": [delete_set_request(item)] for item in CLUSTER_SETS.values()}
    for version, chain in _list_chains(socket):
        objects[_chain_name(version)] = [nft.flush_chain_request(chain), nft.delete_chain_request(chain)]
    for name, requests in objects.items():
        try:
            nft.change(socket, *requests)
        except KernelError as error:
            if error.errno == errno.EBUSY:
                remaining.append(name)
            elif error.errno not in nft.ABSENT_ERRNOS:
                raise
    return remaining


def _list_chains(socket: NftSocket) -> Iterator[tuple[int, Chain]]:
    existing = nft.get_chains(socket, *_CHAINS.values())
    return ((version, chain) for (version, chain), present in zip(_CHAINS.items(), existing, strict=True) if present)


def _chain_name(version: int) -> str:
    return f"chain {_CHAINS[version]} ({TOOLS[version]})"


def _set_requests(nft_set: Set, added: set[Interval], removed: set[Interval]) -> list[Request]:
    """Builds the requests for a difference; deletions are first, because the added intervals may overlap those."""
    return [
        *delete_interval_requests(nft_set, sorted(removed)),
        *add_interval_requests(nft_set, sorted(added)),
    ]


def _chain_requests(socket: NftSocket, chain: Chain, version: int, desired: set[Network]) -> list[Request]:
    """Builds the requests that make a chain's rules accept exactly the networks, each once."""
    requests = []
    missing = set(desired)
    for rule in nft.list_rules(socket, chain):
        network = parse_accepted(version, rule)
        if network in missing:
            missing.remove(network)
        else:
            requests.append(nft.delete_rule_request(chain, rule))
    if len(requests) > DELETIONS_MAX:
        missing = desired
        requests = [nft.flush_chain_request(chain)]
    return requests + [accept_request(chain, network) for network in _in_order(missing)]


def _in_order(networks: set[Network]) -> list[Network]:
    return sorted(networks, key=lambda network: (int(network.network_address), network.prefixlen))


def _networks(interval: Interval, size: int) -> Iterator[Network]:
    first, last = (ip_address(item.to_bytes(size, "big")) for item in (interval.first, interval.end - 1))
    return summarize_address_range(first, last)
