"""CHECK of the firewall by nftables.

One rule: nothing is changed; the first thing that is wrong is told.
"""

from __future__ import annotations

from cni.errors import CniError, Code
from kernel.netfilter import nft, nft_rule, nft_set
from kernel.netfilter.nft import NftSocket
from kernel.netfilter.nft_set import Set, byte_filter, interface_key
from kernel.netfilter.owned import REPAIR_HINT
from plugins.firewall import nftables_rules as rules
from plugins.firewall.nftables_rules import POLICED, SAME_BRIDGE_PAIRS, BaseTable
from plugins.firewall.spec import SAME_BRIDGE, FirewallSpec


def check(socket: NftSocket, spec: FirewallSpec) -> None:
    """Checks rules, elements, and the bridge's policy; raises CniError(999), KernelError."""
    for base in rules.required_tables(spec):
        _check_rules(socket, base)
    for own, elements in rules.desired_elements(spec).items():
        found = _found(socket, own, {element.key for element in elements})
        for element in elements:
            _check_owner(own, element.key, found, rules.spec_owner(spec))
    if spec.bridge:
        _check_policy(socket, spec)


def _check_rules(socket: NftSocket, base: BaseTable) -> None:
    """Checks that a table's chains are called and have the rules that make the sets work."""
    for chain, found in zip(base.chains, nft.get_chains(socket, *base.chains), strict=True):
        if found != chain:
            raise _wrong(f"chain {chain} is {'called elsewhere' if found else 'missing'}")
    for chain, content in base.rules.items():
        left = iter(nft.list_rules(socket, chain))
        for rule in content:
            if not any(nft_rule.is_same_rule(rule.expressions, found.expressions) for found in left):
                raise _wrong(f'rule "{rule.text}" of chain {chain} is missing, or not in its place')


def _check_owner(own: Set, key: bytes, found: dict[bytes, nft_set.Element], owner: bytes) -> None:
    if key not in found:
        raise _wrong(f"element {rules.render_key(own, key)} of set {own} is missing")
    if rules.element_owner(found[key]) != owner:
        comment = nft_rule.parse_comment(found[key].userdata) or "no comment says whose"
        raise _wrong(f"element {rules.render_key(own, key)} of set {own} is another attachment's ({comment})")


def _check_policy(socket: NftSocket, spec: FirewallSpec) -> None:
    bridge = interface_key(spec.bridge)
    if not _found(socket, POLICED, {bridge}):
        raise _wrong(f'element "{spec.bridge}" of set {POLICED} is missing')
    inside = bool(_found(socket, SAME_BRIDGE_PAIRS, {bridge * 2}))
    if inside != (spec.policy == SAME_BRIDGE):
        state = "contains" if inside else "lacks"
        raise _wrong(
            f'set {SAME_BRIDGE_PAIRS} {state} "{spec.bridge}", which is not what ingressPolicy {spec.policy} means'
        )


def _found(socket: NftSocket, own: Set, keys: set[bytes]) -> dict[bytes, nft_set.Element]:
    """Returns the elements of a set that have one of `keys`."""
    if not keys:
        return {}
    return {item.key: item for item in nft_set.list_elements(socket, own, byte_filter(keys)) if item.key in keys}


def _wrong(what: str) -> CniError:
    return CniError(Code.INTERNAL, what, REPAIR_HINT)
