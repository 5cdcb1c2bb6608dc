"""Networks that share something on the node: a bridge, or the host's ports.

One rule: two networks are told of at the later one, which names the earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from podwire.lint.item import Item
from podwire.lint.ranges import Pool


def check(items: Sequence[Item], pools: Sequence[Pool]) -> None:
    """Finds settings of two networks that cannot both hold."""
    for one, two in combinations(items, 2):
        if one.network == two.network:
            continue
        if one.type == two.type == "bridge" and _bridge(one) == _bridge(two):
            _check_shared(one, two, pools)
        if one.type == two.type == "portmap" and one.get("backend") and two.get("backend"):
            _check_backends(one, two)


def _check_shared(one: Item, two: Item, pools: Sequence[Pool]) -> None:
    where = f'network "{one.network}" in {one.spot.page.path}'
    mtus = one.get("mtu") or 0, two.get("mtu") or 0
    if mtus[0] != mtus[1]:
        text = f'bridge "{_bridge(two)}" is to have mtu {mtus[1]} here and {mtus[0]} for {where}'
        two.warn("mtu" if mtus[1] else "bridge", text, "write the same in both, or use two bridges")
    tagged = [any(item.get(key) for key in ("vlan", "vlanTrunk")) for item in (one, two)]
    if tagged[0] != tagged[1]:
        here, there = ("VLANs", "none") if tagged[1] else ("no VLAN", "some")
        text = f'bridge "{_bridge(two)}" has {here} here, and {there} for {where}'
        two.note("bridge", text, "pods without a VLAN do not reach those with one")
    for first, second in ((a, b) for a in pools for b in pools if a.item is one and b.item is two):
        if first.range.subnet.version != second.range.subnet.version:
            continue
        gateways = first.range.gateway, second.range.gateway
        if gateways[0] != gateways[1] and _is_gateway(one) and _is_gateway(two) and not two.on("forceAddress"):
            text = f'bridge "{_bridge(two)}" is to be {gateways[1]} here and {gateways[0]} for {where}'
            two.warn(second.path, text, "pods of the second network are refused: use two bridges")
            return


def _check_backends(one: Item, two: Item) -> None:
    if one.get("backend") != two.get("backend"):
        text = f'host ports are made with {two.get("backend")} here and with {one.get("backend")} by "{one.network}"'
        hint = "neither sees the other's: of two pods with one port, the one whose rule stands first gets it"
        two.warn("backend", text, hint)


def _is_gateway(item: Item) -> bool:
    return item.on("isGateway") or item.on("isDefaultGateway")


def _bridge(item: Item) -> object:
    return item.get("bridge") or "cni0"
