"""CHECK of host ports with iptables: compares the existing rules with the desired ones.

One rule: raises for the first rule that is missing, and prints it in the format of `iptables -S`.
"""

from __future__ import annotations

from collections.abc import Sequence

from attachment.prev_result import RECREATE
from cni.errors import CniError, Code
from kernel.netfilter.iptables_chains import missing_error
from plugins.portmap import other_interfaces
from plugins.portmap.iptables_rules import (
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
from plugins.portmap.iptables_state import TableState
from plugins.portmap.iptables_update import foreign_rules
from plugins.portmap.port_conflicts import is_shadowed, shadowed_error
from plugins.portmap.spec import HostPorts, PortMapping

_MARK = "INPUT"  # the chain that is listed after each probe: counting it shows how many probes succeeded


def probe_lines(host_ports: HostPorts, version: int) -> list[str]:
    """Returns the probes for entries with conditions, which only the program can compare."""
    if not host_ports.conditions.get(version):
        return []
    return [
        line
        for entry in desired_entries(host_ports, version)
        for line in (f"-C{entry.removeprefix('-A')}", f"-S {_MARK}")
    ]


def check_chains(host_ports: HostPorts, version: int, state: TableState) -> None:
    """Raises CniError(999) if a chain is known to be missing, before any program is run."""
    if not state.is_unknown:
        for chain in (*shared_chains(host_ports), chain_name(host_ports)):
            if f"-N {chain}" not in state.listing:
                raise _missing(f"chain {chain}", version)


def check_rules(host_ports: HostPorts, version: int, listing: Sequence[str], state: TableState) -> None:
    """Raises CniError(999) if a rule is missing, or if another container's rule for a mapping comes first."""
    present = set(listing)
    for chain in (*shared_chains(host_ports), chain_name(host_ports)):
        if f"-N {chain}" not in present:
            raise _missing(f"chain {chain}", version)
    for rule in shared_rules(host_ports):
        if rule not in present:
            raise _missing(f"rule {rule}", version)
    _check_chain(host_ports, version, listing)
    existing = parse_entries(listing)
    container_entries = [entry for entry in existing if entry.target == chain_name(host_ports)]
    _check_entries(host_ports, version, _successful_probes(listing, state), container_entries)
    _check_not_shadowed(host_ports, version, listing, existing)


def _successful_probes(listing: Sequence[str], state: TableState) -> int:
    """Returns how many probes succeeded; a listing of the whole table contains the marker chain once anyway."""
    return sum(line.startswith(f"-P {_MARK} ") for line in listing) - state.is_unknown


def _check_chain(host_ports: HostPorts, version: int, listing: Sequence[str]) -> None:
    """Checks each mapping's rules: the mark rules before the DNAT rule, mappings in order."""
    existing = parse_chain_rules(listing, chain_name(host_ports))
    first = {rule: at for at, rule in reversed([*enumerate(existing)])}
    expected = desired_chain_rules(host_ports, version)
    desired = {dnat for _, _, dnat in expected}
    older = [(at, rule) for rule, at in first.items() if rule.target == "DNAT" and rule not in desired]
    start = 0
    for mapping, marks, dnat in expected:
        end = next((at for at in range(start, len(existing)) if existing[at] == dnat), -1)
        if end < 0:
            raise _missing(f"rule {dnat}", version)
        for mark in marks:
            if first.get(mark, end) >= end:
                raise _missing(f"rule {mark}", version)
        _check_first(host_ports, mapping, [rule for at, rule in older if at < end])
        start = end


def _check_first(host_ports: HostPorts, mapping: PortMapping, before: Sequence[ChainRule]) -> None:
    """Raises for an older rule that forwards the packets elsewhere, unless to another interface of the container."""
    for rule in before:
        overlaps = mapping.overlaps(rule.protocol, rule.port, rule.host_ip)
        if overlaps and rule.dnat_ip not in other_interfaces.list_other_addresses(host_ports):
            raise CniError(
                Code.INTERNAL,
                f"host port {mapping} is forwarded to {rule.to}, by an older rule that comes first: {rule}",
                RECREATE,
            )


def _check_entries(host_ports: HostPorts, version: int, successful_probes: int, existing: Sequence[Entry]) -> None:
    """Checks that each port has an entry, in any grouping; entries with conditions must be as ADD creates them.

    The probes alone are not enough: ip6tables-legacy 1.8.9 confuses rules that differ only in their last match.
    """
    conditional = bool(host_ports.conditions.get(version))
    covered_ports = {
        (entry.protocol, port) for entry in existing if conditional or not entry.conditional for port in entry.ports
    }
    for number, line in enumerate(desired_entries(host_ports, version)):
        (entry,) = parse_entries([line])
        covered = covered_ports.issuperset((entry.protocol, port) for port in entry.ports)
        if not covered or (conditional and number >= successful_probes):
            raise _missing(f"rule {line}", version)


def _check_not_shadowed(host_ports: HostPorts, version: int, listing: Sequence[str], existing: Sequence[Entry]) -> None:
    """Raises if another container's entry for the same packets comes before ours."""
    chain = chain_name(host_ports)
    first = {entry: at for at, entry in reversed([*enumerate(existing)])}
    others = foreign_rules(host_ports, version, listing, [entry for entry in existing if entry.target != chain])
    for mapping in host_ports.mappings_for(version):
        position = next(
            (at for at, entry in enumerate(existing) if entry.target == chain and _is_for(entry, mapping)), 0
        )
        for entry, foreign in others:
            if first[entry] < position and is_shadowed(foreign, mapping):
                raise shadowed_error(mapping, foreign)


def _is_for(entry: Entry, mapping: PortMapping) -> bool:
    return entry.protocol == mapping.protocol and mapping.host_port in entry.ports


def _missing(what: str, version: int) -> CniError:
    return missing_error("host ports", what, version)
