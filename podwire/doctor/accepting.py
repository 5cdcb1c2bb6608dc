"""Builds the commands that accept pods' packets of a kind that a policy or a rule drops completely.

They accept only that kind, and bypass no restriction: they append to a chain whose policy drops, or insert before the
rule if no later rule restricts such packets. In INPUT they accept only answers and neighbour discovery. If there is no
such place, there is no command.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import NamedTuple

from cni.address import Network
from kernel.netfilter import nft
from kernel.netfilter.ruleset import ARP, FAMILY_NAMES, NETDEV
from podwire.doctor import probes
from podwire.doctor.culprits import Culprit, is_iptables, tool_of
from podwire.doctor.probes import Happening
from podwire.predictions.conditions import is_followed_by_restriction, position_of
from podwire.predictions.evaluation import FORWARD, INPUT, OUTPUT

# What is accepted of the packets between two interfaces, as matches of iptables and of nftables.
_ALL = (("", ""),)
_ANSWERS = (("-m conntrack --ctstate RELATED,ESTABLISHED", "ct state related,established"),)
_PUBLISHED = (("-m conntrack --ctstate DNAT", "ct status dnat"),)
_DISCOVERY = tuple(
    (f"-p ipv6-icmp -m icmp6 --icmpv6-type {number}", f"icmpv6 type {name}")
    for number, name in ((135, "nd-neighbor-solicit"), (136, "nd-neighbor-advert"))
)
_Which = tuple[tuple[str, str], ...]


class _Side(NamedTuple):
    """An interface ("" for any), or the pods' subnet where they have no common interface."""

    interface: str = ""
    subnet: Network | None = None

    def as_iptables(self, *, is_from: bool) -> str:
        if self.subnet:
            return f"-{'s' if is_from else 'd'} {self.subnet}"
        return f"-{'i' if is_from else 'o'} {quote(self.interface)}" if self.interface else ""

    def as_nft(self, *, is_from: bool) -> str:
        if self.subnet:
            return f"{'ip' if self.subnet.version == 4 else 'ip6'} {'s' if is_from else 'd'}addr {self.subnet}"
        return f"{'i' if is_from else 'o'}ifname {quote(self.interface)}" if self.interface else ""


class _Opening(NamedTuple):
    """Packets to accept: from one side to another, those that `which` matches."""

    source: _Side
    target: _Side
    which: _Which = _ALL


def accept_commands(culprit: Culprit, uplinks: list[str]) -> list[str]:
    """Returns the commands that accept what is lost; none if a part of it has no safe place."""
    chain, event = culprit.chain, culprit.event
    is_filter = event.base.kind == "filter" and event.base.hook in (FORWARD, INPUT, OUTPUT)
    shared = is_iptables(chain, culprit.neighbours)
    if (
        not is_filter
        or chain.family in (nft.BRIDGE, NETDEV, ARP)
        or culprit.conditions.has_others
        or (shared and chain.table != "filter")
    ):
        return []
    openings = list(dict.fromkeys(one for happening in culprit.lost for one in _openings(culprit, happening, uplinks)))
    if event.rule and any(
        is_followed_by_restriction(culprit.ruleset, event.rules, iif=one.source.interface, oif=one.target.interface)
        for one in openings
    ):
        return []
    place = _iptables_place(culprit) if shared else _nft_place(culprit)
    return [f"{place} {match}" for one in openings for match in _matches(one, shared=shared)]


def _openings(culprit: Culprit, one: Happening, uplinks: list[str]) -> Iterator[_Opening]:
    hook, anything = culprit.event.base.hook, _Side()
    for pods in _pod_sides(one):
        if hook == FORWARD:
            for uplink in map(_Side, uplinks):
                if one.label == probes.TO_OTHERS:
                    yield _Opening(pods, uplink)
                elif one.label == probes.REPLIES:
                    yield _Opening(uplink, pods, _ANSWERS)
                elif one.label == probes.PUBLISHED:
                    yield _Opening(uplink, pods, _PUBLISHED)
            if one.label == probes.BETWEEN:
                yield _Opening(pods, pods)
        elif one.label == probes.RESOLVING:
            yield _Opening(pods, anything, _DISCOVERY) if hook == INPUT else _Opening(anything, pods, _DISCOVERY)
        elif one.label == probes.FROM_NODE:
            yield _Opening(pods, anything, _ANSWERS) if hook == INPUT else _Opening(anything, pods)


def _pod_sides(one: Happening) -> list[_Side]:
    if one.pod.item.bridge and one.pod.gate:
        return [_Side(one.pod.gate.name)]
    version = one.event.packet.version
    return [_Side(subnet=subnet) for subnet in one.pod.item.subnets if subnet.version == version]


def _matches(opening: _Opening, *, shared: bool) -> Iterator[str]:
    for as_iptables, as_nft in opening.which:
        if shared:
            sides = opening.source.as_iptables(is_from=True), opening.target.as_iptables(is_from=False)
            yield " ".join(part for part in (*sides, as_iptables, "-j ACCEPT") if part)
        else:
            sides = opening.source.as_nft(is_from=True), opening.target.as_nft(is_from=False)
            yield " ".join(part for part in (*sides, as_nft, "accept") if part)


def _iptables_place(culprit: Culprit) -> str:
    chain, rule = culprit.chain, culprit.event.rule
    place = f"-I {quote(chain.name)} {position_of(culprit.ruleset, rule)}" if rule else f"-A {quote(chain.name)}"
    return f"{tool_of(chain)} {place}"


def _nft_place(culprit: Culprit) -> str:
    chain, rule = culprit.chain, culprit.event.rule
    place = f"{FAMILY_NAMES[chain.family]} {quote(chain.table)} {quote(chain.name)}"
    return f"nft insert rule {place} handle {rule.handle}" if rule else f"nft add rule {place}"
