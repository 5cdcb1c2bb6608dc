"""The grants of a network: the blocks of a cluster's pools from which this node may allocate addresses.

podwire-agent claims blocks in the cluster's store and writes them into one file, which verbs only read, so no pod waits
for a request to another machine. ADD reads the file while it holds the lock of the network's reservations. The agent
holds the same lock while it revokes a block, so no ADD reserves an address of that block.

    <dataDir>.podwire/<network>.grants    JSON, replaced by rename

    {"version": 1, "boot": "6f1d...", "contact": 1795000000, "problem": "connection refused", "pools": [{
        "name": "default", "versions": [4], "namespaces": [], "blocks": [{
            "subnet": "10.22.0.64/26", "first": "10.22.0.65", "last": "10.22.0.126", "gateway": "10.22.0.65",
            "state": "granted"}]}]}

A boot ends all grants: `boot` is the machine's boot ID when the file was written. A machine that was off may have been
declared dead, and its blocks then have other owners. After a boot nothing is allocated before the agent has reached the
store.

`contact` is when the store last answered the agent (seconds since 1970), `problem` why it does not answer now, "" if it
does. A pod gets an address of each of the `versions` (IP versions), only from blocks whose state is "granted".
A pool with `namespaces` is for the pods of these Kubernetes namespaces. The agent adds keys that only it reads.

A pool with `"sticky": true` gives each pod an address of its own: the block whose "for" is the pod's name, such as
"team-a/db-0". The file's `waiting` says why a pod has none: {"team-a/db-1": "its address ... is still at node ..."}.

    <dataDir>.podwire/<network>.demand-<pool>    a byte for each ADD that had no address; the agent deletes it

The agent polls the size of that file, so an ADD sends no request to it; a successful ADD does not touch the file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_network

from cni import gojson
from cni.address import Address, Network, parse_ip
from cni.errors import CniError, Code
from cni.fields import Fields
from ipam.host_local.ranges import Range, RangeSet, first_overlap
from kernel import boot
from process import files
from process.values import dataclass

GRANTED = "granted"
_VERSION = 1
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class GrantedPool:
    """The blocks of one pool on this node: the granted ones as RangeSets by IP version, and the number of others.

    `versions` are the IP versions of which a pod gets an address. Of a sticky pool `range_sets` is empty, and `by_pod`
    has the addresses of each pod.
    """

    name: str
    versions: tuple[int, ...]
    namespaces: tuple[str, ...]
    range_sets: tuple[RangeSet, ...]
    inactive: int
    is_sticky: bool
    by_pod: Mapping[str, tuple[RangeSet, ...]]


@dataclass(frozen=True)
class Grants:
    """The content of the file: boot ID, pools, the time of the agent's last contact with the store, and its problem.

    `waiting` has the reason for each pod that waits for its sticky address.
    """

    boot: str
    pools: tuple[GrantedPool, ...]
    contact: int
    problem: str
    waiting: Mapping[str, str]

    def pool_of(self, name: str, namespace: str) -> GrantedPool:
        """Returns the pool for the pods of a namespace: one that names it, otherwise the pool `name`.

        Raises CniError(11) without such a pool.
        """
        chosen = next((pool for pool in self.pools if namespace and namespace in pool.namespaces), None)
        chosen = chosen or next((pool for pool in self.pools if pool.name == name), None)
        if chosen is None:
            names = ", ".join(pool.name for pool in self.pools) or "no pool"
            raise CniError(Code.TRY_AGAIN_LATER, f"this node has no blocks of pool {name}", f"it has {names}; {self}")
        return chosen

    def __str__(self) -> str:
        age = max(0, int(time.time()) - self.contact)
        ago = f"{age // 60} min" if age >= 120 else f"{age} s"
        return f"podwire-agent reached the store {ago} ago{f': {self.problem}' if self.problem else ''}"


def path_of(data_dir: str, network: str) -> str:
    """Returns the path of a network's grants."""
    return f"{data_dir}.podwire/{network}.grants"


def demand_path_of(data_dir: str, network: str, pool: str) -> str:
    """Returns the path of the file that counts the ADDs without an address of a pool."""
    return f"{data_dir}.podwire/{network}.demand-{pool}"


def count_demand(data_dir: str, network: str, pool: str) -> None:
    """Counts an ADD without an address of a pool: adds one byte to the file. The caller holds the lock.

    A failure changes nothing: the agent also claims when few addresses are free, and the runtime tries ADD again.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(OSError):
        fd = os.open(demand_path_of(data_dir, network, pool), flags, 0o644)
        try:
            os.write(fd, b".")
        finally:
            os.close(fd)


def read(data_dir: str, network: str) -> Grants:
    """Reads the grants of a network; raises CniError(11) if this boot has none, CniError(5) for a damaged file."""
    path = path_of(data_dir, network)
    try:
        grants = parse(files.read(path, _MAX_BYTES))
    except FileNotFoundError as error:
        raise CniError(
            Code.TRY_AGAIN_LATER,
            f"network {network} has no addresses yet: no {path}",
            "podwire-agent writes it on each node: check its page /readyz",
        ) from error
    except (OSError, ValueError, CniError) as error:
        raise CniError(
            Code.IO_FAILURE, f"cannot use {path}: {error}", "podwire-agent writes it again when it starts"
        ) from error
    if not grants.boot or grants.boot != boot.get_boot_id():
        raise CniError(
            Code.TRY_AGAIN_LATER,
            f"network {network} has no addresses since the node's boot: {path} is of an earlier boot",
            f"podwire-agent writes it again when it reaches the store; {grants}",
        )
    return grants


def parse(text: bytes) -> Grants:
    """Returns the grants in a file's content; raises ValueError, CniError(7)."""
    value = gojson.loads(text)
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    fields = Fields(value, context="grants")
    if fields.integer("version") != _VERSION:
        raise ValueError(f"its version is not {_VERSION}")
    pools = tuple(map(_pool, fields.objects("pools")))
    return Grants(
        fields.string("boot"),
        pools,
        fields.integer("contact", minimum=0) or 0,
        fields.string("problem"),
        fields.string_map("waiting"),
    )


def _pool(fields: Fields) -> GrantedPool:
    blocks = [(block.string("state"), block.string("for"), _range(block)) for block in fields.objects("blocks")]
    if first_overlap([block_range for *_, block_range in blocks]) is not None:
        raise ValueError(f"blocks of pool {fields.string('name')} overlap")
    is_sticky = fields.boolean("sticky")
    granted = [block_range for state, _, block_range in blocks if state == GRANTED]
    by_pod: dict[str, list[Range]] = {}
    for state, pod, block_range in blocks if is_sticky else ():
        if state == GRANTED and pod:
            by_pod.setdefault(pod, []).append(block_range)
    versions = fields.raw("versions")
    if not isinstance(versions, list) or not versions or any(version not in (4, 6) for version in versions):
        raise ValueError(f"pool {fields.string('name')} has no versions: [4], [6] or [4, 6]")
    return GrantedPool(
        name=fields.string("name"),
        versions=tuple(versions),
        namespaces=fields.strings("namespaces"),
        range_sets=() if is_sticky else tuple(_sets(granted)),
        inactive=len(blocks) - len(granted),
        is_sticky=is_sticky,
        by_pod={pod: tuple(_sets(ranges)) for pod, ranges in by_pod.items()},
    )


def _sets(ranges: Iterable[Range]) -> Iterator[RangeSet]:
    by_version: dict[int, list[Range]] = {4: [], 6: []}
    for item in ranges:
        by_version[item.subnet.version].append(item)
    return (RangeSet(tuple(items)) for items in by_version.values() if items)


def _range(fields: Fields) -> Range:
    subnet: Network = ip_network(fields.string("subnet"))
    first, last, gateway = (_address(fields, key, subnet) for key in ("first", "last", "gateway"))
    if not (first in subnet and last in subnet and int(first) <= int(last)):
        raise ValueError(f"{first}-{last} is no range of {subnet}")
    return Range(subnet, int(first), int(last), gateway)


def _address(fields: Fields, key: str, subnet: Network) -> Address:
    address = parse_ip(fields.string(key))
    if address.version != subnet.version:
        raise ValueError(f"{key} {address} is of the other IP version than {subnet}")
    return address
