"""What ADD writes, given what there is.

One rule: pure; lines in, lines out. No rule of another container is touched.
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
    chain_of,
    chain_rules,
    entries,
    found_chain_rules,
    found_entries,
    shared_chains,
    shared_rules,
)
from plugins.portmap.port_conflicts import Claim, contested, place
from plugins.portmap.spec import HostPorts


def lines(wanted: HostPorts, others: Collection[Address], version: int, listing: Sequence[str]) -> list[str]:
    """Returns what is to be applied so that the rules of `wanted` are there, once, and where they belong.

    `listing` is what `iptables -S` tells of the built-in and the shared chains, the container's own and those of
    others that may have a port. Of the own chain what leads to `others` stays, in front.
    Raises CniError(999) for an external chain that is missing and for a chain that is another container's, CniError(11)
    for a port that is taken.
    """
    _demand_own(wanted, listing)
    present = set(listing)
    if chain := _missing_external(wanted, version, present):
        raise CniError(
            Code.INTERNAL,
            f'"externalSetMarkChain": chain {chain} is missing in table {TABLE} of {TOOLS[version]}',
            "make that chain before the network is used, name one that is there, or leave the key out",
        )
    shared = [f"-N {chain}" for chain in shared_chains(wanted)] + [_placed(rule) for rule in shared_rules(wanted)]
    needed = [line for line in shared if line not in present and line.replace("-I ", "-A ", 1) not in present]
    kept = [str(rule) for rule in _kept(wanted, others, listing)]
    return needed + _chain(wanted, version, present, kept) + _entries(wanted, version, listing, replace=not kept)


def removal(ports: HostPorts, others: Collection[Address], listing: Sequence[str]) -> list[str]:
    """Returns the lines that delete the container's rules except those that forward to `others`; [] if none do.

    Entries for ports that are still forwarded stay.
    """
    kept = _kept(ports, others, listing)
    if not kept:
        return []
    forwarded = {(rule.protocol, rule.port) for rule in kept}
    entries_of = [entry for entry in found_entries(listing) if entry.target == chain_of(ports)]
    gone = [entry for entry in entries_of if forwarded.isdisjoint((entry.protocol, port) for port in entry.ports)]
    return [f"-F {chain_of(ports)}", *map(str, kept), *deletion_lines(entry.line for entry in gone)]


def claims(
    wanted: HostPorts, version: int, listing: Sequence[str], found: Iterable[Entry]
) -> list[tuple[Entry, Claim]]:
    """Returns what the entries take of the ports of `wanted`, in order, each with its entry.

    An entry names ports; which of them lead anywhere, and for which address of the host, its chain tells. The
    container's own on other networks take nothing from it. Conditions only the program can read: those of one network
    are taken to be the same, if it has any.
    """
    has_conditions = bool(wanted.conditions.get(version))
    asked = {mapping.host_port for mapping in wanted.of(version)}
    taken = []
    for entry in found:
        if entry.container_id == wanted.container_id or (entry.ports and asked.isdisjoint(entry.ports)):
            continue
        conditional = entry.conditional and not (has_conditions and entry.network == wanted.network)
        owner = entry.network, entry.container_id, conditional
        if f"-N {entry.target}" not in listing:
            taken += [(entry, Claim(entry.protocol, port, None, *owner)) for port in entry.ports]
            continue
        for rule in found_chain_rules(listing, entry.target):
            ours = entry.protocol in ("", rule.protocol) and (not entry.ports or rule.port in entry.ports)
            if ours and rule.target == "DNAT":
                taken.append((entry, Claim(rule.protocol, rule.port, rule.host_ip, *owner)))
    return taken


def leads_to(wanted: HostPorts, listing: Iterable[str]) -> set[Address]:
    """Returns the addresses to which the container's chain leads."""
    return {rule.leads_to for rule in found_chain_rules(listing, chain_of(wanted)) if rule.leads_to}


def _demand_own(wanted: HostPorts, listing: Iterable[str]) -> None:
    """Refuses a chain whose entries name another container: its name says not where the network's name ends."""
    own = (wanted.network, wanted.container_id)
    for entry in found_entries(listing):
        if entry.target == chain_of(wanted) and entry.container_id and (entry.network, entry.container_id) != own:
            raise CniError(
                Code.INTERNAL,
                f"chain {entry.target} is that of container {entry.container_id} of network {entry.network}, too",
                "network and container ID, joined, are the same text: rename one of the networks",
            )


def _missing_external(wanted: HostPorts, version: int, present: Collection[str]) -> str:
    chain = wanted.external_mark_chain
    needed = chain and any(marks for _, marks, _ in chain_rules(wanted, version))
    return chain if needed and f"-N {chain}" not in present else ""


def _placed(rule: str) -> str:
    """Returns a shared rule as it is made: masquerading comes first, before that of whole networks (reference)."""
    return rule.replace("-A ", "-I ", 1) if rule.startswith("-A POSTROUTING ") else rule


def _kept(wanted: HostPorts, others: Collection[Address], listing: Sequence[str]) -> list[ChainRule]:
    """Returns the DNAT rules that forward to `others`, and the rules that mark packets for the same port."""
    found = found_chain_rules(listing, chain_of(wanted))
    forwarding = [rule for rule in found if rule.target == "DNAT" and rule.leads_to in others]
    ports = {(rule.protocol, rule.port, rule.destination) for rule in forwarding}
    return [
        rule
        for rule in found
        if rule in forwarding or (rule.target != "DNAT" and (rule.protocol, rule.port, rule.destination) in ports)
    ]


def _chain(wanted: HostPorts, version: int, present: Collection[str], kept: Sequence[str]) -> list[str]:
    chain = chain_of(wanted)
    rules = [str(rule) for _, marks, dnat in chain_rules(wanted, version) for rule in (*marks, dnat)]
    start = f"-F {chain}" if f"-N {chain}" in present else f"-N {chain}"
    return [start, *dict.fromkeys((*kept, *rules))]


def _entries(wanted: HostPorts, version: int, listing: Sequence[str], *, replace: bool) -> list[str]:
    """Returns the lines that make the entries, and with `replace` those that delete what there was of them.

    They stay where they were, unless others that are gone stand before them.
    """
    found = found_entries(listing)
    own = [number for number, entry in enumerate(found) if entry.target == chain_of(wanted)]
    before = found[: own[0]] if own else found
    taken = claims(wanted, version, listing, before)
    number = place(wanted, version, [claim for _, claim in taken])
    if number is not None:
        # Without a living one before it the very first place is as good, and is right whatever goes meanwhile.
        living = any(contested(wanted, version, claim) for _, claim in taken[:number])
        at = before.index(taken[number][0]) if living else 0
    else:
        at = own[0] if own else len(found)
    there = {found[number].line for number in own}
    deleted = deletion_lines(found[number].line for number in own) if replace else []
    made = [entry for entry in entries(wanted, version) if replace or entry not in there]
    if at >= len(found) - len(deleted):
        return deleted + made
    inserted = [entry.replace(f"-A {DNAT} ", f"-I {DNAT} {at + 1 + number} ", 1) for number, entry in enumerate(made)]
    return deleted + inserted
