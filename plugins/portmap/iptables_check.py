"""CHECK of the iptables backend: compares the existing rules with the desired ones.

The error names the first missing chain or rule, in the format of `iptables -S`.
"""

from __future__ import annotations

from collections.abc import Sequence

from attachment.prev_result import RECREATE_HINT
from cni.errors import CniError, internal
from kernel.netfilter.iptables_chains import missing_error
from kernel.netfilter.iptables_rule import ChainList, IptablesRule
from plugins.portmap import other_interfaces
from plugins.portmap.conf import HostPorts, PortMapping
from plugins.portmap.iptables_rules import (
    ChainRule,
    JumpRule,
    chain_name,
    desired_chain_rules,
    desired_jump_rules,
    foreign_rules,
    parse_chain_rule,
    parse_jump_rule,
    parse_jump_rules,
    shared_chains,
    shared_rules,
)
from plugins.portmap.port_conflicts import is_shadowed, shadowed_error


def rules_to_check(host_ports: HostPorts, version: int) -> list[IptablesRule]:
    """Returns the jump rules with conditions, which only iptables-restore can compare."""
    return desired_jump_rules(host_ports, version) if host_ports.conditions.get(version) else []


def check_chains(host_ports: HostPorts, version: int, listing: ChainList) -> None:
    """Raises CniError(999) if a chain is missing."""
    for chain in (*shared_chains(host_ports), chain_name(host_ports)):
        if chain not in listing.chains:
            raise _missing(f"chain {chain}", version)


def check_rules(host_ports: HostPorts, version: int, listing: ChainList) -> None:
    """Raises CniError(999) if a chain or rule is missing, and ShadowedError if a rule of another container comes first.

    `listing.confirmed` counts `rules_to_check`.
    """
    check_chains(host_ports, version, listing)
    for rule in shared_rules(host_ports):
        if rule not in listing:
            raise _missing(f"rule {rule}", version)
    _check_chain(host_ports, version, listing)
    existing = parse_jump_rules(listing)
    container_jump_rules = [jump_rule for jump_rule in existing if jump_rule.target == chain_name(host_ports)]
    _check_jump_rules(host_ports, version, listing.confirmed, container_jump_rules)
    _check_not_shadowed(host_ports, version, listing, existing)


def _check_chain(host_ports: HostPorts, version: int, listing: ChainList) -> None:
    """Checks the rules of the container's chain: mappings in order, with the mark rules before the DNAT rule."""
    existing = listing.rules(chain_name(host_ports))
    first_positions = {rule: position for position, rule in reversed([*enumerate(existing)])}
    desired = desired_chain_rules(host_ports, version)
    desired_dnat_rules = {dnat_rule for _, _, dnat_rule in desired}
    others = [
        (position, parsed)
        for rule, position in first_positions.items()
        if rule not in desired_dnat_rules and (parsed := parse_chain_rule(rule)) and parsed.target == "DNAT"
    ]
    start = 0
    for mapping, mark_rules, dnat_rule in desired:
        end = next((position for position in range(start, len(existing)) if existing[position] == dnat_rule), -1)
        if end < 0:
            raise _missing(f"rule {dnat_rule}", version)
        for mark_rule in mark_rules:
            if first_positions.get(mark_rule, end) >= end:
                raise _missing(f"rule {mark_rule}", version)
        _refuse_earlier_rule(host_ports, mapping, [item for position, item in others if position < end])
        start = end


def _refuse_earlier_rule(host_ports: HostPorts, mapping: PortMapping, earlier_rules: Sequence[ChainRule]) -> None:
    """Raises CniError(999) for an earlier rule that forwards the packets elsewhere.

    An earlier rule that forwards to another interface of the container is allowed.
    """
    for rule in earlier_rules:
        overlaps = mapping.overlaps(rule.protocol, rule.port, rule.host_ip)
        if overlaps and rule.dnat_ip not in other_interfaces.list_other_addresses(host_ports):
            raise internal(
                f"host port {mapping} is forwarded to {rule.to}, by an older rule that comes first: {rule.rule}",
                RECREATE_HINT,
            )


def _check_jump_rules(host_ports: HostPorts, version: int, confirmed: int, existing: Sequence[JumpRule]) -> None:
    """Checks that each port has a jump rule, which may also have other ports.

    Jump rules with conditions must equal those that ADD creates. iptables-restore alone does not prove that:
    ip6tables-legacy 1.8.9 confuses rules that differ only in the last match.
    """
    conditional = bool(host_ports.conditions.get(version))
    covered_ports = {
        (jump_rule.protocol, port)
        for jump_rule in existing
        if conditional or not jump_rule.conditional
        for port in jump_rule.ports
    }
    for number, rule in enumerate(desired_jump_rules(host_ports, version)):
        jump_rule = parse_jump_rule(rule)
        covered = covered_ports.issuperset((jump_rule.protocol, port) for port in jump_rule.ports)
        if not covered or (conditional and number >= confirmed):
            raise _missing(f"rule {rule}", version)


def _check_not_shadowed(host_ports: HostPorts, version: int, listing: ChainList, existing: Sequence[JumpRule]) -> None:
    """Raises ShadowedError if another container's jump rule for the same packets comes before this container's."""
    chain = chain_name(host_ports)
    first_positions = {jump_rule: position for position, jump_rule in reversed([*enumerate(existing)])}
    others = foreign_rules(
        host_ports, version, listing, [jump_rule for jump_rule in existing if jump_rule.target != chain]
    )
    for mapping in host_ports.mappings_for(version):
        position = next(
            (
                position
                for position, jump_rule in enumerate(existing)
                if jump_rule.target == chain and _matches_port(jump_rule, mapping)
            ),
            0,
        )
        for jump_rule, foreign in others:
            if first_positions[jump_rule] < position and is_shadowed(foreign, mapping):
                raise shadowed_error(mapping, foreign)


def _matches_port(jump_rule: JumpRule, mapping: PortMapping) -> bool:
    return jump_rule.protocol == mapping.protocol and mapping.host_port in jump_rule.ports


def _missing(what: str, version: int) -> CniError:
    return missing_error("host ports", what, version)
