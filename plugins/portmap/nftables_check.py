"""CHECK of the nftables backend: compares the existing rules with the desired ones.

The rules of the reference plugin pass, too. The error names the first problem.
"""

from __future__ import annotations

from collections.abc import Sequence

from cni.errors import CniError, internal
from kernel.netfilter import nft_rule
from kernel.netfilter.nft import Chain
from kernel.netfilter.owned import REPAIR_HINT
from plugins.portmap import nftables_rules as rules
from plugins.portmap import nftables_state
from plugins.portmap.conf import HostPorts
from plugins.portmap.nftables_rules import CHAINS, HOSTPORTS_ALL_RULES
from plugins.portmap.nftables_state import LocatedRule, TableReader
from plugins.portmap.port_conflicts import ForeignRule, is_shadowed, shadowed_error


def check(reader: TableReader, host_ports: HostPorts, version: int) -> None:
    """Checks the host ports of one IP version; raises CniError(999), KernelError."""
    _check_shared_chains(reader, host_ports, version)
    candidates = reader.list_candidates(host_ports, version)
    port_rules = [
        (index, located) for index, located in enumerate(candidates) if rules.belongs_to(located.rule, host_ports)
    ]
    masquerading_rules = [*enumerate(reader.list_attachment_rules(host_ports, [CHAINS[version].masquerading]))]
    existing = [located for _, located in (*port_rules, *masquerading_rules)]
    has_reference_form = _has_reference_form(host_ports, version, existing)
    _check_ports(
        host_ports,
        version,
        port_rules,
        nftables_state.foreign_rules(candidates, host_ports, version),
        has_reference_form=has_reference_form,
    )
    _check_masquerading(host_ports, version, masquerading_rules, has_reference_form=has_reference_form)


def _check_shared_chains(reader: TableReader, host_ports: HostPorts, version: int) -> None:
    """Checks that all packets to the host's addresses reach the chains with the rules of attachments."""
    for chain in rules.required_chains(host_ports, version):
        if not reader.has(chain):
            state = "without its NAT hook" if reader.has_name(chain) else "missing"
            raise _missing(chain, f"chain {chain} is {state}")
    chains = CHAINS[version]
    accepted = rules.valid_base_chain_rules(host_ports, version)
    for chain in (chains.prerouting, chains.output):
        # The conditions that the reference plugin writes here apply to all networks, so they may exclude packets.
        if not any(nft_rule.is_any_of(accepted, rule.expressions) for rule in reader.list_rules(chain)):
            raise _missing(chain, f"chain {chain} does not send all packets for this host to hostports_all")
    existing = reader.list_rules(chains.hostports_all)
    if not all(any(nft_rule.is_same_rule(jump, rule.expressions) for rule in existing) for jump in HOSTPORTS_ALL_RULES):
        raise _missing(chains.hostports_all, f"chain {chains.hostports_all} does not jump to hostports")


def _has_reference_form(host_ports: HostPorts, version: int, existing: Sequence[LocatedRule]) -> bool:
    """Returns whether the reference plugin has created the attachment's rules.

    The reference plugin's rules have no owner in userdata. podwire's rules lose the owner when `nft` lists and loads
    them, since nft keeps only the comment. Then only the masquerading rule for hairpin shows which plugin has created
    the rules; without such a rule, both plugins create the same rules.
    """
    if not existing or any(rules.owner(located.rule) for located in existing):
        return False
    reference_rules = {item.expressions for item in rules.reference_masquerading_rules(host_ports, version)}
    podwire_rules = {item.expressions for item in rules.masquerading_rules(host_ports, version)} - reference_rules
    return not any(nft_rule.is_any_of(podwire_rules, located.rule.expressions) for located in existing)


def _with_owner(existing: Sequence[tuple[int, LocatedRule]]) -> Sequence[tuple[int, LocatedRule]]:
    """Returns the rules with an owner in userdata; all rules if none has one."""
    return [(index, located) for index, located in existing if rules.owner(located.rule)] or existing


def _check_ports(
    host_ports: HostPorts,
    version: int,
    existing: Sequence[tuple[int, LocatedRule]],
    foreign_rules: Sequence[tuple[int, ForeignRule]],
    *,
    has_reference_form: bool,
) -> None:
    """Checks that the rules of all ports exist, in order, and that no foreign rule for a port comes before its rule."""
    desired = [[item] for item in rules.port_rules(host_ports, version)]
    if has_reference_form:
        desired = rules.reference_port_rules(host_ports, version)
    remaining = iter(_with_owner(existing))
    for alternatives in desired:
        accepted = [item.expressions for item in alternatives]
        position = next(
            (index for index, located in remaining if nft_rule.is_any_of(accepted, located.rule.expressions)), None
        )
        if position is None:
            raise _missing(CHAINS[version].hostports, f'rule "{alternatives[0].text}" is missing')
        mapping = alternatives[0].mapping
        for index, foreign in foreign_rules:
            if mapping and index < position and is_shadowed(foreign, mapping):
                raise shadowed_error(mapping, foreign)


def _check_masquerading(
    host_ports: HostPorts, version: int, existing: Sequence[tuple[int, LocatedRule]], *, has_reference_form: bool
) -> None:
    desired = rules.masquerading_rules(host_ports, version)
    if has_reference_form:
        desired = rules.reference_masquerading_rules(host_ports, version)
    remaining = iter(_with_owner(existing))
    for item in desired:
        if not any(nft_rule.is_same_rule(item.expressions, located.rule.expressions) for _, located in remaining):
            raise _missing(CHAINS[version].masquerading, f'rule "{item.text}" is missing')


def _missing(chain: Chain, what: str) -> CniError:
    """Returns the error with the message of the reference plugin."""
    return internal(f'missing hostport rules in "{chain.name}" chain', f"{what}: {REPAIR_HINT}")
