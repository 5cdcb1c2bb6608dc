"""What CHECK demands of the rules in iptables, given what there is.

One rule: pure; it raises for the first thing that is missing, in the reference's words.
"""

from __future__ import annotations

from collections.abc import Sequence

from cni.errors import CniError, Code
from kernel.netfilter.iptables import TOOLS
from kernel.netfilter.owned import REPAIR_HINT
from plugins.firewall.iptables_rules import (
    ENDS,
    FORWARD_JUMP,
    ISOLATION_JUMP,
    address_rules,
    admin_jump,
    normalize,
    other_policy_rules,
    policy_rules,
)
from plugins.firewall.iptables_update import accepted_addresses
from plugins.firewall.spec import OPEN, FirewallSpec


def check_rules(spec: FirewallSpec, version: int, listing: Sequence[str]) -> None:
    """Raises CniError(999) for a rule that is missing, or that does not have its effect where it stands."""
    if spec.accepts:
        _demand(FORWARD_JUMP, version, listing, "FORWARD rule")
        _demand(admin_jump(spec.admin_chain), version, listing, "CNI-FORWARD rule")
        for address in accepted_addresses(spec, version):
            for rule in address_rules(address):
                _demand(rule, version, listing, "rule")
    if spec.policy != OPEN:
        _policy(spec, version, [normalize(line) for line in listing])


def _policy(spec: FirewallSpec, version: int, listing: Sequence[str]) -> None:
    _demand(ISOLATION_JUMP, version, listing, "FORWARD rule")
    if FORWARD_JUMP in listing and listing.index(FORWARD_JUMP) < listing.index(ISOLATION_JUMP):
        raise _wrong(f"chain FORWARD jumps to CNI-FORWARD before the isolation rules ({TOOLS[version]})")
    for chain, end in ENDS.items():
        own = [line for line in listing if line.startswith(f"-A {chain} ")]
        reached = own[: own.index(end)] if end in own else own
        for rule in policy_rules(spec.policy, spec.bridge):
            if rule.startswith(f"-A {chain} "):
                _demand(rule, version, reached, "rule")
    for rule in other_policy_rules(spec.policy, spec.bridge):
        if rule in listing and rule.endswith(" DROP"):
            raise _wrong(f'rule [{_told(rule)}] of ingressPolicy "isolated" is there, too ({TOOLS[version]})')


def _demand(rule: str, version: int, listing: Sequence[str], what: str) -> None:
    if rule not in listing:
        raise _wrong(f"expected {what} [{_told(rule)}] not found ({TOOLS[version]})")


def _told(rule: str) -> str:
    """Returns a rule as the reference tells it: without its chain and without quotes."""
    return rule.split(" ", 2)[2].replace('"', "")


def _wrong(msg: str) -> CniError:
    return CniError(Code.INTERNAL, msg, REPAIR_HINT)
