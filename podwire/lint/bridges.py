"""Networks that share something on the node: a bridge, or the host's ports.

One rule: two networks are told of at the later one, which names the earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from podwire.lint.entry import PluginEntry
from podwire.lint.ranges import Pool

_MOST = 10  # more than ten networks on a bridge have the same to say again and again


def check(items: Sequence[PluginEntry], pools: Sequence[Pool]) -> None:
    """Finds settings of two networks that cannot both hold; of many, those that do not go with the first ones."""
    ranges: dict[PluginEntry, list[Pool]] = {}
    for pool in pools:
        ranges.setdefault(pool.item, []).append(pool)
    sharing: dict[str, list[PluginEntry]] = {}
    for item in items:
        if item.type == "bridge":
            sharing.setdefault(repr(_bridge(item)), []).append(item)
    for own in sharing.values():
        for one, two in _pairs(own):
            _check_shared(one, two, ranges)
    for one, two in _pairs([item for item in items if item.type == "portmap" and item.get("backend")]):
        _check_backends(one, two)


def _pairs(items: Sequence[PluginEntry]) -> Iterator[tuple[PluginEntry, PluginEntry]]:
    """Yields the items of different networks by two: each with the first ones before it."""
    for number, two in enumerate(items):
        for one in items[: min(number, _MOST)]:
            if one.network != two.network:
                yield one, two


def _check_shared(one: PluginEntry, two: PluginEntry, ranges: Mapping[PluginEntry, Sequence[Pool]]) -> None:
    where = f'network "{one.network}" in {one.json_object.page.path}'
    mtus = one.get("mtu") or 0, two.get("mtu") or 0
    if mtus[0] != mtus[1]:
        text = f'bridge "{_bridge(two)}" is to have mtu {mtus[1]} here and {mtus[0]} for {where}'
        two.warn("mtu" if mtus[1] else "bridge", text, "write the same in both, or use two bridges")
    tagged = [any(item.get(key) for key in ("vlan", "vlanTrunk")) for item in (one, two)]
    if tagged[0] != tagged[1]:
        here, there = ("VLANs", "none") if tagged[1] else ("no VLAN", "some")
        text = f'bridge "{_bridge(two)}" has {here} here, and {there} for {where}'
        two.note("bridge", text, "pods without a VLAN do not reach those with one")
    for first, second in product(ranges.get(one, ()), ranges.get(two, ())):
        if first.range.subnet.version != second.range.subnet.version:
            continue
        gateways = first.range.gateway, second.range.gateway
        if gateways[0] != gateways[1] and _is_gateway(one) and _is_gateway(two) and not two.is_set("forceAddress"):
            text = f'bridge "{_bridge(two)}" is to be {gateways[1]} here and {gateways[0]} for {where}'
            two.warn(second.path, text, "pods of the second network are refused: use two bridges")
            return


def _check_backends(one: PluginEntry, two: PluginEntry) -> None:
    if one.get("backend") != two.get("backend"):
        text = f'host ports are made with {two.get("backend")} here and with {one.get("backend")} by "{one.network}"'
        hint = "neither sees the other's: of two pods with one port, the one whose rule stands first gets it"
        two.warn("backend", text, hint)


def _is_gateway(item: PluginEntry) -> bool:
    return item.is_set("isGateway") or item.is_set("isDefaultGateway")


def _bridge(item: PluginEntry) -> object:
    return item.get("bridge") or "cni0"
