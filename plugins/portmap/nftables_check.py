"""CHECK of host ports with nftables.

One rule: the reference's rules are accepted like ours; only the first problem is reported.
"""

from __future__ import annotations

from collections.abc import Sequence

from cni.errors import CniError, Code
from kernel.netfilter import nft_rule
from kernel.netfilter.nft import Chain
from kernel.netfilter.owned import REPAIR_HINT
from plugins.portmap import nftables_rules as rules
from plugins.portmap import nftables_state
from plugins.portmap.nftables_rules import ALL, CHAINS
from plugins.portmap.nftables_state import LocatedRule, TableReader
from plugins.portmap.port_conflicts import ForeignRule, is_shadowed, shadowed_error
from plugins.portmap.spec import HostPorts


def check(reader: TableReader, host_ports: HostPorts, version: int) -> None:
    """Checks the host ports of one IP version; raises CniError(999), KernelError."""
    _check_shared_chains(reader, host_ports, version)
    candidates = reader.list_candidates(host_ports, version)
    ports = [(index, located) for index, located in enumerate(candidates) if rules.belongs_to(located.rule, host_ports)]
    masquerading = [*enumerate(reader.list_of_attachment(host_ports, [CHAINS[version].masquerading]))]
    has_reference_form = _have_reference_form(host_ports, version, [located for _, located in (*ports, *masquerading)])
    _check_ports(
        host_ports,
        version,
        ports,
        nftables_state.foreign_rules(candidates, host_ports, version),
        has_reference_form=has_reference_form,
    )
    _check_masquerading(host_ports, version, masquerading, has_reference_form=has_reference_form)


def _check_shared_chains(reader: TableReader, host_ports: HostPorts, version: int) -> None:
    """Checks that packets reach the chains with the attachments' rules."""
    for chain in rules.required_chains(host_ports, version):
        if not reader.has(chain):
            state = "not called for NAT" if reader.has_name_of(chain) else "missing"
            raise _missing(chain, f"chain {chain} is {state}")
    chains = CHAINS[version]
    entries = rules.entry_rules(host_ports, version)
    for chain in (chains.prerouting, chains.output):
        # The reference puts the conditions of the last ADD of any network there: they may exclude packets.
        if not any(nft_rule.is_any_of(entries, rule.expressions) for rule in reader.list_rules(chain)):
            raise _missing(chain, f"chain {chain} does not send all packets for this host to hostports_all")
    existing = reader.list_rules(chains.hostports_all)
    if not all(any(nft_rule.is_same_rule(jump, rule.expressions) for rule in existing) for jump in ALL):
        raise _missing(chains.hostports_all, f"chain {chains.hostports_all} does not jump to hostports")


def _have_reference_form(host_ports: HostPorts, version: int, existing: Sequence[LocatedRule]) -> bool:
    """Returns whether a container's rules have the reference's form.

    The reference's rules have no owner in userdata. Nor have ours after `nft` has listed and loaded them, which keeps
    only the comment: then the hairpin rule decides; without a hairpin rule both forms are equal.
    """
    if not existing or any(rules.owner(located.rule) for located in existing):
        return False
    theirs = {item.expressions for item in rules.reference_masquerading_rules(host_ports, version)}
    ours = {item.expressions for item in rules.masquerading_rules(host_ports, version)} - theirs
    return not any(nft_rule.is_any_of(ours, located.rule.expressions) for located in existing)


def _named(existing: Sequence[tuple[int, LocatedRule]]) -> Sequence[tuple[int, LocatedRule]]:
    """Returns the rules that name their owner; all of them if none does."""
    return [(index, located) for index, located in existing if rules.owner(located.rule)] or existing


def _check_ports(
    host_ports: HostPorts,
    version: int,
    existing: Sequence[tuple[int, LocatedRule]],
    foreign_rules: Sequence[tuple[int, ForeignRule]],
    *,
    has_reference_form: bool,
) -> None:
    """Checks that each port has a rule, in order, and that no foreign rule for the port comes before it."""
    options = [[item] for item in rules.port_rules(host_ports, version)]
    if has_reference_form:
        options = rules.reference_port_rules(host_ports, version)
    left = iter(_named(existing))
    for option in options:
        right = [item.expressions for item in option]
        at = next((index for index, located in left if nft_rule.is_any_of(right, located.rule.expressions)), None)
        if at is None:
            raise _missing(CHAINS[version].hostports, f'rule "{option[0].text}" is missing')
        mapping = option[0].mapping
        for index, foreign in foreign_rules:
            if mapping and index < at and is_shadowed(foreign, mapping):
                raise shadowed_error(mapping, foreign)


def _check_masquerading(
    host_ports: HostPorts, version: int, existing: Sequence[tuple[int, LocatedRule]], *, has_reference_form: bool
) -> None:
    expected = rules.masquerading_rules(host_ports, version)
    if has_reference_form:
        expected = rules.reference_masquerading_rules(host_ports, version)
    left = iter(_named(existing))
    for item in expected:
        if not any(nft_rule.is_same_rule(item.expressions, located.rule.expressions) for _, located in left):
            raise _missing(CHAINS[version].masquerading, f'rule "{item.text}" is missing')


def _missing(chain: Chain, what: str) -> CniError:
    """Returns the error in the reference's words."""
    return CniError(Code.INTERNAL, f'missing hostport rules in "{chain.name}" chain', f"{what}: {REPAIR_HINT}")
