"""The grants file of a network: the blocks of this node, for plugins and for the next start of the agent.

ipam/host_local/grants.py describes the format, and parses the keys that plugins need. The agent adds these:

- of an address range: `block`, `epoch` and `generation` (a block with holes is several ranges); `key` of a sticky one;
- of the file: `node`, and what the agent knows of the store: `cluster`, `revision`, `epoch`, `listed`.

One rule: the file on the disk names every block that this node may own in the store. The agent writes a block into it
before the request that claims it, and removes it when the store has another owner. So a start needs no list of blocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from ipaddress import ip_network
from itertools import groupby
from typing import NamedTuple

from agent.pools.block_protocol import Token
from agent.pools.identity import write_durably
from agent.pools.store import StorePosition
from cni import gojson
from cni.address import Address, Network, format_ip
from cni.fields import Fields
from ipam.host_local import grants as plugin_format
from process import files

NO_TOKEN = Token("", 0)
_VERSION = 1
_MAX_BYTES = 1 << 20


class BlockState(Enum):
    """The state of a block in the file; plugins allocate from GRANTED only.

    CLAIMING: to be claimed, or claimed and not granted yet. GRANTED and DRAINING: a grant of the protocol, but plugins
    no longer allocate from a draining block. REVOKED: to be given back. LOST: the store has another owner or token, and
    pods still have addresses of the block.
    """

    CLAIMING = "claiming"
    GRANTED = plugin_format.GRANTED
    DRAINING = "draining"
    REVOKED = "revoked"
    LOST = "lost"


GRANT_STATES = (BlockState.GRANTED, BlockState.DRAINING)


class FileEntry(NamedTuple):
    """A block in the file: its token (NO_TOKEN unless granted), and the subnet, ranges and gateway for plugins.

    A sticky address has the `key` to which it belongs, and the `pod` of this node that gets it ("team-a/db-0"), if any.
    """

    block: Network
    pool: str
    state: BlockState
    token: Token
    subnet: Network
    ranges: tuple[tuple[Address, Address], ...]
    gateway: Address
    key: str = ""
    pod: str = ""

    @property
    def grant(self) -> Token | None:
        """The token of a grant, None without one."""
        return self.token if self.state in GRANT_STATES else None

    @property
    def version(self) -> int:
        """The IP version."""
        return self.block.version

    @property
    def size(self) -> int:
        """The number of addresses that pods may get."""
        sizes = sum(int(last) - int(first) + 1 for first, last in self.ranges)
        return sizes - any(int(first) <= int(self.gateway) <= int(last) for first, last in self.ranges)


class PoolHead(NamedTuple):
    """A pool in the file, without its blocks."""

    name: str
    versions: tuple[int, ...]
    namespaces: tuple[str, ...] = ()
    is_sticky: bool = False


class Grants(NamedTuple):
    """The content of a grants file.

    `position` and `epoch` are those of the store when the file was written. `listed_epoch` is the last one in which the
    agent has listed all blocks that it owns. `waiting` are pods without their sticky address, each with the reason.
    """

    boot: str
    node: str
    pools: tuple[PoolHead, ...] = ()
    entries: tuple[FileEntry, ...] = ()
    contact: int = 0
    problem: str = ""
    position: StorePosition = StorePosition()
    epoch: str = ""
    listed_epoch: str = ""
    waiting: tuple[tuple[str, str], ...] = ()

    def entry(self, block: Network) -> FileEntry | None:
        """Returns the entry of a block."""
        return next((entry for entry in self.entries if entry.block == block), None)

    def with_entry(self, changed: FileEntry) -> Grants:
        """Returns grants in which `changed` replaces the entry of its block, or is added."""
        if self.entry(changed.block) is None:
            return self._replace(entries=(*self.entries, changed))
        return self._replace(entries=tuple(changed if e.block == changed.block else e for e in self.entries))

    def without(self, block: Network) -> Grants:
        """Returns grants without a block."""
        return self._replace(entries=tuple(entry for entry in self.entries if entry.block != block))


def read(path: str) -> Grants:
    """Returns the content of a file; raises OSError, ValueError and CniError for a damaged one."""
    return parse(files.read(path, _MAX_BYTES))


def write(path: str, grants: Grants) -> None:
    """Replaces the file; when this returns it is on the disk. After an OSError the content may be old or new."""
    write_durably(path, format_grants(grants))


def format_grants(grants: Grants) -> bytes:
    """Returns the content of a file."""
    document = {
        "version": _VERSION,
        "boot": grants.boot,
        "contact": grants.contact,
        "problem": grants.problem,
        "node": grants.node,
        "cluster": grants.position.cluster,
        "revision": grants.position.revision,
        "epoch": grants.epoch,
        "listed": grants.listed_epoch,
        "waiting": dict(grants.waiting),
        "pools": [_format_pool(head, grants) for head in _heads(grants)],
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def parse(text: bytes) -> Grants:
    """Returns the grants of a file's content; raises ValueError, CniError."""
    parsed = plugin_format.parse(text)  # raises for a file that plugins would refuse
    fields = Fields(_object(gojson.loads(text)), context="grants")
    pools = fields.objects("pools")
    entries = [entry for pool in pools for entry in _entries(pool)]
    _refuse_invalid(entries)
    position = StorePosition(fields.string("cluster"), fields.integer("revision", minimum=0) or 0)
    return Grants(
        boot=fields.string("boot"),
        node=fields.string("node"),
        pools=tuple(map(_head, pools)),
        entries=tuple(entries),
        contact=fields.integer("contact", minimum=0) or 0,
        problem=fields.string("problem"),
        position=position,
        epoch=fields.string("epoch"),
        listed_epoch=fields.string("listed"),
        waiting=tuple(sorted(parsed.waiting.items())),
    )


def _head(pool: Fields) -> PoolHead:
    is_sticky = pool.boolean("sticky")
    return PoolHead(pool.string("name"), _versions(pool), pool.strings("namespaces"), is_sticky)


def _heads(grants: Grants) -> Iterator[PoolHead]:
    """Yields the pools of the file, and those that no longer exist but have blocks in it."""
    yield from grants.pools
    known = {head.name for head in grants.pools}
    for name in dict.fromkeys(entry.pool for entry in grants.entries if entry.pool not in known):
        versions = {entry.version for entry in grants.entries if entry.pool == name}
        yield PoolHead(name, tuple(sorted(versions)))


def _format_pool(head: PoolHead, grants: Grants) -> Mapping[str, object]:
    return {
        "name": head.name,
        "versions": list(head.versions),
        "namespaces": list(head.namespaces),
        **({"sticky": True} if head.is_sticky else {}),
        "blocks": [
            {
                "subnet": str(entry.subnet),
                "first": format_ip(first),
                "last": format_ip(last),
                "gateway": format_ip(entry.gateway),
                "state": entry.state.value,
                "block": str(entry.block),
                "epoch": entry.token.epoch,
                "generation": entry.token.generation,
                **({"key": entry.key, "for": entry.pod} if entry.key else {}),
            }
            for entry in grants.entries
            if entry.pool == head.name
            for first, last in entry.ranges
        ],
    }


def _entries(pool: Fields) -> Iterator[FileEntry]:
    for _, group in groupby(pool.objects("blocks"), key=lambda item: item.string("block")):
        items = list(group)
        first = items[0]
        token = Token(first.string("epoch"), first.integer("generation", minimum=0) or 0)
        yield FileEntry(
            block=ip_network(first.string("block")),
            pool=pool.string("name"),
            state=BlockState(first.string("state")),
            token=token,
            subnet=ip_network(first.string("subnet")),
            ranges=tuple((_ip(item, "first"), _ip(item, "last")) for item in items),
            gateway=_ip(first, "gateway"),
            key=first.string("key"),
            pod=first.string("for"),
        )


def _refuse_invalid(entries: list[FileEntry]) -> None:
    known: list[Network] = []
    for entry in entries:
        if any(entry.block.overlaps(other) for other in known):
            raise ValueError(f"block {entry.block} overlaps another one")
        if entry.grant and not entry.token.generation:
            raise ValueError(f"block {entry.block} is granted without a token")
        known.append(entry.block)


def _versions(pool: Fields) -> tuple[int, ...]:
    versions = pool.raw("versions")
    return tuple(versions) if isinstance(versions, list) else ()


def _ip(fields: Fields, key: str) -> Address:
    address = fields.ip(key)
    if address is None:
        raise ValueError(f"{key} is missing")
    return address


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    return value
