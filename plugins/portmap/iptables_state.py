"""Reads the existing rules of iptables-nft over netlink, without running iptables-restore.

If a rule is not recognised with certainty, iptables-restore must list the table.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Iterable

from cni.address import Address
from kernel.netfilter import iptables, nft
from kernel.netfilter.iptables_chains import TABLE
from kernel.netfilter.iptables_expressions import match_rules, select_equal
from kernel.netfilter.iptables_nft import TABLES
from kernel.netfilter.iptables_rule import ChainList, IptablesRule
from kernel.netfilter.nft import Chain, NftSocket
from kernel.rtnl import Request
from plugins.portmap.conf import HostPorts
from plugins.portmap.iptables_rules import (
    DNAT,
    DNAT_CHAINS,
    all_chain_rules,
    chain_name,
    desired_jump_rules,
    shared_chains,
    shared_rules,
)
from process.values import dataclass, field

_ENTRY_CHAINS = ("PREROUTING", "OUTPUT", "POSTROUTING")
# The name and the revision of a multiport match, then struct xt_multiport_v1 (linux/netfilter/xt_multiport.h).
_MULTIPORT = re.compile(rb"multiport\0..\x08\0\x02\0\0\0\0\x01.{2}\x03\0(.{48})", re.DOTALL)
_PORTS = struct.Struct("=BB15H15BB")
_TO_DESTINATION = 1  # XT_MULTIPORT_DESTINATION


@dataclass(frozen=True)
class TableState:
    """The state of table nat of one IP version.

    `listing`: portmap's existing chains and the recognised rules.
    `is_sufficient`: `listing` is enough, for ADD because no existing rule conflicts, for CHECK because all rules are
    recognised. Otherwise iptables-restore must list `chains`, or the whole table if `chains` is empty.
    `chains` has a built-in chain only if it is needed, since it may contain rules that iptables-restore cannot list.
    """

    is_sufficient: bool
    listing: ChainList = field(default_factory=ChainList)
    chains: tuple[str, ...] = ()

    @property
    def is_unknown(self) -> bool:
        """Whether the state was not read: iptables-legacy has created the table, or netlink failed."""
        return not self.is_sufficient and not self.chains


def get_states(host_ports: HostPorts, *, with_container_rules: bool = False) -> dict[int, TableState]:
    """Reads the state of table nat for each IP version over one netlink socket.

    `with_container_rules` adds the container's rules if all have the form that ADD creates.
    """
    states = iptables.read_by_netlink(
        host_ports.ip_versions,
        TABLE,
        lambda socket, versions: _get_states(socket, host_ports, versions, with_container_rules=with_container_rules),
    )
    unknown = TableState(is_sufficient=False)
    return {version: states.get(version, unknown) for version in host_ports.ip_versions}


def forwards_elsewhere(socket: NftSocket, host_ports: HostPorts, chains: Iterable[Chain]) -> bool:
    """Returns whether one of the container's `chains` has a rule that forwards to an address of another interface.

    Costs one netlink message for each chain. Raises KernelError.
    """
    ranges = [_dnat_range(item.ip) for item in host_ports.addresses.values()]
    rules = [rule for chain in chains for rule in nft.list_rules(socket, chain, "DNAT\0")]
    return any(not any(part in rule.expressions for part in ranges) for rule in rules)


def delete_duplicate_rules(host_ports: HostPorts) -> None:
    """Deletes duplicate shared rules; raises KernelError.

    The first ADDs on a host create them if they run in parallel: iptables-nft retries a commit after a conflict without
    reading the table again.
    """
    try:
        with nft.open_socket() as socket:
            nft.retry(lambda: nft.change(socket, *_delete_duplicate_requests(socket, host_ports)))
    except nft.UnavailableError:
        return


def jump_ports(rule: nft.NftRule) -> tuple[int, ...]:
    """Returns the ports of a jump rule, none if it does not have the form that ADD creates."""
    return _parse_ports(rule.expressions) or ()


def _dnat_range(address: Address) -> bytes:
    """Returns the address as the address range of a DNAT target: struct nf_nat_range (linux/netfilter/nf_nat.h)."""
    return address.packed.ljust(16, b"\0") * 2


def _delete_duplicate_requests(socket: NftSocket, host_ports: HostPorts) -> list[Request]:
    requests = []
    for version in host_ports.ip_versions:
        for rule in shared_rules(host_ports):
            chain = Chain(TABLES[version], rule.chain)
            equal_rules = select_equal(version, rule, nft.list_rules(socket, chain))
            requests += [nft.delete_rule_request(chain, other) for other in equal_rules[1:]]
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
    shared, unrecognised = [], []
    for rule in shared_rules(host_ports):
        candidates = _list_shared_rule_candidates(socket, host_ports, version, rule, present)
        if candidates and select_equal(version, rule, candidates):
            shared.append(rule)
        elif candidates:
            unrecognised.append(rule.chain)
    # CHECK looks for the container's jump rules, which contain the ports of all mappings; ADD only for conflicts.
    ports = frozenset(
        mapping.host_port
        for mapping in (host_ports.mappings if with_container_rules else host_ports.mappings_for(version))
    )
    candidates_for_ports = (
        nft.list_rules(socket, Chain(TABLES[version], DNAT), _may_match(ports)) if DNAT in present else []
    )
    if (
        with_container_rules
        and not unrecognised
        and (recognised := _list_container_rules(socket, host_ports, version, candidates_for_ports))
    ):
        return TableState(is_sufficient=True, listing=ChainList.of(present, [*shared, *recognised]))
    is_sufficient = not unrecognised and not candidates_for_ports and chain_name(host_ports) not in present
    pattern = DNAT_CHAINS.jump_pattern
    targets = [name.decode() for candidate in candidates_for_ports for name in pattern.findall(candidate.expressions)]
    needed = [name for name in (chain_name(host_ports), DNAT) if name in present]
    return TableState(
        is_sufficient and not with_container_rules,
        ChainList.of(present, shared),
        tuple(dict.fromkeys((*needed, *unrecognised, *targets))),
    )


def _list_container_rules(
    socket: NftSocket, host_ports: HostPorts, version: int, jump_rules: list[nft.NftRule]
) -> list[IptablesRule]:
    """Returns the rules of the container's chain, and the existing `jump_rules`; [] if one of them is not recognised.

    Rules with conditions are never recognised: only iptables-restore can list them.
    """
    if host_ports.conditions.get(version):
        return []
    existing_rules = nft.list_rules(socket, Chain(TABLES[version], chain_name(host_ports)))
    rules = match_rules(version, all_chain_rules(host_ports, version), existing_rules)
    jumps = match_rules(version, desired_jump_rules(host_ports, version), jump_rules)
    return [] if rules is None or jumps is None else [*rules, *jumps]


def _list_shared_rule_candidates(
    socket: NftSocket, host_ports: HostPorts, version: int, rule: IptablesRule, present: list[str]
) -> list[nft.NftRule]:
    """Returns the rules that may be the shared `rule`: all of its chain, or the jumps of a built-in chain."""
    is_jump = rule.chain in _ENTRY_CHAINS
    if (rule.target if is_jump else rule.chain) not in present:
        return []
    return nft.list_rules(socket, Chain(TABLES[version], rule.chain), f"{rule.target}\0" if is_jump else "")


def _may_match(ports: frozenset[int]) -> Callable[[bytes], bool]:
    """Returns a predicate on netlink messages: whether the jump rule may match one of `ports`."""

    def may_match(message: bytes) -> bool:
        listed = _parse_ports(message)
        return listed is None or not ports.isdisjoint(listed)

    return may_match


def _parse_ports(data: bytes) -> tuple[int, ...] | None:
    """Returns the ports of a jump rule in the form that ADD creates, None for another form."""
    match = _MULTIPORT.search(data)
    if not match:
        return None
    flags, number, *rest = _PORTS.unpack(match[1])
    has_ranges_or_is_inverted = any(rest[15:])
    return None if flags != _TO_DESTINATION or has_ranges_or_is_inverted else tuple(rest[:number])
