"""The existing host ports in iptables-nft's tables, read over netlink, without running a program.

One rule: a rule that is not recognised for certain counts as unknown; then the program lists the table.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Iterable

from cni.address import Address
from kernel.errors import KernelError
from kernel.netfilter import iptables, nft
from kernel.netfilter.iptables_chains import TABLE
from kernel.netfilter.iptables_direct import match_lines
from kernel.netfilter.iptables_nft import TABLES, chain_name_pattern
from kernel.netfilter.nft import Chain, NftSocket, Rule
from kernel.rtnl import Request
from plugins.portmap.iptables_rules import (
    CHAINS,
    DNAT,
    chain_name,
    desired_chain_rules,
    desired_entries,
    shared_chains,
    shared_rules,
)
from plugins.portmap.iptables_shared_rules import is_shared
from plugins.portmap.spec import HostPorts
from process.values import dataclass

_BUILT_IN = ("PREROUTING", "OUTPUT", "POSTROUTING")
# struct xt_multiport_v1 (linux/netfilter/xt_multiport.h) after name and revision of the match, as the kernel lists it.
_MULTIPORT = re.compile(rb"multiport\0..\x08\0\x02\0\0\0\0\x01.{2}\x03\0(.{48})", re.DOTALL)
_PORTS = struct.Struct("=BB15H15BB")
_TO_DESTINATION = 1  # XT_MULTIPORT_DESTINATION
_CONTAINER_CHAIN = chain_name_pattern(CHAINS)


@dataclass(frozen=True)
class TableState:
    """Table nat of one family.

    `listing`: our chains and the recognised shared rules, in the program's format. With `is_complete` this is enough:
    nothing conflicts with new rules, or every rule was recognised. Otherwise the program has to list `chains`, or the
    whole table if there are none. Built-in chains are listed only if needed: they may have rules that iptables cannot
    express.
    """

    is_complete: bool
    listing: tuple[str, ...] = ()
    chains: tuple[str, ...] = ()

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known: iptables-legacy created the table, or netlink could not be used."""
        return not self.is_complete and not self.chains


def get_states(host_ports: HostPorts, *, with_container_rules: bool = False) -> dict[int, TableState]:
    """Returns the state of table nat in each family; uses one netlink socket and no program.

    `with_container_rules` adds the container's rules, if all have the form that ADD creates.
    """
    unknown = TableState(is_complete=False)
    legacy = {version: unknown for version in host_ports.families if iptables.has_legacy(version, TABLE)}
    versions = [version for version in host_ports.families if version not in legacy]
    try:
        with nft.open_socket() as socket:
            return legacy | _get_states(socket, host_ports, versions, with_container_rules=with_container_rules)
    except KernelError:
        return dict.fromkeys(host_ports.families, unknown)


def has_other_targets(socket: NftSocket, host_ports: HostPorts, chains: Iterable[Chain]) -> bool:
    """Returns whether one of the container's `chains` has a rule that forwards to none of the pod's addresses.

    Costs a netlink message for each chain. Raises KernelError.
    """
    ranges = [_range_of(item.ip) for item in host_ports.addresses.values()]
    rules = [rule for chain in chains for rule in nft.list_rules(socket, chain, "DNAT\0")]
    return any(not any(part in rule.expressions for part in ranges) for rule in rules)


def delete_duplicate_rules(host_ports: HostPorts) -> None:
    """Deletes duplicate shared rules, which parallel ADDs on a new host create; raises KernelError.

    iptables-nft retries a commit after a conflict without reading the table again.
    """
    try:
        with nft.open_socket() as socket:
            nft.retry(lambda: nft.change(socket, *_delete_duplicate_requests(socket, host_ports)))
    except nft.UnavailableError:
        return


def entry_ports(rule: Rule) -> tuple[int, ...]:
    """Returns the ports of an entry, none if it does not list them in the reference's form."""
    match = _MULTIPORT.search(rule.expressions)
    if not match:
        return ()
    kind, number, *rest = _PORTS.unpack(match[1])
    return () if kind != _TO_DESTINATION or any(rest[15:]) else tuple(rest[:number])


def _range_of(address: Address) -> bytes:
    """Returns the first and last address of a DNAT rule as struct nf_nat_range has them (linux/netfilter/nf_nat.h)."""
    return address.packed.ljust(16, b"\0") * 2


def _delete_duplicate_requests(socket: NftSocket, host_ports: HostPorts) -> list[Request]:
    requests = []
    for version in host_ports.families:
        for rule in shared_rules(host_ports):
            chain = Chain(TABLES[version], rule.split()[1])
            same = [other for other in nft.list_rules(socket, chain) if is_shared(rule, other, host_ports, version)]
            requests += [nft.delete_rule_request(chain, other) for other in same[1:]]
    return requests


def _get_states(
    socket: NftSocket, host_ports: HostPorts, versions: Collection[int], *, with_container_rules: bool
) -> dict[int, TableState]:
    names = [chain_name(host_ports), *filter(None, [host_ports.external_mark_chain]), *shared_chains(host_ports)]
    chains = [Chain(TABLES[version], name) for version in versions for name in names]
    present: dict[int, list[str]] = {version: [] for version in versions}
    for chain, existing in zip(chains, nft.get_chains(socket, *chains), strict=True):
        if existing:
            present[4 if chain.table == TABLES[4] else 6].append(chain.name)
    return {
        version: _get_state(socket, host_ports, version, present[version], with_container_rules=with_container_rules)
        for version in versions
    }


def _get_state(
    socket: NftSocket, host_ports: HostPorts, version: int, present: list[str], *, with_container_rules: bool
) -> TableState:
    listing = [f"-N {name}" for name in present]
    unknown = []
    for rule in shared_rules(host_ports):
        candidates = _list_candidates(socket, host_ports, version, rule, present)
        if any(is_shared(rule, candidate, host_ports, version) for candidate in candidates):
            listing.append(rule)
        elif candidates:
            unknown.append(rule.split()[1])
    # Entries have all ports, even those without a mapping for this IP version (reference).
    ports = frozenset(
        mapping.host_port
        for mapping in (host_ports.mappings if with_container_rules else host_ports.mappings_for(version))
    )
    rivals = nft.list_rules(socket, Chain(TABLES[version], DNAT), _perhaps_for(ports)) if DNAT in present else []
    if with_container_rules and not unknown and (recognised := _recognised_rules(socket, host_ports, version, rivals)):
        return TableState(is_complete=True, listing=(*listing, *recognised))
    is_complete = not unknown and not rivals and chain_name(host_ports) not in present
    names = [name.decode() for rival in rivals for name in _CONTAINER_CHAIN.findall(rival.expressions)]
    needed = [name for name in (chain_name(host_ports), DNAT) if name in present]
    return TableState(
        is_complete and not with_container_rules, tuple(listing), tuple(dict.fromkeys((*needed, *unknown, *names)))
    )


def _recognised_rules(socket: NftSocket, host_ports: HostPorts, version: int, existing: list[Rule]) -> list[str]:
    """Returns the container's rules, with the `existing` entries for its ports; none if one is not recognised.

    Rules with conditions are never recognised: only the program can read them.
    """
    if host_ports.conditions.get(version):
        return []
    chain = chain_name(host_ports)
    desired = [str(rule) for _, marks, dnat in desired_chain_rules(host_ports, version) for rule in (*marks, dnat)]
    rules = match_lines(version, desired, nft.list_rules(socket, Chain(TABLES[version], chain)))
    jumps = match_lines(version, desired_entries(host_ports, version), existing)
    return [] if rules is None or jumps is None else [*rules, *jumps]


def _list_candidates(
    socket: NftSocket, host_ports: HostPorts, version: int, rule: str, present: list[str]
) -> list[Rule]:
    """Returns the rules that may be the shared `rule`: all of our chains; of built-in chains the jumps to ours."""
    name, target = rule.split()[1], rule.rpartition(" ")[2]
    if name in _BUILT_IN:
        return [] if target not in present else nft.list_rules(socket, Chain(TABLES[version], name), f"{target}\0")
    return nft.list_rules(socket, Chain(TABLES[version], name)) if name in present else []


def _perhaps_for(ports: Collection[int]) -> Callable[[bytes], bool]:
    """Returns a predicate: whether a message's rule may match one of `ports`. It is called for each entry."""

    def perhaps(message: bytes) -> bool:
        match = _MULTIPORT.search(message)
        if not match:
            return True
        kind, number, *rest = _PORTS.unpack(match[1])
        ranges_or_inverted = any(rest[15:])
        return kind != _TO_DESTINATION or ranges_or_inverted or any(port in ports for port in rest[:number])

    return perhaps
