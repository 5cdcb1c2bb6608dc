"""A rule or a policy that takes packets of the pods, and the commands that end that.

A rule that is only about the pods is deleted; for any other one, an accept rule for the pods' own bridge or subnets
comes before it. No command accepts packets of another interface.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_network
from shlex import quote

from cni.address import Address
from kernel.netfilter import iptables, nft
from kernel.netfilter.evaluation import FORWARD, Event
from kernel.netfilter.packet import ESTABLISHED
from kernel.netfilter.ruleset import FAMILY_NAMES, NETDEV, FilterChain, FilterRule
from podwire.doctor import probes
from podwire.doctor.node import Interface
from podwire.doctor.probes import Happening

_BUILT_IN = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")


@dataclass
class Culprit:
    """A rule, or a policy, with everything that it does to packets of the pods of one network."""

    event: Event
    neighbours: frozenset[str]  # the names of the chains in its table
    happenings: list[Happening] = field(default_factory=list)

    @property
    def chain(self) -> FilterChain:
        """The chain with the rule, or with the policy."""
        return self.event.chain

    @property
    def item(self) -> Interface:
        """The network."""
        return self.happenings[0].pod.item

    @property
    def labels(self) -> list[str]:
        """The kinds of packets."""
        return list(dict.fromkeys(one.label for one in self.happenings))

    @property
    def names_pods(self) -> bool:
        """Whether the rule is about the pods: it compares their bridge, an interface, an address or subnet."""
        rule = self.event.rule
        if rule is None:
            return False
        happening = self.happenings[0]
        names = probes.named_interfaces(self.item, happening.pod)
        addresses = [address for one in self.happenings for address in one.pod.addresses]
        if rule.words:
            return any(word in names or _holds(word, addresses) for word in rule.words)
        tokens = [name.encode() + b"\0" for name in names] + [address.packed for address in addresses]
        for subnet in self.item.subnets:
            tokens += [subnet.network_address.packed, subnet.network_address.packed[: subnet.prefixlen // 8]]
        mac = happening.pod.mac_bytes
        tokens += [mac] if mac else []
        return any(token and _nft_compares(rule, token) for token in tokens)


def may_delete(culprit: Culprit) -> bool:
    """Returns whether a hand-made rule is only about the pods, or stands where no accept rule could come before it."""
    return culprit.names_pods or culprit.chain.family == NETDEV or culprit.event.action.kind == "expire"


def lasting(item: Interface, owner: str) -> str:
    """Returns the advice that makes an accept rule permanent."""
    has_firewall = any(plugin["type"] == "firewall" for plugin in item.network.plugins)
    if has_firewall or not item.routed:
        return f"it has effect until {owner or 'the host'} loads its rules again"
    return f'to make it permanent, add {{"type": "firewall"}} to "plugins" in {item.network.path}'


def delete_command(culprit: Culprit) -> str:
    """Returns the command that deletes the rule."""
    chain, rule = culprit.chain, culprit.event.rule
    assert rule is not None
    if chain.tool:
        return f"{chain.tool} -t {chain.table} -D {quote(chain.name)} {shlex.join(rule.words)}"
    return f"nft delete rule {FAMILY_NAMES[chain.family]} {quote(chain.table)} {quote(chain.name)} handle {rule.handle}"


def accept_commands(culprit: Culprit) -> list[str]:
    """Returns the commands that accept the pods' packets before the rule, or at the start of a chain that drops."""
    chain, rule = culprit.chain, culprit.event.rule
    commands = []
    for as_iptables, as_nft in _matches(culprit):
        if chain.tool or (is_iptables(chain) and rule is None):
            tool = chain.tool or iptables.TOOLS[6 if chain.family == nft.IPV6 else 4]
            name = (
                "DOCKER-USER"
                if chain.name == "FORWARD" and not rule and "DOCKER-USER" in culprit.neighbours
                else chain.name
            )
            number = f" {rule.handle}" if rule else ""
            table = "" if chain.table == "filter" else f"-t {chain.table} "
            commands.append(f"{tool} {table}-I {quote(name)}{number} {as_iptables} -j ACCEPT")
        else:
            place = f"{FAMILY_NAMES[chain.family]} {quote(chain.table)} {quote(chain.name)}"
            before = f" handle {rule.handle}" if rule else ""
            commands.append(f"nft insert rule {place}{before} {as_nft} accept")
    return commands


def is_iptables(chain: FilterChain) -> bool:
    """Returns whether a chain is a built-in one of iptables-nft."""
    return chain.family in nft.NFPROTO.values() and chain.table == "filter" and chain.name in _BUILT_IN


def _matches(culprit: Culprit) -> Iterator[tuple[str, str]]:
    """Yields matches for the pods' packets, for each direction that is dropped, as of iptables and of nftables."""
    item, chain = culprit.item, culprit.chain
    directions: dict[bool, bool] = {}
    for one in culprit.happenings:
        packet = one.event.packet
        is_from = packet.source in one.pod.addresses
        is_answer = packet.state == ESTABLISHED and not is_from
        directions[is_from] = directions.get(is_from, True) and is_answer
    if chain.hook == FORWARD and culprit.event.rule is None:
        directions = {True: False, False: False}
    for is_from, only_answers in directions.items():
        states = " -m conntrack --ctstate RELATED,ESTABLISHED" if only_answers else ""
        nft_states = " ct state established,related" if only_answers else ""
        for as_iptables, as_nft in _sides(item, chain, is_from=is_from):
            yield f"{as_iptables}{states}", f"{as_nft}{nft_states}"


def _sides(item: Interface, chain: FilterChain, *, is_from: bool) -> Iterator[tuple[str, str]]:
    if item.bridge:
        name = quote(item.bridge)
        if chain.family == nft.BRIDGE:
            yield "", f"meta {'i' if is_from else 'o'}brname {name}"
        else:
            yield f"-{'i' if is_from else 'o'} {name}", f"{'i' if is_from else 'o'}ifname {name}"
        return
    versions = {nft.IPV4: (4,), nft.IPV6: (6,)}.get(chain.family, (4, 6))
    for subnet in item.subnets:
        if subnet.version in versions:
            family = "ip" if subnet.version == 4 else "ip6"
            yield f"-{'s' if is_from else 'd'} {subnet}", f"{family} {'s' if is_from else 'd'}addr {subnet}"


def _nft_compares(rule: FilterRule, value: bytes) -> bool:
    """Returns whether a rule of nftables compares something with a value."""
    return any(value in content for name, fields in rule.expressions if name == "cmp" for content in fields.values())


def _holds(word: str, addresses: list[Address]) -> bool:
    try:
        network = ip_network(word, strict=False)
    except ValueError:
        return False
    return network.prefixlen > 0 and any(address in network for address in addresses)
