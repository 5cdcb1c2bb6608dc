"""What ADD writes, and what DEL and GC take away, given what there is.

One rule: pure; lines in, lines out. Another attachment's address is never taken away, nor a policy of a bridge that is
there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from cni.address import Address
from cni.conf import Attachment
from kernel.netfilter.iptables_chains import deletion_lines
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
    owner,
    policy_rules,
    record,
    records,
)
from plugins.firewall.spec import OPEN, FirewallSpec

IsGone = Callable[[Record], bool]  # whether whose record it is surely does not live any more


def required_chains(spec: FirewallSpec) -> list[str]:
    """Returns the chains that are needed."""
    own = [FORWARD, spec.admin_chain, OWNERS] if spec.accepts else []
    return own + ([STAGE_1, STAGE_2] if spec.policy != OPEN else [])


def accepted_addresses(spec: FirewallSpec, version: int) -> list[Address]:
    """Returns the addresses of an IP version that are to be let through."""
    return [address for address in spec.addresses if address.version == version and spec.accepts]


def add_lines(spec: FirewallSpec, version: int, listing: Sequence[str], is_gone: IsGone) -> list[str]:
    """Returns what is to be applied so that the rules of `spec` are there, once, and where they belong.

    `listing` is what `iptables -S` tells of what is ours, and of the rules in FORWARD that lead there.
    """
    made = [f"-N {chain}" for chain in required_chains(spec) if f"-N {chain}" not in listing]
    made += _jumps(spec, listing)
    if spec.accepts:
        jump = admin_jump(spec.admin_chain)
        if (number := listing.count(jump)) != 1:
            made += [*deletion_lines([jump] * number), _first(jump)]
        made += _addresses(spec, version, listing, is_gone)
    if spec.policy != OPEN:
        made += _policy(spec, listing)
    return made


def del_rules(
    spec: FirewallSpec, version: int, listing: Sequence[str], dead: Collection[str], is_gone: IsGone
) -> list[str]:
    """Returns the rules that an attachment's DEL takes away: its addresses are those of `spec` and of its records.

    An address that has another's record stays, unless that one `is_gone`. `dead` are interfaces whose policies go.
    """
    own = owner(spec.network, Attachment(spec.container_id, spec.ifname))
    known = records(listing)
    addresses = {address for address in spec.addresses if address.version == version}
    addresses |= {item.address for item in known if item.match == own}
    gone = {item for item in known if item.match == own or (item.address in addresses and is_gone(item))}
    return _removal(listing, known, gone, addresses, dead)


def gc_rules(network: str, valid: Iterable[Attachment], listing: Sequence[str], dead: Collection[str]) -> list[str]:
    """Returns the rules that GC takes away: what has only records of the network's attachments that are not `valid`."""
    kept = {owner(network, item) for item in valid}
    known = records(listing)
    gone = {item for item in known if is_of_network(item, network) and item.match not in kept}
    return _removal(listing, known, gone, {item.address for item in gone}, dead)


def count_unowned(listing: Sequence[str]) -> int:
    """Returns how many rules of addresses there are that have no record."""
    named = {item.address for item in records(listing)}
    found = (address_of(line) for line in listing)
    return sum(address not in named for address in found if address)


def removal_lines(rules: Sequence[str], listing: Sequence[str]) -> list[str]:
    """Returns what deletes rules, and the chain of the records with the last of them."""
    left = [line for line in listing if line.startswith(f"-A {OWNERS} ") and line not in rules]
    return deletion_lines(rules) + ([f"-X {OWNERS}"] if f"-N {OWNERS}" in listing and not left else [])


def _removal(
    listing: Sequence[str], known: list[Record], gone: set[Record], addresses: set[Address], dead: Collection[str]
) -> list[str]:
    free = addresses - {item.address for item in known if item not in gone}
    records_gone = {item.line for item in gone}
    return [line for line in listing if line in records_gone or address_of(line) in free or interface_of(line) in dead]


def _jumps(spec: FirewallSpec, listing: Sequence[str]) -> list[str]:
    """Returns what puts both jumps into FORWARD once, the policies' before what lets packets pass.

    One that is there keeps its place, as others' rules may be meant to be before or behind it. Where two first pods
    made one at the same time, both are deleted and one is made: of two ADDs that do so, one is refused and looks again.
    """
    found = [line for line in listing if normalize(line) in (FORWARD_JUMP, ISOLATION_JUMP)]
    accepting = found.count(FORWARD_JUMP)
    isolating = [line for line in found if line != FORWARD_JUMP]
    misplaced = spec.accepts and accepting != 1
    made = [*deletion_lines([FORWARD_JUMP] * accepting), _first(FORWARD_JUMP)] if misplaced else []
    if not isolating and spec.policy == OPEN:
        return made
    if len(isolating) == 1 and not misplaced and found[0] == isolating[0]:
        return made
    return [*made, *deletion_lines(isolating), _first(ISOLATION_JUMP)]


def _addresses(spec: FirewallSpec, version: int, listing: Sequence[str], is_gone: IsGone) -> list[str]:
    """Returns what lets the addresses pass, and takes over those whose records are of somebody who is gone.

    So is who has the address of the same network: that gives each address to one at a time.
    """
    own = accepted_addresses(spec, version)
    rules = [rule for address in own for rule in address_rules(address)]
    kept = [record(spec, address) for address in own]
    others = [item for item in records(listing) if item.address in own and item.line not in kept]
    taken = [item.line for item in others if is_of_network(item, spec.network) or is_gone(item)]
    return [line for line in (*rules, *kept) if line not in listing] + deletion_lines(taken)


def _policy(spec: FirewallSpec, listing: Sequence[str]) -> list[str]:
    """Returns what puts a bridge's rules first in their chains, once, and takes away those of the other policy.

    Two first pods may have made them at the same time: see _jumps.
    """
    made = []
    own_rules = policy_rules(spec.policy, spec.bridge)
    for chain, end in ENDS.items():
        # What stands behind the end is not reached.
        found = [line for line in listing if line.startswith(f"-A {chain} ")]
        ends = [line for line in found if normalize(line) == end]
        listed = found[: found.index(ends[0])] if ends else found
        reached = [normalize(line) for line in listed]
        for rule in reversed([rule for rule in own_rules if rule.startswith(f"-A {chain} ")]):
            twice = deletion_lines([rule] * listed.count(rule)) if listed.count(rule) > 1 else []
            made += [*twice, _first(rule)] if twice or rule not in reached else []
        made += [] if len(ends) == 1 else [*deletion_lines(ends), end]
    other = other_policy_rules(spec.policy, spec.bridge)
    return made + deletion_lines(line for line in listing if line in other)


def _first(rule: str) -> str:
    return rule.replace("-A ", "-I ", 1)
