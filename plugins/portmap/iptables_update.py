"""Computes the changes of the existing rules for ADD and DEL.

This module is pure. No change affects a rule of another container.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from cni.address import Address
from cni.errors import CniError, Code
from kernel.netfilter.iptables import TOOLS
from kernel.netfilter.iptables_chains import TABLE
from kernel.netfilter.iptables_rule import Change, Listing, Rule
from plugins.portmap.conf import HostPorts
from plugins.portmap.iptables_rules import (
    ChainRule,
    JumpRule,
    all_chain_rules,
    chain_name,
    desired_chain_rules,
    desired_jump_rules,
    parse_chain_rules,
    parse_jump_rules,
    shared_chains,
    shared_rules,
)
from plugins.portmap.port_conflicts import ForeignRule, conflicting_mapping, find_position


def changes_for_add(
    host_ports: HostPorts, other_addresses: Collection[Address], version: int, listing: Listing
) -> list[Change]:
    """Returns the changes that create the missing rules of `host_ports`, each in its position.

    `listing` has the built-in chains, the shared chains, the container's chain, and the chains of containers that may
    have published the same port. `other_addresses`: the addresses of the container's other interfaces; existing rules
    that forward to them are kept, and come first in the container's chain. Raises CniError(999) if the external mark
    chain is missing or the container's chain belongs to another container; CniError(11) if a port is in use.
    """
    _refuse_foreign_chain(host_ports, listing)
    if chain := _missing_mark_chain(host_ports, version, listing):
        raise CniError(
            Code.INTERNAL,
            f'"externalSetMarkChain": chain {chain} is missing in table {TABLE} of {TOOLS[version]}',
            "create that chain before the network is used, name an existing one, or leave the key out",
        )
    chains = [Change.new_chain(chain) for chain in shared_chains(host_ports) if chain not in listing.chains]
    # The rule in POSTROUTING comes before other masquerading rules.
    shared = [
        Change.insert(rule) if rule.chain == "POSTROUTING" else Change.append(rule)
        for rule in shared_rules(host_ports)
        if rule not in listing
    ]
    kept = _rules_to_keep(host_ports, other_addresses, listing)
    chain_changes = _chain_changes(host_ports, version, listing, [item.rule for item in kept])
    return chains + shared + chain_changes + _jump_rule_changes(host_ports, version, listing, replace=not kept)


def changes_to_delete_interface_rules(
    host_ports: HostPorts, other_addresses: Collection[Address], listing: Listing
) -> list[Change]:
    """Returns the changes that delete the container's rules but keep those that forward to `other_addresses`.

    Returns [] if no rule forwards to `other_addresses`. Keeps the jump rules of ports that are still forwarded.
    """
    kept = _rules_to_keep(host_ports, other_addresses, listing)
    if not kept:
        return []
    forwarded = {(rule.protocol, rule.port) for rule in kept}
    unused = [
        Change.delete(jump_rule.rule)
        for jump_rule in parse_jump_rules(listing)
        if jump_rule.target == chain_name(host_ports)
        and forwarded.isdisjoint((jump_rule.protocol, port) for port in jump_rule.ports)
    ]
    return [Change.flush_chain(chain_name(host_ports)), *(Change.append(item.rule) for item in kept), *unused]


def foreign_rules(
    host_ports: HostPorts, version: int, listing: Listing, jump_rules: Iterable[JumpRule]
) -> list[tuple[JumpRule, ForeignRule]]:
    """Returns the foreign rules for the ports of `host_ports`, in order, each with the jump rule to its chain.

    A jump rule contains the ports; the rules of its chain show which ports are forwarded, and for which host address.
    Skips jump rules of the same container on other networks. Assumes that all rules of one network have the same
    conditions, since these cannot be parsed.
    """
    has_conditions = bool(host_ports.conditions.get(version))
    ports = {mapping.host_port for mapping in host_ports.mappings_for(version)}
    rules = []
    for jump_rule in jump_rules:
        if jump_rule.container_id == host_ports.container_id or (jump_rule.ports and ports.isdisjoint(jump_rule.ports)):
            continue
        conditional = jump_rule.conditional and not (has_conditions and jump_rule.network == host_ports.network)
        owner = jump_rule.network, jump_rule.container_id, conditional
        if jump_rule.target not in listing.chains:
            rules += [(jump_rule, ForeignRule(jump_rule.protocol, port, None, *owner)) for port in jump_rule.ports]
            continue
        for rule in parse_chain_rules(listing, jump_rule.target):
            matches = jump_rule.protocol in ("", rule.protocol) and (
                not jump_rule.ports or rule.port in jump_rule.ports
            )
            if matches and rule.target == "DNAT":
                rules.append((jump_rule, ForeignRule(rule.protocol, rule.port, rule.host_ip, *owner)))
    return rules


def dnat_addresses(host_ports: HostPorts, listing: Listing) -> set[Address]:
    """Returns the addresses to which the container's chain forwards."""
    return {rule.dnat_ip for rule in parse_chain_rules(listing, chain_name(host_ports)) if rule.dnat_ip}


def _refuse_foreign_chain(host_ports: HostPorts, listing: Listing) -> None:
    """Raises CniError(999) if a jump rule to the container's chain names another owner.

    The chain's name is a hash of network name and container ID without a separator, so two owners can have one name.
    """
    owner = (host_ports.network, host_ports.container_id)
    for jump_rule in parse_jump_rules(listing):
        if (
            jump_rule.target == chain_name(host_ports)
            and jump_rule.container_id
            and (jump_rule.network, jump_rule.container_id) != owner
        ):
            raise CniError(
                Code.INTERNAL,
                f"chain {jump_rule.target} already belongs to container {jump_rule.container_id} "
                f"of network {jump_rule.network}",
                "the chain's name is a hash of network name and container ID, joined; both owners have the same joined "
                "text: rename one of the networks",
            )


def _missing_mark_chain(host_ports: HostPorts, version: int, listing: Listing) -> str:
    chain = host_ports.external_mark_chain
    if not chain or chain in listing.chains:
        return ""
    return chain if any(mark_rules for _, mark_rules, _ in desired_chain_rules(host_ports, version)) else ""


def _rules_to_keep(host_ports: HostPorts, other_addresses: Collection[Address], listing: Listing) -> list[ChainRule]:
    """Returns the DNAT rules that forward to `other_addresses`, and the mark rules of the same ports."""
    existing = parse_chain_rules(listing, chain_name(host_ports))
    forwarding = [rule for rule in existing if rule.target == "DNAT" and rule.dnat_ip in other_addresses]
    ports = {(rule.protocol, rule.port, rule.destination) for rule in forwarding}
    return [
        rule
        for rule in existing
        if rule in forwarding or (rule.target != "DNAT" and (rule.protocol, rule.port, rule.destination) in ports)
    ]


def _chain_changes(host_ports: HostPorts, version: int, listing: Listing, kept: Sequence[Rule]) -> list[Change]:
    chain = chain_name(host_ports)
    start = Change.flush_chain(chain) if chain in listing.chains else Change.new_chain(chain)
    return [start, *map(Change.append, dict.fromkeys((*kept, *all_chain_rules(host_ports, version))))]


def _jump_rule_changes(host_ports: HostPorts, version: int, listing: Listing, *, replace: bool) -> list[Change]:
    """Returns the changes that create the missing jump rules; with `replace`, deletes the existing ones first.

    Jump rules keep their position, unless rules of containers that are no longer running come before them.
    """
    existing = parse_jump_rules(listing)
    positions = [number for number, jump_rule in enumerate(existing) if jump_rule.target == chain_name(host_ports)]
    before = existing[: positions[0]] if positions else existing
    foreign_before = foreign_rules(host_ports, version, listing, before)
    foreign_index = find_position(host_ports, version, [foreign for _, foreign in foreign_before])
    if foreign_index is not None:
        # After all conflicting rules of running containers; if there are none, at the top of the chain.
        has_running = any(
            conflicting_mapping(host_ports, version, foreign) for _, foreign in foreign_before[:foreign_index]
        )
        position = before.index(foreign_before[foreign_index][0]) if has_running else 0
    else:
        position = positions[0] if positions else len(existing)
    present = [existing[number].rule for number in positions]
    deletions = list(map(Change.delete, present)) if replace else []
    missing = [rule for rule in desired_jump_rules(host_ports, version) if replace or rule not in present]
    if position >= len(existing) - len(deletions):
        return deletions + list(map(Change.append, missing))
    return deletions + [Change.insert(rule, position + 1 + number) for number, rule in enumerate(missing)]
