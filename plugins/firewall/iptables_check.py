"""CHECK of the backend iptables, on a listing of the existing rules.

This module is pure. It raises for the first missing rule, with the reference plugin's text.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernel.netfilter.iptables import TOOLS
from kernel.netfilter.iptables_rule import ChainList, IptablesRule
from kernel.netfilter.owned import repairable_error
from plugins.firewall.iptables_rules import (
    ENDS,
    ENTRY,
    FORWARD_JUMP,
    ISOLATION_JUMP,
    accepted_addresses,
    address_rules,
    admin_jump,
    normalize,
    other_policy_rules,
    policy_rules,
)
from plugins.firewall.spec import OPEN, FirewallSpec


def check_rules(spec: FirewallSpec, version: int, listing: ChainList) -> None:
    """Raises CniError(999) for a rule that is missing, or that has no effect because of its position."""
    if spec.accepts:
        _demand(FORWARD_JUMP, version, listing, "FORWARD rule")
        _demand(admin_jump(spec.admin_chain), version, listing, "CNI-FORWARD rule")
        for address in accepted_addresses(spec, version):
            for rule in address_rules(address):
                _demand(rule, version, listing, "rule")
    if spec.policy != OPEN:
        _check_policy(spec, version, listing)


def _check_policy(spec: FirewallSpec, version: int, listing: ChainList) -> None:
    entries = [normalize(rule) for rule in listing.rules(ENTRY)]
    _demand(ISOLATION_JUMP, version, entries, "FORWARD rule")
    if FORWARD_JUMP in entries and entries.index(FORWARD_JUMP) < entries.index(ISOLATION_JUMP):
        raise repairable_error(f"chain FORWARD jumps to CNI-FORWARD before the isolation rules ({TOOLS[version]})")
    for chain, end in ENDS.items():
        rules = [normalize(rule) for rule in listing.rules(chain)]
        reached = rules[: rules.index(end)] if end in rules else rules
        for rule in policy_rules(spec.policy, spec.bridge):
            if rule.chain == chain:
                _demand(rule, version, reached, "rule")
    for rule in other_policy_rules(spec.policy, spec.bridge):
        if rule in listing and rule.target == "DROP":
            raise repairable_error(f'rule [{_render(rule)}] of ingressPolicy "isolated" exists, too ({TOOLS[version]})')


def _demand(rule: IptablesRule, version: int, existing: ChainList | Sequence[IptablesRule], what: str) -> None:
    if rule not in existing:
        raise repairable_error(f"expected {what} [{_render(rule)}] not found ({TOOLS[version]})")


def _render(rule: IptablesRule) -> str:
    """Returns a rule as the reference plugin prints it: without its chain and without quotes."""
    return rule.spec.replace('"', "")
