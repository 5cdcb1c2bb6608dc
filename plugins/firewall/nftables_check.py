"""CHECK of the backend nftables.

This module only reads. It raises for the first difference.
"""

from __future__ import annotations

from kernel.netfilter import base_table, nft_rule, nft_set
from kernel.netfilter.nft import NftSocket
from kernel.netfilter.nft_set import Set, byte_filter, interface_key
from kernel.netfilter.owned import repairable_error
from plugins.firewall import nftables_rules as rules
from plugins.firewall.nftables_rules import POLICED, SAME_BRIDGE_PAIRS
from plugins.firewall.spec import SAME_BRIDGE, FirewallSpec


def check(socket: NftSocket, spec: FirewallSpec) -> None:
    """Checks rules, elements, and the bridge's policy; raises CniError(999), KernelError."""
    for base in rules.required_tables(spec):
        if problem := base_table.find_problem(socket, base):
            raise repairable_error(problem)
    for element_set, elements in rules.desired_elements(spec).items():
        existing = _get_elements(socket, element_set, {element.key for element in elements})
        for element in elements:
            _check_owner(element_set, element.key, existing, rules.spec_owner(spec))
    if spec.bridge:
        _check_policy(socket, spec)


def _check_owner(element_set: Set, key: bytes, existing: dict[bytes, nft_set.Element], owner: bytes) -> None:
    if key not in existing:
        raise repairable_error(f"element {rules.render_key(element_set, key)} of set {element_set} is missing")
    if rules.element_owner(existing[key]) != owner:
        comment = nft_rule.parse_comment(existing[key].userdata) or "no comment names it"
        name = rules.render_key(element_set, key)
        raise repairable_error(f"element {name} of set {element_set} belongs to another attachment ({comment})")


def _check_policy(socket: NftSocket, spec: FirewallSpec) -> None:
    bridge = interface_key(spec.bridge)
    if not _get_elements(socket, POLICED, {bridge}):
        raise repairable_error(f'element "{spec.bridge}" of set {POLICED} is missing')
    is_same_bridge = bool(_get_elements(socket, SAME_BRIDGE_PAIRS, {bridge * 2}))
    if is_same_bridge != (spec.policy == SAME_BRIDGE):
        state = "contains" if is_same_bridge else "lacks"
        raise repairable_error(
            f'set {SAME_BRIDGE_PAIRS} {state} "{spec.bridge}", contrary to ingressPolicy {spec.policy}'
        )


def _get_elements(socket: NftSocket, element_set: Set, keys: set[bytes]) -> dict[bytes, nft_set.Element]:
    """Returns the elements of a set that have one of `keys`."""
    if not keys:
        return {}
    elements = nft_set.list_elements(socket, element_set, byte_filter(keys))
    return {item.key: item for item in elements if item.key in keys}
