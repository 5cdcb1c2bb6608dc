"""CHECK of the firewall by nftables.

One rule: nothing is changed; the first thing that is wrong is told.
"""

from __future__ import annotations

from cni.errors import CniError, Code
from kernel.netfilter import nft, nft_rule, nft_set
from kernel.netfilter.nft import NftSocket
from kernel.netfilter.nft_set import Set, having, interface_key
from kernel.netfilter.owned import REPAIR_HINT
from plugins.firewall import nftables_rules as rules
from plugins.firewall.nftables_rules import INSIDE, POLICED, Base
from plugins.firewall.spec import SAME_BRIDGE, Protected


def check(socket: NftSocket, wanted: Protected) -> None:
    """Checks rules, elements, and the bridge's policy; raises CniError(999), KernelError."""
    for base in rules.bases(wanted):
        _check_rules(socket, base)
    for own, elements in rules.expected(wanted).items():
        found = _found(socket, own, {element.key for element in elements})
        for element in elements:
            _check_owner(own, element.key, found, rules.owner_of(wanted))
    if wanted.bridge:
        _check_policy(socket, wanted)


def _check_rules(socket: NftSocket, base: Base) -> None:
    """Checks that a table's chains are called and have the rules that make the sets work."""
    for chain, found in zip(base.chains, nft.get(socket, *base.chains), strict=True):
        if found != chain:
            raise _wrong(f"chain {chain} is {'called elsewhere' if found else 'missing'}")
    for chain, content in base.rules.items():
        left = iter(nft.rules(socket, chain))
        for rule in content:
            if not any(nft_rule.same(rule.expressions, found.expressions) for found in left):
                raise _wrong(f'rule "{rule.text}" of chain {chain} is missing, or not in its place')


def _check_owner(own: Set, key: bytes, found: dict[bytes, nft_set.Element], owner: bytes) -> None:
    if key not in found:
        raise _wrong(f"element {rules.shown(own, key)} of set {own} is missing")
    if rules.owner(found[key]) != owner:
        comment = nft_rule.comment_of(found[key].userdata) or "no comment says whose"
        raise _wrong(f"element {rules.shown(own, key)} of set {own} is another attachment's ({comment})")


def _check_policy(socket: NftSocket, wanted: Protected) -> None:
    bridge = interface_key(wanted.bridge)
    if not _found(socket, POLICED, {bridge}):
        raise _wrong(f'element "{wanted.bridge}" of set {POLICED} is missing')
    inside = bool(_found(socket, INSIDE, {bridge * 2}))
    if inside != (wanted.policy == SAME_BRIDGE):
        state = "contains" if inside else "lacks"
        raise _wrong(f'set {INSIDE} {state} "{wanted.bridge}", which is not what ingressPolicy {wanted.policy} means')


def _found(socket: NftSocket, own: Set, keys: set[bytes]) -> dict[bytes, nft_set.Element]:
    """Returns the elements of a set that have one of `keys`."""
    if not keys:
        return {}
    return {item.key: item for item in nft_set.elements(socket, own, having(keys)) if item.key in keys}


def _wrong(what: str) -> CniError:
    return CniError(Code.INTERNAL, what, REPAIR_HINT)
