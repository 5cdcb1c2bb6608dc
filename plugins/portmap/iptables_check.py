"""What CHECK demands of the rules of host ports in iptables, given what there is.

One rule: pure; it raises for the first thing that is missing, and names it as `iptables -S` would list it.
"""

from __future__ import annotations

from collections.abc import Sequence

from cni.errors import CniError, Code
from kernel.netfilter.iptables_chains import missing_error
from plugins.portmap import other_interfaces
from plugins.portmap.iptables_rules import (
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
from plugins.portmap.iptables_state import Seen
from plugins.portmap.iptables_update import claims
from plugins.portmap.port_conflicts import shadowed, shadows
from plugins.portmap.spec import HostPorts, PortMapping

_MARK = "INPUT"  # the chain that is listed after each question, which tells how many were answered with yes


def questions(wanted: HostPorts, version: int) -> list[str]:
    """Returns what to ask the program beside the listing: for entries with conditions, which only it can read."""
    if not wanted.conditions.get(version):
        return []
    return [line for entry in entries(wanted, version) for line in (f"-C{entry.removeprefix('-A')}", f"-S {_MARK}")]


def chains(wanted: HostPorts, version: int, seen: Seen) -> None:
    """Raises CniError(999) for a chain that is known to be missing, before any program is run."""
    if not seen.whole:
        for chain in (*shared_chains(wanted), chain_of(wanted)):
            if f"-N {chain}" not in seen.listing:
                raise _missing(f"chain {chain}", version)


def rules(wanted: HostPorts, version: int, listing: Sequence[str], seen: Seen) -> None:
    """Raises CniError(999) for what is missing, and for a mapping that a rule of another container precedes."""
    present = set(listing)
    for chain in (*shared_chains(wanted), chain_of(wanted)):
        if f"-N {chain}" not in present:
            raise _missing(f"chain {chain}", version)
    for rule in shared_rules(wanted):
        if rule not in present:
            raise _missing(f"rule {rule}", version)
    _check_chain(wanted, version, listing)
    found = found_entries(listing)
    own = [entry for entry in found if entry.target == chain_of(wanted)]
    _check_entries(wanted, version, _answered(listing, seen), own)
    _check_not_shadowed(wanted, version, listing, found)


def _answered(listing: Sequence[str], seen: Seen) -> int:
    """Returns how many questions were answered with yes; the whole table has the marking chain once by itself."""
    return sum(line.startswith(f"-P {_MARK} ") for line in listing) - seen.whole


def _check_chain(wanted: HostPorts, version: int, listing: Sequence[str]) -> None:
    """Demands each mapping's rules: those that mark before the one that leads to the pod, the mappings in order."""
    found = found_chain_rules(listing, chain_of(wanted))
    first = {rule: at for at, rule in reversed([*enumerate(found)])}
    expected = chain_rules(wanted, version)
    own = {dnat for _, _, dnat in expected}
    older = [(at, rule) for rule, at in first.items() if rule.target == "DNAT" and rule not in own]
    start = 0
    for mapping, marks, dnat in expected:
        end = next((at for at in range(start, len(found)) if found[at] == dnat), -1)
        if end < 0:
            raise _missing(f"rule {dnat}", version)
        for mark in marks:
            if first.get(mark, end) >= end:
                raise _missing(f"rule {mark}", version)
        _check_first(wanted, mapping, [rule for at, rule in older if at < end])
        start = end


def _check_first(wanted: HostPorts, mapping: PortMapping, before: Sequence[ChainRule]) -> None:
    """Refuses an older rule that sends the packets elsewhere, unless to another interface of the container."""
    for rule in before:
        overlaps = mapping.overlaps(rule.protocol, rule.port, rule.host_ip)
        if overlaps and rule.leads_to not in other_interfaces.addresses(wanted):
            raise CniError(
                Code.INTERNAL,
                f"host port {mapping} leads to {rule.to}, by an older rule that stands first: {rule}",
                "remove the container and create it again",
            )


def _check_entries(wanted: HostPorts, version: int, answered: int, own: Sequence[Entry]) -> None:
    """Demands an entry for each port, however they are grouped, and those with conditions as they are made.

    ip6tables-legacy 1.8.9 alone is not to be believed: it takes two rules that differ in their last match for one.
    """
    conditional = bool(wanted.conditions.get(version))
    there = {(entry.protocol, port) for entry in own if conditional or not entry.conditional for port in entry.ports}
    for number, line in enumerate(entries(wanted, version)):
        (entry,) = found_entries([line])
        covered = there.issuperset((entry.protocol, port) for port in entry.ports)
        if not covered or (conditional and number >= answered):
            raise _missing(f"rule {line}", version)


def _check_not_shadowed(wanted: HostPorts, version: int, listing: Sequence[str], found: Sequence[Entry]) -> None:
    """Refuses entries of others for the same packets in front of ours."""
    chain = chain_of(wanted)
    first = {entry: at for at, entry in reversed([*enumerate(found)])}
    others = claims(wanted, version, listing, [entry for entry in found if entry.target != chain])
    for mapping in wanted.of(version):
        own = next((at for at, entry in enumerate(found) if entry.target == chain and _is_for(entry, mapping)), 0)
        for entry, claim in others:
            if first[entry] < own and shadows(claim, mapping):
                raise shadowed(mapping, claim)


def _is_for(entry: Entry, mapping: PortMapping) -> bool:
    return entry.protocol == mapping.protocol and mapping.host_port in entry.ports


def _missing(what: str, version: int) -> CniError:
    return missing_error("host ports", what, version)
