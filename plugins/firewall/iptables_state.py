"""The existing rules of the firewall in iptables.

This module only reads. It runs no program if netlink can list all rules that matter in a form that is recognised for
certain. It does not decode rules that do not matter, since a host may have a thousand pods.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable

from cni.address import Address
from cni.conf import Attachment
from kernel.netfilter import iptables, iptables_listing, nft, nft_rule
from kernel.netfilter.iptables import NFPROTO
from kernel.netfilter.iptables_expressions import RuleMatcher
from kernel.netfilter.iptables_rule import ChainList, IptablesRule
from kernel.netfilter.nft import Chain, NftSocket, Table
from plugins.firewall.iptables_rules import (
    ENTRY,
    FORWARD,
    FORWARD_JUMP,
    OWNERS,
    STAGE_1,
    STAGE_2,
    TABLE,
    accepted_addresses,
    address_rules,
    admin_jump,
    owner_text,
    parse_records,
    record_rule,
    required_chains,
)
from plugins.firewall.spec import FirewallSpec
from process.values import dataclass

_RETURN = struct.pack(">i", -5)  # NFT_RETURN: a verdict's code in a rule's message
_CHAINS = (OWNERS, FORWARD, STAGE_1, STAGE_2)

MessageFilter = Callable[[bytes], object]  # returns whether a rule matters, from its netlink message


@dataclass(frozen=True)
class ExistingRule:
    """A rule of a chain; `rule` is None if its form is unknown."""

    chain: Chain
    handle: int
    rule: IptablesRule | None


def get_listings(spec: FirewallSpec) -> dict[int, ChainList]:
    """Returns for each IP version the chains and rules that matter to `spec`.

    Uses one netlink socket; runs a program for each version that netlink cannot list. Raises RefusedError for a chain
    that the program cannot list, UnusableError, CniError(11).
    """
    states = iptables.read_by_netlink(
        spec.versions,
        TABLE,
        lambda socket, versions: {version: _get_state(socket, spec, version) for version in versions},
    )
    listings = {}
    chains_for_program: dict[int, list[str]] = {}
    for version in spec.versions:
        chains, rules = states.get(version, ({}, []))
        if version in states and all(item.rule for item in rules):
            listings[version] = to_listing(chains, rules)
        else:  # without a state the whole table
            chains_for_program[version] = list(dict.fromkeys((*chains, *(item.chain.name for item in rules))))
    return listings | iptables.list_chains(chains_for_program, TABLE)


def to_listing(chains: Iterable[str], rules: Iterable[ExistingRule]) -> ChainList:
    """Returns chains and rules as a listing, without rules of unknown form."""
    return ChainList.of(chains, [item.rule for item in rules if item.rule])


def get_state_for_del(socket: NftSocket, spec: FirewallSpec, version: int) -> tuple[dict[str, int], list[ExistingRule]]:
    """Returns the existing chains, each with the number of its rules, and the rules that matter to DEL.

    These are the attachment's records, all rules and records of its addresses, and the policies of all bridges.
    """
    chains = _get_chain_uses(socket, version, _CHAINS)
    attachment = Attachment(spec.container_id, spec.ifname)
    text = owner_text(spec.network, attachment)
    addresses = {address for address in spec.addresses if address.version == version}
    table = Table(NFPROTO[version], TABLE)

    def list_records(parts: set[bytes]) -> list[ExistingRule]:
        return list_rules(socket, Chain(table, OWNERS), version, _contains_any(parts)) if OWNERS in chains else []

    rules = list_records(_compared_values(addresses) | {text.encode(errors="surrogateescape")})
    recorded = {item.address for item in parse_records(to_listing((), rules)) if item.comment == text}
    if further := recorded - addresses:
        addresses |= further
        rules += [rule for rule in list_records(_compared_values(further)) if rule not in rules]
    if FORWARD in chains and addresses:
        rules += list_rules(socket, Chain(table, FORWARD), version, _contains_any(_compared_values(addresses)))
    return chains, rules + _list_policy_rules(socket, chains, version)


def get_state_for_gc(socket: NftSocket, version: int) -> tuple[dict[str, int], list[ExistingRule]]:
    """Returns the same for GC: the rules and records of all addresses, and the policies of all bridges."""
    chains = _get_chain_uses(socket, version, _CHAINS)
    table = Table(NFPROTO[version], TABLE)
    names = [name for name in (OWNERS, FORWARD) if name in chains]
    rules = [rule for name in names for rule in list_rules(socket, Chain(table, name), version)]
    return chains, rules + _list_policy_rules(socket, chains, version)


def list_rules(
    socket: NftSocket,
    chain: Chain,
    version: int,
    filter_: MessageFilter | str = "",
    expected: Iterable[IptablesRule] = (),
) -> list[ExistingRule]:
    """Returns the rules of a chain that pass the filter, in order; recognising `expected` rules is faster."""
    matcher = RuleMatcher(version, expected)
    return [
        ExistingRule(chain, item.handle, matcher.match(item) or iptables_listing.parse_rule(chain.name, item, version))
        for item in nft.list_rules(socket, chain, filter_)
    ]


def _get_state(socket: NftSocket, spec: FirewallSpec, version: int) -> tuple[dict[str, int], list[ExistingRule]]:
    """Returns those of the required chains that exist, and the rules that matter to ADD and CHECK."""
    table = Table(NFPROTO[version], TABLE)
    chains = _get_chain_uses(socket, version, (*required_chains(spec), STAGE_1))
    values = _compared_values(accepted_addresses(spec, version))
    bridge = {spec.bridge.encode(errors="surrogateescape") + b"\0", _RETURN}
    filters: dict[str, MessageFilter] = {
        ENTRY: _contains_any({name.encode() + b"\0" for name in (FORWARD, STAGE_1)}),
        FORWARD: _contains_any(values | {spec.admin_chain.encode() + b"\0"}),
        OWNERS: _contains_any(values),
        STAGE_1: _contains_any(bridge),
        STAGE_2: _contains_any(bridge),
    }
    names = [name for name in filters if name in required_chains(spec) and name in chains]
    if FORWARD in chains or STAGE_1 in chains:
        names.insert(0, ENTRY)
    rules = []
    expected = _expected_rules(spec, version)
    for name in names:
        of_chain = [rule for rule in expected if rule.chain == name]
        rules += list_rules(socket, Chain(table, name), version, filters[name], of_chain)
    return chains, rules


def _expected_rules(spec: FirewallSpec, version: int) -> list[IptablesRule]:
    """Returns the rules that most likely exist, in the order of each chain."""
    addresses = accepted_addresses(spec, version)
    rules = [rule for address in addresses for rule in (*address_rules(address), record_rule(spec, address))]
    return [FORWARD_JUMP, admin_jump(spec.admin_chain), *rules]


def _get_chain_uses(socket: NftSocket, version: int, names: Iterable[str]) -> dict[str, int]:
    """Returns the existing chains, each with the number of its rules and of jumps to it."""
    chains = [Chain(Table(NFPROTO[version], TABLE), name) for name in dict.fromkeys(names)]
    return {chain.name: chain.uses for chain in nft.get_chains(socket, *chains) if chain}


def _list_policy_rules(socket: NftSocket, chains: Collection[str], version: int) -> list[ExistingRule]:
    names = [name for name in (STAGE_1, STAGE_2) if name in chains]
    table = Table(NFPROTO[version], TABLE)
    return [rule for name in names for rule in list_rules(socket, Chain(table, name), version)]


def _compared_values(addresses: Iterable[Address]) -> set[bytes]:
    """Returns the bytes that are in the message of a rule that matches one of the addresses."""
    return {nft_rule.compared_value(address.packed) for address in addresses}


def _contains_any(parts: Collection[bytes]) -> MessageFilter:
    return lambda message: any(part in message for part in parts)
