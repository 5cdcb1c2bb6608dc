r"""The firewall's rules of iptables: the desired rules, the existing rules, and the changes from these to those.

This module is pure. The changes keep the addresses of other attachments, and the policies of existing bridges.

    -A FORWARD ... -j CNI-ISOLATION-STAGE-1                      first, if any network has a policy
    -A FORWARD ... -j CNI-FORWARD
    -A CNI-FORWARD ... -j CNI-ADMIN
    -A CNI-FORWARD -d 10.22.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    -A CNI-FORWARD -s 10.22.0.2/32 -j ACCEPT
    -A CNI-ISOLATION-STAGE-1 -i cni0 -o cni0 ... -j DROP         isolated only
    -A CNI-ISOLATION-STAGE-1 -i cni0 ! -o cni0 ... -j CNI-ISOLATION-STAGE-2
    -A CNI-ISOLATION-STAGE-2 -o cni0 ... -j DROP

These are the reference plugin's rules, which do not name their owner. A further chain, to which no rule jumps, does:

    -A CNI-FORWARD-OWNERS -s 10.22.0.2/32 -m comment --comment "name: \"net\" id: \"cid\" if: \"eth0\""
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable
from ipaddress import ip_address
from typing import NamedTuple

from cni.address import Address, as_network
from cni.conf import Attachment
from kernel.netfilter.iptables_rule import (
    COMMENT_MAX,
    ChainList,
    IptablesChange,
    IptablesRule,
    comment_match,
    network_text,
)
from plugins.firewall.spec import ISOLATED, OPEN, SAME_BRIDGE, FirewallSpec

TABLE = "filter"
ENTRY, FORWARD, OWNERS = "FORWARD", "CNI-FORWARD", "CNI-FORWARD-OWNERS"
STAGE_1, STAGE_2 = "CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"

_STAGES_COMMENT = comment_match("CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)")
_POLICY_COMMENTS = {
    policy: comment_match(f"CNI firewall plugin rules (ingressPolicy: {policy})") for policy in (SAME_BRIDGE, ISOLATED)
}

FORWARD_JUMP = IptablesRule(ENTRY, f"{comment_match('CNI firewall plugin rules')} -j {FORWARD}")
ISOLATION_JUMP = IptablesRule(ENTRY, f"{_STAGES_COMMENT} -j {STAGE_1}")
ENDS = {chain: IptablesRule(chain, f"{_STAGES_COMMENT} -j RETURN") for chain in (STAGE_1, STAGE_2)}

_HASH_DIGITS = 32
_ADDRESS_RULE = re.compile(
    r"-s (\S+)/(?:32|128) -j ACCEPT|-d (\S+)/(?:32|128) -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
)
_RECORD = re.compile(r"-s (\S+)/(?:32|128) -m comment --comment .*")
_NAMED = re.compile(r'name: "(?P<network>[^"]+)" id: "(?P<container_id>[^"]+)" if: "(?P<ifname>.+)"')
_INTERFACE_OPTIONS = {STAGE_1: "-i", STAGE_2: "-o"}


class OwnerRecord(NamedTuple):
    """The owner of an address: the text of the comment that names it, and the rule."""

    address: Address
    comment: str
    rule: IptablesRule

    @property
    def owner(self) -> tuple[str, Attachment] | None:
        """The network and the attachment, None if the comment has hashes because the names are too long."""
        named = _NAMED.fullmatch(self.comment)
        return (named["network"], Attachment(named["container_id"], named["ifname"])) if named else None


IsStale = Callable[[OwnerRecord], bool]  # returns whether the attachment of a record is proven to be no longer running


def normalize(rule: IptablesRule) -> IptablesRule:
    """Returns a rule as the reference plugin writes it since 1.7.0; older comments of shared rules name one policy."""
    is_shared = rule.chain in (ENTRY, STAGE_2) or rule.target == "RETURN"
    return (
        IptablesRule(rule.chain, rule.spec.replace(_POLICY_COMMENTS[SAME_BRIDGE], _STAGES_COMMENT))
        if is_shared
        else rule
    )


def admin_jump(chain: str) -> IptablesRule:
    """Returns the rule that jumps to the administrator's chain, before the rules of addresses."""
    return IptablesRule(FORWARD, f"{comment_match('CNI firewall plugin admin overrides')} -j {chain}")


def address_rules(address: Address) -> list[IptablesRule]:
    """Returns the rules that accept packets from an address, and replies to it."""
    network = network_text(as_network(address))
    return [
        IptablesRule(FORWARD, f"-d {network} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
        IptablesRule(FORWARD, f"-s {network} -j ACCEPT"),
    ]


def policy_rules(policy: str, bridge: str) -> list[IptablesRule]:
    """Returns the rules of a bridge with a policy, in the order of their chains."""
    comment = _POLICY_COMMENTS[policy]
    isolation = [IptablesRule(STAGE_1, f"-i {bridge} -o {bridge} {comment} -j DROP")] if policy == ISOLATED else []
    return [
        *isolation,
        IptablesRule(STAGE_1, f"-i {bridge} ! -o {bridge} {comment} -j {STAGE_2}"),
        IptablesRule(STAGE_2, f"-o {bridge} {_STAGES_COMMENT} -j DROP"),
    ]


def other_policy_rules(policy: str, bridge: str) -> list[IptablesRule]:
    """Returns the rules that a bridge has only with the other policy."""
    other = SAME_BRIDGE if policy == ISOLATED else ISOLATED
    desired = policy_rules(policy, bridge)
    return [rule for rule in policy_rules(other, bridge) if rule not in desired]


def interface_of(rule: IptablesRule) -> str:
    """Returns the interface that a policy's rule matches, "" for any other rule."""
    option, _, rest = rule.spec.partition(" ")
    return rest.partition(" ")[0] if option == _INTERFACE_OPTIONS.get(rule.chain) else ""


def address_of(rule: IptablesRule) -> Address | None:
    """Returns the address that a rule in CNI-FORWARD accepts, None for any other rule."""
    match = _ADDRESS_RULE.fullmatch(rule.spec)
    return ip_address(match[1] or match[2]) if match else None


def record_rule(spec: FirewallSpec, address: Address) -> IptablesRule:
    """Returns the rule that records the owner of an address."""
    comment = comment_match(owner_text(spec.network, Attachment(spec.container_id, spec.ifname)))
    return IptablesRule(OWNERS, f"-s {network_text(as_network(address))} {comment}")


def parse_records(listing: ChainList) -> list[OwnerRecord]:
    """Returns the records in a listing."""
    matches = ((rule, _RECORD.fullmatch(rule.spec)) for rule in listing.rules(OWNERS))
    return [OwnerRecord(ip_address(match[1]), rule.comment, rule) for rule, match in matches if match]


def owner_text(network: str, attachment: Attachment) -> str:
    """Returns the comment of an attachment's records; if the names are too long, it has hashes instead."""
    text = f'{_network(network)}id: "{attachment.container_id}" if: "{attachment.ifname}"'
    if len(text.encode(errors="surrogateescape")) > COMMENT_MAX:
        text = f"{_hashed_network(network)}owner-sha512: {_hash(text)}"
    return text


def is_of_network(record: OwnerRecord, network: str) -> bool:
    """Returns whether a record belongs to an attachment of a network."""
    return record.comment.startswith((_network(network), _hashed_network(network)))


def required_chains(spec: FirewallSpec) -> list[str]:
    """Returns the chains that the rules of `spec` need."""
    chains = [FORWARD, spec.admin_chain, OWNERS] if spec.accepts else []
    return chains + ([STAGE_1, STAGE_2] if spec.policy != OPEN else [])


def accepted_addresses(spec: FirewallSpec, version: int) -> list[Address]:
    """Returns the addresses of an IP version that the rules accept; none if firewalld accepts them."""
    return [address for address in spec.addresses if address.version == version and spec.accepts]


def changes_for_add(spec: FirewallSpec, version: int, listing: ChainList, is_stale: IsStale) -> list[IptablesChange]:
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


def rules_for_del(
    spec: FirewallSpec, version: int, listing: ChainList, stale_interfaces: Collection[str], is_stale: IsStale
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


def rules_for_gc(
    network: str, valid: Iterable[Attachment], listing: ChainList, stale_interfaces: Collection[str]
) -> list[IptablesRule]:
    """Returns the rules that GC deletes: records of attachments not in `valid`, rules of addresses without others."""
    valid_comments = {owner_text(network, item) for item in valid}
    records = parse_records(listing)
    stale = {item for item in records if is_of_network(item, network) and item.comment not in valid_comments}
    return _removable_rules(listing, records, stale, {item.address for item in stale}, stale_interfaces)


def count_unowned(listing: ChainList) -> int:
    """Returns the number of address rules without a record."""
    recorded = {item.address for item in parse_records(listing)}
    addresses = map(address_of, listing.rules(FORWARD))
    return sum(address not in recorded for address in addresses if address)


def changes_to_delete_rules(rules: Collection[IptablesRule], listing: ChainList) -> list[IptablesChange]:
    """Returns the changes that delete rules, and with the last record its chain."""
    is_last = OWNERS in listing.chains and set(rules).issuperset(listing.rules(OWNERS))
    return [*map(IptablesChange.delete, rules), *([IptablesChange.delete_chain(OWNERS)] if is_last else [])]


def _removable_rules(
    listing: ChainList,
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


def _jump_changes(spec: FirewallSpec, listing: ChainList) -> list[IptablesChange]:
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


def _address_changes(spec: FirewallSpec, version: int, listing: ChainList, is_stale: IsStale) -> list[IptablesChange]:
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


def _policy_changes(spec: FirewallSpec, listing: ChainList) -> list[IptablesChange]:
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


def _network(network: str) -> str:
    return f'name: "{network}" '


def _hashed_network(network: str) -> str:
    return f"name-sha512: {_hash(network)} "


def _hash(text: str) -> str:
    return hashlib.sha512(text.encode(errors="surrogateescape")).hexdigest()[:_HASH_DIGITS]
