"""Checks the ranges of networks: suspicious ranges, and networks that allocate the same addresses.

The parser of host-local reads the ranges; errors that it reports are not checked here again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from cni.errors import CniError
from ipam.host_local import conf as host_local
from ipam.host_local.ranges import Range, overlap
from podwire.lint import settings
from podwire.lint.entry import PluginEntry
from podwire.output import plural

_MAX_COMPARED = 10  # overlapping networks that are reported for one network
_SMALL = 4  # a range with this many addresses or fewer is suspicious


@dataclass(frozen=True)
class NetworkRange:
    """A range of a network, and the key of its subnet."""

    item: PluginEntry
    path: str
    range: Range

    @property
    def where(self) -> str:
        """The network and its file, for a finding in another file."""
        return f'network "{self.item.network}" in {self.item.json_object.source.path}'


def check(item: PluginEntry) -> tuple[NetworkRange, ...]:
    """Checks and returns the ranges of one plugin's IPAM; those in the runtime's request are unknown."""
    if not item.ipam or item.ipam.name != "host-local":
        return ()
    try:
        sets = host_local.range_sets(settings.build_net_conf(item))
    except CniError:
        return ()
    pools = []
    for paths, range_set in zip(_paths(item), sets, strict=False):
        if range_set.size <= _SMALL:
            number = plural(range_set.size, "address") if range_set.size else "no address"
            hint = "each pod needs one; a /24 has 253"
            (item.note if range_set.size else item.error)(paths[0], f"{number} to allocate in {range_set}", hint)
        pools += [NetworkRange(item, path, one) for path, one in zip(paths, range_set.ranges, strict=False)]
    for pool in pools:
        _check_one(pool)
    return tuple(pools)


def check_all(pools: Sequence[NetworkRange]) -> None:
    """Adds findings about networks that allocate the same addresses; within one network host-local refuses that."""
    for one, two in _overlapping_pairs(pools):
        if overlap(one.range, two.range):
            text = f"{two.range} overlaps {one.range} of {one.where}"
            hint = "set a separate subnet for each network: two pods could get the same address"
            two.item.warn(two.path, text, hint)
        elif one.range.subnet.overlaps(two.range.subnet) and _link(one.item) != _link(two.item):
            text = f"{two.range.subnet} is on {_link(two.item)} here, but on {_link(one.item)} in {one.where}"
            two.item.warn(two.path, text, "set a separate subnet for each bridge: the node has one route to a subnet")


def _overlapping_pairs(pools: Sequence[NetworkRange]) -> Iterator[tuple[NetworkRange, NetworkRange]]:
    """Yields pairs of ranges of different networks whose subnets overlap; each with the first ten before it.

    The subnets are sorted by their first address, so that each is compared only with those that have not ended there.
    """
    subnets = [pool.range.subnet for pool in pools]
    before: list[list[int]] = [[] for _ in pools]
    candidates: list[int] = []
    for number in sorted(range(len(pools)), key=lambda n: (subnets[n].version, int(subnets[n].network_address))):
        start = subnets[number].version, int(subnets[number].network_address)
        candidates = [n for n in candidates if (subnets[n].version, int(subnets[n].broadcast_address)) >= start]
        for other in (n for n in candidates if pools[n].item.network != pools[number].item.network):
            before[max(number, other)].append(min(number, other))
        candidates.append(number)
    for two, earlier in enumerate(before):
        for one in sorted(earlier)[:_MAX_COMPARED]:
            yield pools[one], pools[two]


def _check_one(pool: NetworkRange) -> None:
    item, subnet, gateway = pool.item, pool.range.subnet, pool.range.gateway
    key = pool.path.rpartition(".")[0] + ".gateway"
    if gateway.version == subnet.version == 6 and gateway.is_link_local:
        pass  # fe80::1: each link has these addresses, whatever its subnets
    elif gateway.version != subnet.version or gateway not in subnet:
        item.warn(key, f"the gateway {gateway} is not in the subnet {subnet}", "set one that pods can reach")
    elif gateway == subnet.network_address:
        item.warn(key, f"the gateway {gateway} is the address of the subnet itself", "use the next one")
    elif isinstance(subnet, IPv4Network) and gateway == subnet.broadcast_address:
        item.warn(key, f"the gateway {gateway} is the broadcast address of {subnet}", "use another one")
    for what, is_so in (
        ("loopback", subnet.is_loopback),
        ("link-local", subnet.is_link_local),
        ("multicast", subnet.is_multicast),
    ):
        if is_so:
            item.warn(pool.path, f"{subnet} has {what} addresses, which are not routed", "use a private subnet")


def _link(item: PluginEntry) -> str:
    """Describes the interface through which the node, or its network, reaches the pods of a network."""
    if item.type == "ipvlan" and item.get("mode") in ("l3", "l3s"):
        return f"ipvlan in mode {item.get('mode')}"
    return f'bridge "{item.get("bridge") or "cni0"}"' if item.type == "bridge" else item.type


def _paths(item: PluginEntry) -> Iterator[list[str]]:
    """Yields the keys of the subnets of each set, in host-local's order."""
    if item.get("ipam.subnet") is not None:
        yield ["ipam.subnet"]
    ranges = item.get("ipam.ranges")
    for number, inner in enumerate(ranges if isinstance(ranges, list) else []):
        length = len(inner) if isinstance(inner, list) else 0
        yield [f"ipam.ranges[{number}][{index}].subnet" for index in range(length)]
