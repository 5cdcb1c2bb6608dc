"""Lists the owners of this node's firewall rules: the records of iptables, and the elements of nftables' sets.

This module only reads. It omits rules without an owner, such as the reference plugin's.
"""

from __future__ import annotations

from cni.conf import Attachment
from kernel.netfilter import iptables, nft_owner, nft_set
from kernel.netfilter.iptables_rule import ChainList
from kernel.netfilter.nft import Chain, NftSocket, Table
from kernel.netfilter.owned import FIREWALL, IPTABLES, NFTABLES, OwnedRule
from plugins.firewall import iptables_rules, iptables_state, nftables_records
from plugins.firewall import nftables_rules as rules
from plugins.firewall.iptables_rules import OWNERS, TABLE


def list_owned_rules(socket: NftSocket) -> list[OwnedRule]:
    """Lists the rules that netlink can read; raises KernelError."""
    owned = []
    for family in iptables.FAMILIES:
        chain = Chain(Table(iptables.NFPROTO[family], TABLE), OWNERS)
        records = iptables_state.to_listing((), iptables_state.list_rules(socket, chain, family))
        owned += _parse_listing(records, f"chain {chain}")
    for element_set in (*rules.OWNED, *nftables_records.SETS.values()):
        for element in nft_set.list_elements(socket, element_set):
            owner = rules.element_owner(element)
            if owner:
                names, subject = rules.element_names(element), rules.render_key(element_set, element.key)
                owned.append(OwnedRule(FIREWALL, NFTABLES, f"set {element_set}", owner, *names, subject=subject))
    return owned


def list_legacy_owned_rules() -> list[OwnedRule]:
    """Lists the rules of iptables-legacy; raises CniError."""
    families = iptables.get_legacy_families(TABLE)
    listings = iptables.read(families, TABLE, legacy=True) if families else {}
    return [item for listing in listings.values() for item in _parse_listing(listing, f"chain {OWNERS} (legacy)")]


def owner_keys(network: str, attachment: Attachment) -> tuple[bytes, ...]:
    """Returns the owner keys that an attachment's rules may have."""
    return _comment_key(iptables_rules.owner_text(network, attachment)), nft_owner.owner_id(network, *attachment)


def _parse_listing(listing: ChainList, where: str) -> list[OwnedRule]:
    owned = []
    for record in iptables_rules.parse_records(listing):
        network, attachment = record.owner or ("", Attachment("", ""))
        key, subject = _comment_key(record.comment), str(record.address)
        owned.append(OwnedRule(FIREWALL, IPTABLES, where, key, network, *attachment, subject))
    return owned


def _comment_key(comment: str) -> bytes:
    return comment.encode(errors="surrogateescape")
