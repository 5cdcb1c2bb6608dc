"""The lines that ADD applies, and the rules that DEL and GC delete, from the existing rules.

This module is pure. It keeps the addresses of other attachments, and the policies of existing bridges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from cni.address import Address
from cni.conf import Attachment
from kernel.netfilter.iptables_chains import lines_to_delete
from plugins.firewall.iptables_rules import (
    ENDS,
    FORWARD,
    FORWARD_JUMP,
    ISOLATION_JUMP,
    OWNERS,
    STAGE_1,
    STAGE_2,
    Record,
    address_of,
    address_rules,
    admin_jump,
    interface_of,
    is_of_network,
    normalize,
    other_policy_rules,
    owner_comment,
    parse_records,
    policy_rules,
    record_rule,
)
from plugins.firewall.spec import OPEN, FirewallSpec

IsStale = Callable[[Record], bool]  # returns whether the attachment of a record is proven to be no longer running


def required_chains(spec: FirewallSpec) -> list[str]:
    """Returns the chains that the rules of `spec` need."""
    chains = [FORWARD, spec.admin_chain, OWNERS] if spec.accepts else []
    return chains + ([STAGE_1, STAGE_2] if spec.policy != OPEN else [])


def accepted_addresses(spec: FirewallSpec, version: int) -> list[Address]:
    """Returns the addresses of an IP version that the rules accept; none if firewalld accepts them."""
    return [address for address in spec.addresses if address.version == version and spec.accepts]


def add_lines(spec: FirewallSpec, version: int, listing: Sequence[str], is_stale: IsStale) -> list[str]:
    """Returns the lines that create the rules of `spec`, once and in position.

    `listing`: the lines of `iptables -S` for this plugin's chains, and for the rules in FORWARD that jump to them.
    """
    lines = [f"-N {chain}" for chain in required_chains(spec) if f"-N {chain}" not in listing]
    lines += _jump_lines(spec, listing)
    if spec.accepts:
        jump = admin_jump(spec.admin_chain)
        if (number := listing.count(jump)) != 1:
            lines += [*lines_to_delete([jump] * number), _insert_line(jump)]
        lines += _address_lines(spec, version, listing, is_stale)
    if spec.policy != OPEN:
        lines += _policy_lines(spec, listing)
    return lines


def del_rules(
    spec: FirewallSpec, version: int, listing: Sequence[str], stale_interfaces: Collection[str], is_stale: IsStale
) -> list[str]:
    """Returns the rules that an attachment's DEL deletes: those of the addresses in `spec` and in its records.

    Keeps an address with another attachment's record, unless that record `is_stale`. Deletes the policies of
    `stale_interfaces`.
    """
    comment = owner_comment(spec.network, Attachment(spec.container_id, spec.ifname))
    records = parse_records(listing)
    addresses = {address for address in spec.addresses if address.version == version}
    addresses |= {item.address for item in records if item.match == comment}
    stale = {item for item in records if item.match == comment or (item.address in addresses and is_stale(item))}
    return _removable_rules(listing, records, stale, addresses, stale_interfaces)


def gc_rules(
    network: str, valid: Iterable[Attachment], listing: Sequence[str], stale_interfaces: Collection[str]
) -> list[str]:
    """Returns the rules that GC deletes: records of attachments not in `valid`, rules of addresses without others."""
    valid_comments = {owner_comment(network, item) for item in valid}
    records = parse_records(listing)
    stale = {item for item in records if is_of_network(item, network) and item.match not in valid_comments}
    return _removable_rules(listing, records, stale, {item.address for item in stale}, stale_interfaces)


def count_unowned(listing: Sequence[str]) -> int:
    """Returns the number of address rules without a record."""
    recorded = {item.address for item in parse_records(listing)}
    addresses = (address_of(line) for line in listing)
    return sum(address not in recorded for address in addresses if address)


def lines_to_delete_rules(rules: Sequence[str], listing: Sequence[str]) -> list[str]:
    """Returns the lines that delete rules, and with the last record its chain."""
    remaining = [line for line in listing if line.startswith(f"-A {OWNERS} ") and line not in rules]
    return lines_to_delete(rules) + ([f"-X {OWNERS}"] if f"-N {OWNERS}" in listing and not remaining else [])


def _removable_rules(
    listing: Sequence[str],
    records: list[Record],
    stale: set[Record],
    addresses: set[Address],
    stale_interfaces: Collection[str],
) -> list[str]:
    unused = addresses - {item.address for item in records if item not in stale}
    stale_lines = {item.line for item in stale}
    return [
        line
        for line in listing
        if line in stale_lines or address_of(line) in unused or interface_of(line) in stale_interfaces
    ]


def _jump_lines(spec: FirewallSpec, listing: Sequence[str]) -> list[str]:
    """Returns the lines that put both jumps into FORWARD once, the policies' jump before the accepting one.

    A correct jump keeps its position, since rules of other programs may depend on it. If parallel ADDs created a jump
    twice, both are deleted and one is created: of two ADDs that do so, the kernel refuses one, which tries again.
    """
    jumps = [line for line in listing if normalize(line) in (FORWARD_JUMP, ISOLATION_JUMP)]
    accepting = jumps.count(FORWARD_JUMP)
    isolating = [line for line in jumps if line != FORWARD_JUMP]
    misplaced = spec.accepts and accepting != 1
    lines = [*lines_to_delete([FORWARD_JUMP] * accepting), _insert_line(FORWARD_JUMP)] if misplaced else []
    if not isolating and spec.policy == OPEN:
        return lines
    if len(isolating) == 1 and not misplaced and jumps[0] == isolating[0]:
        return lines
    return [*lines, *lines_to_delete(isolating), _insert_line(ISOLATION_JUMP)]


def _address_lines(spec: FirewallSpec, version: int, listing: Sequence[str], is_stale: IsStale) -> list[str]:
    """Returns the lines that accept the addresses, and delete the stale records of other attachments.

    Another record of the same network is stale, since a network allocates an address to one attachment at a time.
    """
    addresses = accepted_addresses(spec, version)
    rules = [rule for address in addresses for rule in address_rules(address)]
    desired_records = [record_rule(spec, address) for address in addresses]
    others = [item for item in parse_records(listing) if item.address in addresses and item.line not in desired_records]
    stale = [item.line for item in others if is_of_network(item, spec.network) or is_stale(item)]
    return [line for line in (*rules, *desired_records) if line not in listing] + lines_to_delete(stale)


def _policy_lines(spec: FirewallSpec, listing: Sequence[str]) -> list[str]:
    """Returns the lines that put a bridge's rules first in their chains, once, and delete the other policy's rules.

    Parallel ADDs may have created them twice, as in _jump_lines.
    """
    lines = []
    desired_rules = policy_rules(spec.policy, spec.bridge)
    for chain, end in ENDS.items():
        # Rules after the end have no effect.
        existing = [line for line in listing if line.startswith(f"-A {chain} ")]
        ends = [line for line in existing if normalize(line) == end]
        before_end = existing[: existing.index(ends[0])] if ends else existing
        reached = [normalize(line) for line in before_end]
        for rule in reversed([rule for rule in desired_rules if rule.startswith(f"-A {chain} ")]):
            count = before_end.count(rule)
            duplicates = lines_to_delete([rule] * count) if count > 1 else []
            lines += [*duplicates, _insert_line(rule)] if duplicates or rule not in reached else []
        lines += [] if len(ends) == 1 else [*lines_to_delete(ends), end]
    other = other_policy_rules(spec.policy, spec.bridge)
    return lines + lines_to_delete(line for line in listing if line in other)


def _insert_line(rule: str) -> str:
    return rule.replace("-A ", "-I ", 1)
