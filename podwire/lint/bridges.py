"""Checks networks that share a bridge, or the host's ports.

A conflict between two networks is reported at the later one, and names the earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from cni.address import with_prefix
from plugins.bridge.addresses import is_conflict
from podwire.lint.entry import PluginEntry
from podwire.lint.ranges import NetworkRange

_MAX_COMPARED = 10  # earlier networks: more conflicts would only repeat the same finding


def check(items: Sequence[PluginEntry], pools: Sequence[NetworkRange]) -> None:
    """Adds findings about contradictory settings of two networks; each network is compared with the first ten."""
    ranges: dict[PluginEntry, list[NetworkRange]] = {}
    for pool in pools:
        ranges.setdefault(pool.item, []).append(pool)
    sharing: dict[str, list[PluginEntry]] = {}
    for item in items:
        if item.type == "bridge":
            sharing.setdefault(repr(_bridge(item)), []).append(item)
    for sharers in sharing.values():
        for one, two in pairs(sharers):
            _check_shared(one, two, ranges)
    for one, two in pairs([item for item in items if item.type == "portmap" and item.get("backend")]):
        _check_backends(one, two)


def pairs(items: Sequence[PluginEntry]) -> Iterator[tuple[PluginEntry, PluginEntry]]:
    """Yields each entry with the first ten before it that are of different networks."""
    for number, two in enumerate(items):
        for one in items[: min(number, _MAX_COMPARED)]:
            if one.network != two.network:
                yield one, two


def _check_shared(one: PluginEntry, two: PluginEntry, ranges: Mapping[PluginEntry, Sequence[NetworkRange]]) -> None:
    where = f'network "{one.network}" in {one.json_object.source.path}'
    mtus = one.get("mtu") or 0, two.get("mtu") or 0
    if mtus[0] != mtus[1]:
        text = f'bridge "{_bridge(two)}" has mtu {mtus[1]} here, but {mtus[0]} in {where}'
        two.warn("mtu" if mtus[1] else "bridge", text, "set the same mtu in both, or use two bridges")
    tagged = [any(item.get(key) for key in ("vlan", "vlanTrunk")) for item in (one, two)]
    if tagged[0] != tagged[1]:
        here, there = ("VLANs", "none") if tagged[1] else ("no VLAN", "some")
        text = f'bridge "{_bridge(two)}" has {here} here, but {there} in {where}'
        two.note("bridge", text, "pods without a VLAN cannot reach those with one")
    for first, second in product(ranges.get(one, ()), ranges.get(two, ())):
        gateways = [with_prefix(pool.range.gateway, pool.range.subnet.prefixlen) for pool in (first, second)]
        is_used = _is_gateway(one) and _is_gateway(two) and not two.is_set("forceAddress")
        if is_used and gateways[0] != gateways[1] and is_conflict(*gateways):
            text = f'bridge "{_bridge(two)}" has the address {gateways[1]} here, but {gateways[0]} in {where}'
            two.warn(second.path, text, "use two bridges: ADD fails for pods of the second network")
            return


def _check_backends(one: PluginEntry, two: PluginEntry) -> None:
    if one.get("backend") != two.get("backend"):
        text = f'host ports use {two.get("backend")} here, but {one.get("backend")} in "{one.network}"'
        hint = "set the same backend in both: neither sees the other's rules, so two pods can claim the same host port"
        two.warn("backend", text, hint)


def _is_gateway(item: PluginEntry) -> bool:
    return item.is_set("isGateway") or item.is_set("isDefaultGateway")


def _bridge(item: PluginEntry) -> object:
    return item.get("bridge") or "cni0"
