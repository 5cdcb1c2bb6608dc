"""Compares the blocks, the entries and the space of a store, and returns the faults as findings. Pure.

One rule: an operator can run a fix as it is printed. No command in it states that a machine is off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from agent.pools.block_protocol import MISSING, NodeRecord
from agent.pools.cluster_view import FENCED, OLD_EPOCH, ClusterView, record_state
from agent.pools.documents import DAMAGED_BLOCK
from cni.address import Network


class ClusterFinding(NamedTuple):
    """A fault: `kind` is for programs, `subject` the block or node, `text` and `fix` are for people."""

    kind: str
    subject: str
    text: str
    fix: str

    def to_json(self) -> dict[str, object]:
        """Returns this object's part of the JSON document."""
        return {"kind": self.kind, "object": self.subject, "what": self.text, "fix": self.fix}


def find_faults(cluster: ClusterView) -> list[ClusterFinding]:
    """Returns the faults of a cluster."""
    return [
        *_find_invalid_objects(cluster),
        *_find_overlaps(cluster),
        *_find_blocks_of_no_pool(cluster),
        *_find_unregistered_owners(cluster),
        *_find_foreign_networks(cluster),
        *_find_old_epochs(cluster),
        *_find_equal_names(cluster),
    ]


def plan_command(node: str) -> str:
    """Returns the command that prints which blocks of a node a reclaim would make free."""
    return f"podwire ipam reclaim --node {node}"


def fix_for(cluster: ClusterView, node: str) -> str:
    """Returns the fix for a node that may be off."""
    return (
        f"if {cluster.name_of(node)} runs, check podwire-agent there (/readyz, log); if it stays off: "
        f"{plan_command(node)}"
    )


def _find_invalid_objects(cluster: ClusterView) -> Iterator[ClusterFinding]:
    for problem in cluster.problems:
        text, separator, fix = problem.partition("; fix: ")
        yield ClusterFinding("invalid object", "", text, fix if separator else "correct the object")
    if cluster.space is None and not cluster.problems:
        yield ClusterFinding("no space", "", "the store has no pools", "podwire ipam pools --set FILE")


def _find_overlaps(cluster: ClusterView) -> Iterator[ClusterFinding]:
    """Yields each claimed block that overlaps an earlier one; they are in the order of their addresses."""
    widest: Network | None = None
    for network in cluster.claimed:
        if widest is not None and network.overlaps(widest):
            one, other = (cluster.name_of(cluster.claimed[item].owner) for item in (widest, network))
            yield ClusterFinding(
                "overlap",
                str(network),
                f"blocks {widest} of node {one} and {network} of node {other} overlap: two pods may have one address",
                f"drain node {other}: its agent gives the block back when no pod has an address of it",
            )
        else:
            widest = network


def _find_blocks_of_no_pool(cluster: ClusterView) -> Iterator[ClusterFinding]:
    if cluster.space is None:
        return
    for network, block in cluster.claimed.items():
        if cluster.space.pool_of(network) is None and block != DAMAGED_BLOCK:
            name = cluster.name_of(block.owner)
            yield ClusterFinding(
                "no pool",
                str(network),
                f"block {network} of node {name} belongs to no pool",
                f"the agent of {name} gives it back when no pod has an address of it; {fix_for(cluster, block.owner)}",
            )


def _find_unregistered_owners(cluster: ClusterView) -> Iterator[ClusterFinding]:
    owned: defaultdict[str, list[Network]] = defaultdict(list)
    for network, block in cluster.claimed.items():
        if block != DAMAGED_BLOCK:
            owned[block.owner].append(network)
    for owner, networks in owned.items():
        stored, blocks = cluster.entries.get(owner), _describe_blocks(networks)
        if stored is None:
            yield ClusterFinding(
                "no entry",
                owner,
                f"node {owner} has {blocks} and no entry in the store",
                f"its agent writes the entry again; if the machine stays off: {plan_command(owner)}",
            )
        elif record_state(stored.value.record, cluster.epoch) == FENCED:
            yield ClusterFinding(
                "fenced owner",
                owner,
                f"node {cluster.name_of(owner)} was declared dead and still owns {blocks}",
                plan_command(owner),
            )


def _find_foreign_networks(cluster: ClusterView) -> Iterator[ClusterFinding]:
    """Yields the blocks that a node's entry lists, but that it does not own: other nodes' routes follow the entries."""
    for node, stored in sorted(cluster.entries.items()):
        for network in stored.value.networks:
            block = cluster.claimed.get(network)
            if block is None or block.owner != node:
                if block == DAMAGED_BLOCK:
                    continue  # reported as such
                owner = f"node {cluster.name_of(block.owner)}" if block else "no node"
                yield ClusterFinding(
                    "foreign network",
                    str(network),
                    f"the entry of node {cluster.name_of(node)} lists block {network}, which {owner} owns",
                    f"restart podwire-agent on {cluster.name_of(node)}: it compares its blocks with the store, stops "
                    f"those that it has lost, and names their pods in its log; {fix_for(cluster, node)}",
                )


def _find_old_epochs(cluster: ClusterView) -> Iterator[ClusterFinding]:
    if cluster.space is None:
        return
    for node, stored in sorted(cluster.entries.items()):
        if record_state(stored.value.record, cluster.epoch) == OLD_EPOCH:
            yield ClusterFinding(
                "old epoch",
                node,
                f"{describe_old_epoch(cluster, node, stored.value.record)}: until then no node claims blocks",
                fix_for(cluster, node),
            )


def describe_old_epoch(cluster: ClusterView, node: str, record: NodeRecord) -> str:
    """Returns why all other nodes wait for a node."""
    if record == MISSING:
        return f"node {node}, which joined after the backup, has not registered in epoch {cluster.epoch}"
    return f"node {cluster.name_of(node)} is of epoch {record.epoch or '(none)'}, not {cluster.epoch}"


def _find_equal_names(cluster: ClusterView) -> Iterator[ClusterFinding]:
    nodes: defaultdict[str, list[str]] = defaultdict(list)
    for node, stored in sorted(cluster.entries.items()):
        if stored.value.name:
            nodes[stored.value.name].append(node)
    for name, same in nodes.items():
        active = [node for node in same if not cluster.entries[node].value.record.is_fenced]
        if len(active) > 1:
            commands = " or ".join(map(plan_command, active))
            yield ClusterFinding(
                "two entries",
                name,
                f"the nodes {' and '.join(active)} have the name {name}",
                "if two machines run under this name, change the name of one; otherwise the entry whose ID is not in "
                f"/var/lib/podwire/node-id on the node is of an earlier installation: {commands}",
            )


def _describe_blocks(networks: list[Network]) -> str:
    more = f" and {len(networks) - 1} more" if len(networks) > 1 else ""
    return f"block {networks[0]}{more}"
