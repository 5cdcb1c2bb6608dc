"""The changes that ADD applies, and the rules that DEL and GC delete, from the existing rules.

This module is pure. It keeps the addresses of other attachments, and the policies of existing bridges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from cni.address import Address
from cni.conf import Attachment
from kernel.netfilter.iptables_rule import IptablesChange, IptablesRule, Listing
from plugins.firewall.iptables_rules import (
    ENDS,
    ENTRY,
    FORWARD,
    FORWARD_JUMP,
    ISOLATION_JUMP,
    OWNERS,
    STAGE_1,
    STAGE_2,
    OwnerRecord,
    address_of,
    address_rules,
    admin_jump,
    interface_of,
    is_of_network,
    normalize,
    other_policy_rules,
    owner_text,
    parse_records,
    policy_rules,
    record_rule,
)
from plugins.firewall.spec import OPEN, FirewallSpec

IsStale = Callable[[OwnerRecord], bool]  # returns whether the attachment of a record is proven to be no longer running


def required_chains(spec: FirewallSpec) -> list[str]:
    """Returns the chains that the rules of `spec` need."""
    chains = [FORWARD, spec.admin_chain, OWNERS] if spec.accepts else []
    return chains + ([STAGE_1, STAGE_2] if spec.policy != OPEN else [])


def accepted_addresses(spec: FirewallSpec, version: int) -> list[Address]:
    """Returns the addresses of an IP version that the rules accept; none if firewalld accepts them."""
    return [address for address in spec.addresses if address.version == version and spec.accepts]


def changes_for_add(spec: FirewallSpec, version: int, listing: Listing, is_stale: IsStale) -> list[IptablesChange]:
    """Returns the changes that create the rules of `spec`, once and in position.

    `listing` has this plugin's chains, and the rules in FORWARD that jump to them.
    """
    changes = [IptablesChange.new_chain(chain) for chain in required_chains(spec) if chain not in listing.chains]
    changes += _jump_changes(spec, listing)
    if spec.accepts:
        jump = admin_jump(spec.admin_chain)
        if (number := listing.rules(FORWARD).count(jump)) != 1:
            changes += [*[IptablesChange.delete(jump)] * number, IptablesChange.insert(jump)]
        changes += _address_changes(spec, version, listing, is_stale)
    if spec.policy != OPEN:
        changes += _policy_changes(spec, listing)
    return changes


def del_rules(
    spec: FirewallSpec, version: int, listing: Listing, stale_interfaces: Collection[str], is_stale: IsStale
) -> list[IptablesRule]:
    """Returns the rules that an attachment's DEL deletes: those of the addresses in `spec` and in its records.

    Keeps an address with another attachment's record, unless that record `is_stale`. Deletes the policies of
    `stale_interfaces`.
    """
    comment = owner_text(spec.network, Attachment(spec.container_id, spec.ifname))
    records = parse_records(listing)
    addresses = {address for address in spec.addresses if address.version == version}
    addresses |= {item.address for item in records if item.comment == comment}
    stale = {item for item in records if item.comment == comment or (item.address in addresses and is_stale(item))}
    return _removable_rules(listing, records, stale, addresses, stale_interfaces)


def gc_rules(
    network: str, valid: Iterable[Attachment], listing: Listing, stale_interfaces: Collection[str]
) -> list[IptablesRule]:
    """Returns the rules that GC deletes: records of attachments not in `valid`, rules of addresses without others."""
    valid_comments = {owner_text(network, item) for item in valid}
    records = parse_records(listing)
    stale = {item for item in records if is_of_network(item, network) and item.comment not in valid_comments}
    return _removable_rules(listing, records, stale, {item.address for item in stale}, stale_interfaces)


def count_unowned(listing: Listing) -> int:
    """Returns the number of address rules without a record."""
    recorded = {item.address for item in parse_records(listing)}
    addresses = map(address_of, listing.rules(FORWARD))
    return sum(address not in recorded for address in addresses if address)


def changes_to_delete_rules(rules: Collection[IptablesRule], listing: Listing) -> list[IptablesChange]:
    """Returns the changes that delete rules, and with the last record its chain."""
    is_last = OWNERS in listing.chains and set(rules).issuperset(listing.rules(OWNERS))
    return [*map(IptablesChange.delete, rules), *([IptablesChange.delete_chain(OWNERS)] if is_last else [])]


def _removable_rules(
    listing: Listing,
    records: list[OwnerRecord],
    stale: set[OwnerRecord],
    addresses: set[Address],
    stale_interfaces: Collection[str],
) -> list[IptablesRule]:
    unused = addresses - {item.address for item in records if item not in stale}
    policies = (rule for chain in ENDS for rule in listing.rules(chain))
    return [
        *(item.rule for item in records if item in stale),
        *(rule for rule in listing.rules(FORWARD) if address_of(rule) in unused),
        *(rule for rule in policies if interface_of(rule) in stale_interfaces),
    ]


def _jump_changes(spec: FirewallSpec, listing: Listing) -> list[IptablesChange]:
    """Returns the changes that put both jumps into FORWARD once, the policies' jump before the accepting one.

    A correct jump keeps its position, since rules of other programs may depend on it. If parallel ADDs created a jump
    twice, both are deleted and one is created: of two ADDs that do so, the kernel refuses one, which tries again.
    """
    jumps = [rule for rule in listing.rules(ENTRY) if normalize(rule) in (FORWARD_JUMP, ISOLATION_JUMP)]
    accepting = [rule for rule in jumps if rule == FORWARD_JUMP]
    isolating = [rule for rule in jumps if rule != FORWARD_JUMP]
    misplaced = spec.accepts and len(accepting) != 1
    changes = [*map(IptablesChange.delete, accepting), IptablesChange.insert(FORWARD_JUMP)] if misplaced else []
    if not isolating and spec.policy == OPEN:
        return changes
    if len(isolating) == 1 and not misplaced and jumps[0] == isolating[0]:
        return changes
    return [*changes, *map(IptablesChange.delete, isolating), IptablesChange.insert(ISOLATION_JUMP)]


def _address_changes(spec: FirewallSpec, version: int, listing: Listing, is_stale: IsStale) -> list[IptablesChange]:
    """Returns the changes that accept the addresses, and delete the stale records of other attachments.

    Another record of the same network is stale, since a network allocates an address to one attachment at a time.
    """
    addresses = accepted_addresses(spec, version)
    rules = [rule for address in addresses for rule in address_rules(address)]
    desired_records = [record_rule(spec, address) for address in addresses]
    others = [item for item in parse_records(listing) if item.address in addresses and item.rule not in desired_records]
    stale = [item.rule for item in others if is_of_network(item, spec.network) or is_stale(item)]
    missing = [rule for rule in (*rules, *desired_records) if rule not in listing]
    return [*map(IptablesChange.append, missing), *map(IptablesChange.delete, stale)]


def _policy_changes(spec: FirewallSpec, listing: Listing) -> list[IptablesChange]:
    """Returns the changes that put a bridge's rules first in their chains, once, and delete the other policy's rules.

    Parallel ADDs may have created them twice, as in _jump_changes.
    """
    changes: list[IptablesChange] = []
    desired_rules = policy_rules(spec.policy, spec.bridge)
    for chain, end in ENDS.items():
        # Rules after the end have no effect.
        existing = listing.rules(chain)
        ends = [rule for rule in existing if normalize(rule) == end]
        before_end = existing[: existing.index(ends[0])] if ends else existing
        reached = [normalize(rule) for rule in before_end]
        for rule in reversed([rule for rule in desired_rules if rule.chain == chain]):
            count = before_end.count(rule)
            duplicates = [IptablesChange.delete(rule)] * count if count > 1 else []
            changes += [*duplicates, IptablesChange.insert(rule)] if duplicates or rule not in reached else []
        changes += [] if len(ends) == 1 else [*map(IptablesChange.delete, ends), IptablesChange.append(end)]
    other = other_policy_rules(spec.policy, spec.bridge)
    return [
        *changes,
        *(IptablesChange.delete(rule) for chain in ENDS for rule in listing.rules(chain) if rule in other),
    ]
