"""All blocks and entries of a space, as a JSON document for operators.

One rule: it only reads, without a lock. It reads entries, blocks and space one after another, so the caller reads
again before it reports a fault.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from agent.pools.block_protocol import BlockRecord, NodeRecord
from agent.pools.documents import DAMAGED_RECORD
from agent.pools.space import Pool, Space, format_space
from agent.pools.store import NodeEntry, Store, Stored
from cni.address import Network, format_ip

REGISTERED, FENCED, OLD_EPOCH, DAMAGED = "registered", "fenced", "old epoch", "damaged"


class ClusterView(NamedTuple):
    """The content of a store. `space` is None without one, or if it is not valid; `problems` are those of objects.

    `claimed` are the blocks that have an owner, in the order of their addresses.
    """

    space: Space | None
    blocks: Mapping[Network, Stored[BlockRecord]]
    entries: Mapping[str, Stored[NodeEntry]]
    problems: tuple[str, ...]
    claimed: Mapping[Network, BlockRecord]

    @property
    def epoch(self) -> str:
        """The epoch."""
        return self.space.epoch if self.space else ""

    def name_of(self, node: str) -> str:
        """Returns the name of a node, its ID without one."""
        stored = self.entries.get(node)
        return (stored.value.name if stored else "") or node

    def pool_of(self, network: Network) -> Pool | None:
        """Returns the pool of a block."""
        return self.space.pool_of(network) if self.space else None


def read_cluster(store: Store) -> ClusterView:
    """Reads all objects of a space; raises ApiError."""
    entries = store.list_entries().by_node
    blocks = store.list_blocks()
    problems = tuple(store.list_problems())
    try:
        space = store.read_space().value
    except ValueError:  # one of the problems
        space = None
    ordered = sorted(blocks.items(), key=lambda item: (item[0].version, item[0]))
    claimed = {network: stored.value for network, stored in ordered if stored.value.owner}
    return ClusterView(space, blocks, entries, problems, claimed)


def record_state(record: NodeRecord, epoch: str) -> str:
    """Returns the state of a node's record."""
    if record == DAMAGED_RECORD:
        return DAMAGED
    if record.epoch != epoch:
        return OLD_EPOCH
    return FENCED if record.is_fenced else REGISTERED


def digest_of_record(record: NodeRecord | None, epoch: str) -> str:
    """Returns a digest of a record and the present epoch; it changes when one of them does."""
    return _digest([list(record) if record else None, epoch])


def digest_of_space(space: Space | None) -> str:
    """Returns a digest of a space."""
    return _digest(format_space(space) if space else None)


def format_cluster(cluster: ClusterView) -> dict[str, object]:
    """Returns the document of a cluster, without findings."""
    return {
        "space": format_space(cluster.space) if cluster.space else None,
        "pools": [_format_pool(pool, cluster) for pool in (cluster.space.pools if cluster.space else ())],
        "nodes": list(_format_nodes(cluster)),
        "blocks": [_format_block(network, cluster) for network in cluster.claimed],
    }


def _format_pool(pool: Pool, cluster: ClusterView) -> dict[str, object]:
    claimed = [network for network in cluster.claimed if pool.cidr_of(network) is not None]
    return {
        "name": pool.name,
        "mode": pool.mode,
        "cidrs": [str(cidr) for cidr in pool.cidrs],
        "namespaces": list(pool.namespaces),
        "versions": [_format_version(pool, version, claimed) for version in pool.versions],
    }


def _format_version(pool: Pool, version: int, claimed: list[Network]) -> dict[str, object]:
    blocks = [network for network in claimed if network.version == version]
    draining = [network for network in blocks if pool.is_draining(network)]
    return {
        "version": version,
        "blockPrefixLength": pool.prefix_lengths[version],
        "total": pool.count_blocks(version),
        "claimed": len(blocks) - len(draining),
        "draining": len(draining),
        "addresses": sum(map(pool.size_of, blocks)),
    }


def _format_nodes(cluster: ClusterView) -> Iterator[dict[str, object]]:
    owned = Counter(block.owner for block in cluster.claimed.values())
    for node, stored in sorted(cluster.entries.items(), key=lambda item: (item[1].value.name, item[0])):
        entry = stored.value
        yield {
            "id": node,
            "name": entry.name,
            "state": record_state(entry.record, cluster.epoch),
            "machine": entry.record.machine,
            "instance": entry.record.instance,
            "epoch": entry.record.epoch,
            "fenced": entry.record.is_fenced,
            "record": digest_of_record(entry.record, cluster.epoch),
            "addresses": [format_ip(address) for address in entry.addresses],
            "networks": [str(network) for network in entry.networks],
            "blocks": owned[node],
            "problem": stored.problem,
        }


def _format_block(network: Network, cluster: ClusterView) -> dict[str, object]:
    stored = cluster.blocks[network]
    entry = cluster.entries.get(stored.value.owner)
    pool = cluster.pool_of(network)
    return {
        "block": str(network),
        "pool": pool.name if pool else "",
        "owner": stored.value.owner,
        "ownerName": cluster.name_of(stored.value.owner),
        "ownerRecord": digest_of_record(entry.value.record if entry else None, cluster.epoch),
        "epoch": stored.value.token.epoch,
        "generation": stored.value.token.generation,
        "since": stored.note.claimed,
        "draining": bool(pool and pool.is_draining(network)),
        "problem": stored.problem,
    }


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
