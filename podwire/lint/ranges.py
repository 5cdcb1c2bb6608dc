"""The addresses that networks give: what is odd about a range, and which two networks give the same.

One rule: a range is what host-local makes of it; what host-local refuses is not judged here again.
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

_MOST = 10  # networks that one is told to overlap with
_FEW = 4  # addresses that are hardly meant to be all


@dataclass(frozen=True)
class Pool:
    """A range of a network, and the key of its subnet."""

    item: PluginEntry
    path: str
    range: Range

    @property
    def where(self) -> str:
        """Where it stands, for another file's reader."""
        return f'network "{self.item.network}" in {self.item.json_object.page.path}'


def check(item: PluginEntry) -> tuple[Pool, ...]:
    """Checks the ranges of one plugin's IPAM, and returns them; those that a runtime gives are not known."""
    if not item.ipam or item.ipam.name != "host-local":
        return ()
    try:
        sets = host_local.range_sets(settings.request(item))
    except CniError:
        return ()
    pools = []
    for paths, found in zip(_paths(item), sets, strict=False):
        if found.size <= _FEW:
            number = "no address" if not found.size else f"{found.size} address{'' if found.size == 1 else 'es'}"
            hint = "each pod takes one; a plain /24 has 253"
            (item.note if found.size else item.error)(paths[0], f"{number} to give in {found}", hint)
        pools += [Pool(item, path, one) for path, one in zip(paths, found.ranges, strict=False)]
    for pool in pools:
        _check_one(pool)
    return tuple(pools)


def check_all(pools: Sequence[Pool]) -> None:
    """Finds two networks that give the same addresses; within one host-local refuses it itself."""
    for one, two in _meeting(pools):
        if overlap(one.range, two.range):
            text = f"{two.range} overlaps {one.range} of {one.where}"
            hint = "both may give the same address to two pods: give each network a subnet of its own"
            two.item.warn(two.path, text, hint)
        elif one.range.subnet.overlaps(two.range.subnet) and _link(one.item) != _link(two.item):
            text = f"{two.range.subnet} is on {_link(two.item)}, and on {_link(one.item)} for {one.where}"
            two.item.warn(two.path, text, "the node has one route to a subnet: give each bridge its own")


def _meeting(pools: Sequence[Pool]) -> Iterator[tuple[Pool, Pool]]:
    """Yields the ranges by two whose subnets have addresses in common, each with the first ones before it.

    Not those of one network: they share a store, or one is hidden by the other. Sorted by where they begin, a subnet
    has to be compared only with those that have not ended there.
    """
    subnets = [pool.range.subnet for pool in pools]
    before: list[list[int]] = [[] for _ in pools]
    open_: list[int] = []
    for own in sorted(range(len(pools)), key=lambda n: (subnets[n].version, int(subnets[n].network_address))):
        start = subnets[own].version, int(subnets[own].network_address)
        open_ = [n for n in open_ if (subnets[n].version, int(subnets[n].broadcast_address)) >= start]
        for other in (n for n in open_ if pools[n].item.network != pools[own].item.network):
            before[max(own, other)].append(min(own, other))
        open_.append(own)
    for two, found in enumerate(before):
        for one in sorted(found)[:_MOST]:
            yield pools[one], pools[two]


def _check_one(pool: Pool) -> None:
    item, subnet, gateway = pool.item, pool.range.subnet, pool.range.gateway
    key = pool.path.rpartition(".")[0] + ".gateway"
    if gateway.version != subnet.version or gateway not in subnet:
        item.warn(key, f"the gateway {gateway} is not in the subnet {subnet}", "pods cannot reach it")
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
    """Returns what the node reaches the pods of a network by."""
    return f'bridge "{item.get("bridge") or "cni0"}"' if item.type == "bridge" else item.type


def _paths(item: PluginEntry) -> Iterator[list[str]]:
    """Yields the keys of the subnets of each set, in host-local's order."""
    if item.get("ipam.subnet") is not None:
        yield ["ipam.subnet"]
    ranges = item.get("ipam.ranges")
    for number, inner in enumerate(ranges if isinstance(ranges, list) else []):
        length = len(inner) if isinstance(inner, list) else 0
        yield [f"ipam.ranges[{number}][{index}].subnet" for index in range(length)]
