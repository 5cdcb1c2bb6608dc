"""The lines for iptables-restore that ADD and DEL apply, from the existing rules.

One rule: pure; lines in, lines out. No rule of another container is changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from cni.address import Address
from cni.errors import CniError, Code
from kernel.netfilter.iptables import TOOLS
from kernel.netfilter.iptables_chains import TABLE, deletion_lines
from plugins.portmap.iptables_rules import (
    DNAT,
    ChainRule,
    Entry,
    chain_name,
    desired_chain_rules,
    desired_entries,
    parse_chain_rules,
    parse_entries,
    shared_chains,
    shared_rules,
)
from plugins.portmap.port_conflicts import ForeignRule, conflicting_mapping, find_position
from plugins.portmap.spec import HostPorts


def lines_for_add(
    host_ports: HostPorts, others: Collection[Address], version: int, listing: Sequence[str]
) -> list[str]:
    """Returns the lines that create the rules of `host_ports`, once and in position.

    `listing`: the lines of `iptables -S` for the built-in and shared chains, the container's chain, and the chains of
    containers that may have the same port. Keeps the rules of the container's chain that forward to `others`, in front.
    Raises CniError(999) if the external chain is missing or the chain is another container's, CniError(11) for a port
    in use.
    """
    _refuse_foreign_chain(host_ports, listing)
    present = set(listing)
    if chain := _missing_external(host_ports, version, present):
        raise CniError(
            Code.INTERNAL,
            f'"externalSetMarkChain": chain {chain} is missing in table {TABLE} of {TOOLS[version]}',
            "create that chain before the network is used, name an existing one, or leave the key out",
        )
    shared = [f"-N {chain}" for chain in shared_chains(host_ports)] + [
        _insert_line(rule) for rule in shared_rules(host_ports)
    ]
    needed = [line for line in shared if line not in present and line.replace("-I ", "-A ", 1) not in present]
    kept = [str(rule) for rule in _rules_to_keep(host_ports, others, listing)]
    return (
        needed + _chain(host_ports, version, present, kept) + _entries(host_ports, version, listing, replace=not kept)
    )


def lines_for_removal(host_ports: HostPorts, others: Collection[Address], listing: Sequence[str]) -> list[str]:
    """Returns the lines that delete the container's rules except those that forward to `others`; [] if none do.

    Keeps entries for ports that are still forwarded.
    """
    kept = _rules_to_keep(host_ports, others, listing)
    if not kept:
        return []
    forwarded = {(rule.protocol, rule.port) for rule in kept}
    entries_of = [entry for entry in parse_entries(listing) if entry.target == chain_name(host_ports)]
    unused = [entry for entry in entries_of if forwarded.isdisjoint((entry.protocol, port) for port in entry.ports)]
    return [f"-F {chain_name(host_ports)}", *map(str, kept), *deletion_lines(entry.line for entry in unused)]


def foreign_rules(
    host_ports: HostPorts, version: int, listing: Sequence[str], entries: Iterable[Entry]
) -> list[tuple[Entry, ForeignRule]]:
    """Returns the foreign rules for the ports of `host_ports` behind these entries, in order, each with its entry.

    An entry has the ports; the rules of its chain show which are forwarded, and for which host address. Entries of the
    same container on other networks do not count. Only the program can read conditions: those of one network are
    assumed to be equal.
    """
    has_conditions = bool(host_ports.conditions.get(version))
    ports = {mapping.host_port for mapping in host_ports.mappings_for(version)}
    rules = []
    for entry in entries:
        if entry.container_id == host_ports.container_id or (entry.ports and ports.isdisjoint(entry.ports)):
            continue
        conditional = entry.conditional and not (has_conditions and entry.network == host_ports.network)
        owner = entry.network, entry.container_id, conditional
        if f"-N {entry.target}" not in listing:
            rules += [(entry, ForeignRule(entry.protocol, port, None, *owner)) for port in entry.ports]
            continue
        for rule in parse_chain_rules(listing, entry.target):
            matches = entry.protocol in ("", rule.protocol) and (not entry.ports or rule.port in entry.ports)
            if matches and rule.target == "DNAT":
                rules.append((entry, ForeignRule(rule.protocol, rule.port, rule.host_ip, *owner)))
    return rules


def dnat_addresses(host_ports: HostPorts, listing: Iterable[str]) -> set[Address]:
    """Returns the addresses to which the container's chain forwards."""
    return {rule.dnat_ip for rule in parse_chain_rules(listing, chain_name(host_ports)) if rule.dnat_ip}


def _refuse_foreign_chain(host_ports: HostPorts, listing: Iterable[str]) -> None:
    """Raises if the chain's entries name another container: the hash joins network and container ID."""
    owner = (host_ports.network, host_ports.container_id)
    for entry in parse_entries(listing):
        if (
            entry.target == chain_name(host_ports)
            and entry.container_id
            and (entry.network, entry.container_id) != owner
        ):
            raise CniError(
                Code.INTERNAL,
                f"chain {entry.target} is that of container {entry.container_id} of network {entry.network}, too",
                "network and container ID, joined, are the same text: rename one of the networks",
            )


def _missing_external(host_ports: HostPorts, version: int, present: Collection[str]) -> str:
    chain = host_ports.external_mark_chain
    needed = chain and any(marks for _, marks, _ in desired_chain_rules(host_ports, version))
    return chain if needed and f"-N {chain}" not in present else ""


def _insert_line(rule: str) -> str:
    """Returns the line that creates a shared rule; masquerading goes before that of whole networks (reference)."""
    return rule.replace("-A ", "-I ", 1) if rule.startswith("-A POSTROUTING ") else rule


def _rules_to_keep(host_ports: HostPorts, others: Collection[Address], listing: Sequence[str]) -> list[ChainRule]:
    """Returns the DNAT rules that forward to `others`, and the rules that mark packets for the same port."""
    existing = parse_chain_rules(listing, chain_name(host_ports))
    forwarding = [rule for rule in existing if rule.target == "DNAT" and rule.dnat_ip in others]
    ports = {(rule.protocol, rule.port, rule.destination) for rule in forwarding}
    return [
        rule
        for rule in existing
        if rule in forwarding or (rule.target != "DNAT" and (rule.protocol, rule.port, rule.destination) in ports)
    ]


def _chain(host_ports: HostPorts, version: int, present: Collection[str], kept: Sequence[str]) -> list[str]:
    chain = chain_name(host_ports)
    rules = [str(rule) for _, marks, dnat in desired_chain_rules(host_ports, version) for rule in (*marks, dnat)]
    start = f"-F {chain}" if f"-N {chain}" in present else f"-N {chain}"
    return [start, *dict.fromkeys((*kept, *rules))]


def _entries(host_ports: HostPorts, version: int, listing: Sequence[str], *, replace: bool) -> list[str]:
    """Returns the lines that create the entries, and with `replace` those that delete the existing ones.

    Entries keep their position, unless entries of containers that are no longer running come before them.
    """
    existing = parse_entries(listing)
    positions = [number for number, entry in enumerate(existing) if entry.target == chain_name(host_ports)]
    before = existing[: positions[0]] if positions else existing
    rivals = foreign_rules(host_ports, version, listing, before)
    number = find_position(host_ports, version, [foreign for _, foreign in rivals])
    if number is not None:
        # Without a running container's rule before it, the first position has the same effect, whatever others change.
        has_running = any(conflicting_mapping(host_ports, version, foreign) for _, foreign in rivals[:number])
        position = before.index(rivals[number][0]) if has_running else 0
    else:
        position = positions[0] if positions else len(existing)
    lines = {existing[number].line for number in positions}
    deleted = deletion_lines(existing[number].line for number in positions) if replace else []
    created = [entry for entry in desired_entries(host_ports, version) if replace or entry not in lines]
    if position >= len(existing) - len(deleted):
        return deleted + created
    inserted = [
        entry.replace(f"-A {DNAT} ", f"-I {DNAT} {position + 1 + number} ", 1) for number, entry in enumerate(created)
    ]
    return deleted + inserted
