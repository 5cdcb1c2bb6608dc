"""A space: the pools of a cluster, their blocks by number, and the epoch. The administrator writes it.

One rule: a space that could give one address to two pods is refused. All pools are in this one object, so each change
is checked for overlaps. This module is pure.

    {"epoch": "k3v9...", "pools": [{
        "name": "default", "mode": "routed", "cidrs": ["10.22.0.0/16", "fd00:22::/112"],
        "blockPrefixLengths": {"ipv4": 26, "ipv6": 122}, "excluded": ["10.22.0.0/28"], "draining": [],
        "namespaces": [], "gateways": []}]}

A pool in the mode "routed" is for bridge and ptp: each block is a subnet, and the agents create routes to it.
In the mode "segment" (macvlan, ipvlan, a bridge on an uplink) all nodes are on one link: addresses have the prefix
length of their CIDR, and a gateway of the pool.

A pool with `"sticky": true` has blocks of one address: each pod of its `namespaces` keeps its own, on whatever node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_network
from typing import NamedTuple

from cni.address import Address, Network, as_network, format_ip, parse_ip

ROUTED, SEGMENT = MODES = ("routed", "segment")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # a DNS label, as Kubernetes' names
_EPOCH = re.compile(r"[-0-9A-Za-z]{0,64}")  # blocks and entries contain it, see _TEXT in documents.py
_FAMILIES = (("ipv4", 4), ("ipv6", 6))
_DEFAULT_PREFIX_LENGTHS = {4: 26, 6: 122}
_STICKY_PREFIX_LENGTHS = {4: 32, 6: 128}
_MAX_BITS = 24  # of the number of a block in its CIDR: 16 million blocks
_MIN_HOST_BITS, _MAX_HOST_BITS = 2, 16  # a block has 4 to 65,536 addresses


class Pool(NamedTuple):
    """A pool: its CIDRs, divided into blocks of one prefix length for each IP version.

    No address of `excluded` is allocated. No block of `draining` is claimed any more. Pods of the Kubernetes namespaces
    `namespaces` get addresses of this pool, whatever pool their network names.
    """

    name: str
    mode: str
    cidrs: tuple[Network, ...]
    prefix_lengths: Mapping[int, int]
    excluded: tuple[Network, ...] = ()
    draining: tuple[Network, ...] = ()
    namespaces: tuple[str, ...] = ()
    gateways: tuple[Address, ...] = ()
    is_sticky: bool = False

    @property
    def versions(self) -> tuple[int, ...]:
        """The IP versions of which a pod gets an address, in the order of the CIDRs."""
        return tuple(dict.fromkeys(cidr.version for cidr in self.cidrs))

    def count_blocks(self, version: int) -> int:
        """Returns the number of blocks that may be claimed."""
        return sum(self.block_counts(version))

    def block_counts(self, version: int) -> list[int]:
        """Returns the number of blocks that may be claimed, of each CIDR."""
        return [1 << self._bits(cidr) for cidr in self._claimable(version)]

    def block(self, version: int, number: int) -> Network:
        """Returns a block by its number, from 0 to `count_blocks` - 1; raises IndexError for another number."""
        for cidr in self._claimable(version):
            count = 1 << self._bits(cidr)
            if 0 <= number < count:
                prefix = self.prefix_lengths[version]
                first = int(cidr.network_address) + (number << (cidr.max_prefixlen - prefix))
                return ip_network((first, prefix))
            number -= count
        raise IndexError(f"pool {self.name} has no such block")

    def cidr_of(self, block: Network) -> Network | None:
        """Returns the CIDR that contains a block; None if it is not a block of this pool."""
        if block.prefixlen != self.prefix_lengths.get(block.version):
            return None
        return next((cidr for cidr in self.cidrs if contains(cidr, block)), None)

    def is_draining(self, block: Network) -> bool:
        """Returns whether a block must not be claimed again."""
        return any(contains(cidr, block) for cidr in self.draining)

    def gateway_of(self, cidr: Network) -> Address:
        """Returns the gateway of a CIDR in the mode "segment": the one in `gateways`, else the first address."""
        return next((gateway for gateway in self.gateways if gateway in cidr), cidr[1])

    def subnet_of(self, block: Network) -> Network:
        """Returns the subnet that the addresses of a block have on their interfaces."""
        cidr = self.cidr_of(block)
        return cidr if self.mode == SEGMENT and cidr is not None else block

    def ranges(self, block: Network) -> Iterator[tuple[Address, Address]]:
        """Yields the first and the last address of each range of a block that pods may get.

        Leaves out what is excluded, and the first and the last address of the subnet: of IPv4 they are the network's
        and the broadcast address; of IPv6 the first is the routers' anycast address (RFC 4291), the last as in IPv4.
        A routed block of one address is no subnet.
        """
        subnet = self.subnet_of(block)
        holes = list(self.excluded)
        if subnet.num_addresses > 1:
            holes += [as_network(subnet.network_address), as_network(subnet.broadcast_address)]
        if self.mode == SEGMENT:
            holes.append(as_network(self.gateway_of(subnet)))
        address = IPv4Address if block.version == 4 else IPv6Address
        begin, end = int(block.network_address), int(block.broadcast_address)
        for first, last in sorted(_edges(hole) for hole in holes if hole.overlaps(block)):
            if begin < first:
                yield address(begin), address(first - 1)
            begin = max(begin, last + 1)
        if begin <= end:
            yield address(begin), address(end)

    def size_of(self, block: Network) -> int:
        """Returns the number of addresses of a block that pods may get."""
        return sum(int(last) - int(first) + 1 for first, last in self.ranges(block))

    def _claimable(self, version: int) -> Iterator[Network]:
        """Yields the CIDRs of an IP version from which blocks are claimed: those that do not drain completely."""
        for cidr in self.cidrs:
            if cidr.version == version and not any(contains(draining, cidr) for draining in self.draining):
                yield cidr

    def _bits(self, cidr: Network) -> int:
        return self.prefix_lengths[cidr.version] - cidr.prefixlen


class Space(NamedTuple):
    """A space: its pools and the epoch; see block_protocol."""

    epoch: str
    pools: tuple[Pool, ...]

    def pool(self, name: str) -> Pool | None:
        """Returns a pool by its name."""
        return next((pool for pool in self.pools if pool.name == name), None)

    def pool_of(self, block: Network) -> Pool | None:
        """Returns the pool to which a block belongs."""
        return next((pool for pool in self.pools if pool.cidr_of(block) is not None), None)


def parse_space(document: Mapping[str, object]) -> Space:
    """Returns the space in a document; raises ValueError, whose text names the pool and the key."""
    epoch, pools = document.get("epoch", ""), document.get("pools", [])
    if not isinstance(epoch, str) or not _EPOCH.fullmatch(epoch):
        raise ValueError(f'"epoch" {epoch!r} is not a text of a-z, A-Z, 0-9 and -, at most 64')
    if not isinstance(pools, list) or not all(isinstance(pool, Mapping) for pool in pools):
        raise ValueError('"pools" is not a list of objects')
    space = Space(epoch, tuple(map(_parse_pool, pools)))
    _check_names(space)
    _check_overlaps(space)
    return space


def format_space(space: Space) -> dict[str, object]:
    """Returns the document of a space."""
    return {"epoch": space.epoch, "pools": [_format_pool(pool) for pool in space.pools]}


def _parse_pool(document: Mapping[str, object]) -> Pool:
    name = document.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid name of a pool: use at most 63 of a-z, 0-9 and -, such as default")
    unknown = set(document) - _KEYS
    if unknown:
        raise ValueError(f"pool {name}: unknown key {min(unknown)!r}")
    mode = document.get("mode", ROUTED)
    if mode not in MODES:
        raise ValueError(f'pool {name}: "mode" {mode!r} is neither "routed" nor "segment"')
    is_sticky = document.get("sticky", False)
    if not isinstance(is_sticky, bool):
        raise ValueError(f'pool {name}: "sticky" {is_sticky!r} is neither true nor false')
    pool = Pool(
        name=name,
        mode=str(mode),
        cidrs=tuple(_networks(name, document, "cidrs")),
        prefix_lengths=_prefix_lengths(name, document.get("blockPrefixLengths", {}), is_sticky=is_sticky),
        excluded=tuple(_networks(name, document, "excluded")),
        draining=tuple(_networks(name, document, "draining")),
        namespaces=tuple(_texts(name, document, "namespaces")),
        gateways=tuple(_addresses(name, document)),
        is_sticky=is_sticky,
    )
    _check_pool(pool)
    return pool


_KEYS = {"name", "mode", "cidrs", "blockPrefixLengths", "excluded", "draining", "namespaces", "gateways", "sticky"}


def _format_pool(pool: Pool) -> dict[str, object]:
    return {
        "name": pool.name,
        "mode": pool.mode,
        "cidrs": [str(cidr) for cidr in pool.cidrs],
        "blockPrefixLengths": {key: pool.prefix_lengths[version] for key, version in _FAMILIES},
        "excluded": [str(network) for network in pool.excluded],
        "draining": [str(network) for network in pool.draining],
        "namespaces": list(pool.namespaces),
        "gateways": [format_ip(address) for address in pool.gateways],
        **({"sticky": True} if pool.is_sticky else {}),
    }


def _check_pool(pool: Pool) -> None:
    if not pool.cidrs:
        raise ValueError(f'pool {pool.name} has no "cidrs"')
    for cidr in pool.cidrs:
        prefix = pool.prefix_lengths[cidr.version]
        host_bits = cidr.max_prefixlen - prefix
        if prefix < cidr.prefixlen:
            raise ValueError(f"pool {pool.name}: {cidr} is smaller than one block (/{prefix})")
        if prefix - cidr.prefixlen > _MAX_BITS:
            raise ValueError(f"pool {pool.name}: {cidr} has more than 2^{_MAX_BITS} blocks of /{prefix}")
        if pool.is_sticky and host_bits:
            raise ValueError(f"pool {pool.name}: a block of a sticky pool has one address, so it is no /{prefix}")
        if not pool.is_sticky and not _MIN_HOST_BITS <= host_bits <= _MAX_HOST_BITS:
            raise ValueError(f"pool {pool.name}: a block of /{prefix} has not 4 to 65,536 addresses")
    for namespace in pool.namespaces:
        if not _NAME.fullmatch(namespace):
            raise ValueError(f"pool {pool.name}: {namespace!r} is not a valid name of a namespace")
    if pool.is_sticky and not pool.namespaces:
        raise ValueError(f'pool {pool.name} is sticky, and has no "namespaces" whose pods get its addresses')
    for network in pool.draining:
        if not any(contains(network, cidr) for cidr in pool.cidrs):
            raise ValueError(f'pool {pool.name}: "draining" {network} contains none of the "cidrs"')
    for gateway in pool.gateways:
        if pool.mode != SEGMENT or not any(gateway in cidr for cidr in pool.cidrs):
            raise ValueError(f'pool {pool.name}: "gateways" {gateway} is in no CIDR of a pool of the mode "segment"')


def _check_names(space: Space) -> None:
    names: set[str] = set()
    namespaces: dict[str, str] = {}
    for pool in space.pools:
        if pool.name in names:
            raise ValueError(f"two pools have the name {pool.name}")
        names.add(pool.name)
        for namespace in pool.namespaces:
            other = namespaces.setdefault(namespace, pool.name)
            if other != pool.name:
                raise ValueError(f"pools {other} and {pool.name} both have the namespace {namespace}")


def _check_overlaps(space: Space) -> None:
    known: list[tuple[Network, str]] = []
    for pool in space.pools:
        for cidr in pool.cidrs:
            for other, name in known:
                if cidr.overlaps(other):
                    raise ValueError(f"{cidr} of pool {pool.name} overlaps {other} of pool {name}")
            known.append((cidr, pool.name))


def _prefix_lengths(name: str, value: object, *, is_sticky: bool) -> dict[int, int]:
    defaults = _STICKY_PREFIX_LENGTHS if is_sticky else _DEFAULT_PREFIX_LENGTHS
    keys = {key for key, _ in _FAMILIES}
    if not isinstance(value, Mapping) or not set(value) <= keys:
        raise ValueError(f'pool {name}: "blockPrefixLengths" is not an object with "ipv4" and "ipv6"')
    lengths = {}
    for key, version in _FAMILIES:
        length = value.get(key, defaults[version])
        if not isinstance(length, int) or isinstance(length, bool):
            raise ValueError(f'pool {name}: "blockPrefixLengths.{key}" {length!r} is not a number')
        lengths[version] = length
    return lengths


def _networks(name: str, document: Mapping[str, object], key: str) -> Iterator[Network]:
    for text in _texts(name, document, key):
        try:
            network = ip_network(text)
        except ValueError as error:
            raise ValueError(f'pool {name}: "{key}": {error}') from None
        if network.is_loopback or network.is_multicast or network.is_unspecified or network.is_link_local:
            raise ValueError(f'pool {name}: "{key}": {text} has special addresses, which no pod can have')
        yield network


def _addresses(name: str, document: Mapping[str, object]) -> Iterator[Address]:
    for text in _texts(name, document, "gateways"):
        try:
            yield parse_ip(text)
        except ValueError as error:
            raise ValueError(f'pool {name}: "gateways": {error}') from None


def _texts(name: str, document: Mapping[str, object], key: str) -> list[str]:
    value = document.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f'pool {name}: "{key}" is not a list of texts')
    return value


def _edges(network: Network) -> tuple[int, int]:
    return int(network.network_address), int(network.broadcast_address)


def contains(outer: Network, inner: Network) -> bool:
    """Returns whether all addresses of `inner` are in `outer`."""
    if isinstance(outer, IPv4Network):
        return isinstance(inner, IPv4Network) and inner.subnet_of(outer)
    return not isinstance(inner, IPv4Network) and inner.subnet_of(outer)
