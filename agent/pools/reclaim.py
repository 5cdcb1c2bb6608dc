"""Frees the blocks of a node that is proved dead, and begins an epoch after a restore: for the agents and the tool.

One rule: block_protocol prescribes the order of reads. Before the evidence: the epoch, then the record. Before a block
becomes free: the block, then the record, then the epoch. All functions may be called again after any failure.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import NamedTuple

from agent.pools import block_protocol as protocol
from agent.pools.block_protocol import Evidence, NodeRecord, SwapOutcome
from agent.pools.space import Space
from agent.pools.store import BlockNote, NodeEntry, Store, Stored
from cni.address import Network

_ROUNDS = 5  # a round reads again after a missing answer, or after a change by another agent


class SuspectedNode(NamedTuple):
    """A node that may be dead: its entry and the epoch, read before the evidence."""

    node: str
    entry: Stored[NodeEntry | None]
    epoch: str

    @property
    def record(self) -> NodeRecord | None:
        """The record that the evidence is about."""
        return self.entry.value.record if self.entry.value else None


class Reclaimed(NamedTuple):
    """The blocks that became free, and why not all did; "" if all did."""

    blocks: tuple[Network, ...] = ()
    problem: str = ""


def read_suspect(store: Store, node: str) -> SuspectedNode:
    """Reads the epoch and the entry of a node; raises ApiError, ValueError without a valid space.

    The caller looks for the evidence after this, or shows the record to the person who states that the machine is off.
    """
    epoch = _read_epoch(store)
    return SuspectedNode(node, store.read_entry(node), epoch)


def reclaim(store: Store, suspect: SuspectedNode, evidence: Evidence, *, deleted_is_off: bool = False) -> Reclaimed:
    """Fences a node and frees its blocks; raises ApiError, ValueError.

    Without a proof, or if the machine has booted after `read_suspect`, it changes nothing.
    """
    node, record = suspect.node, suspect.record
    if record is None:
        return Reclaimed(problem=f"node {node} has no entry: it has never registered, or its entry was deleted")
    proof = protocol.prove(node, record, suspect.epoch, evidence, deleted_is_off=deleted_is_off)
    if proof is None:
        return Reclaimed(problem=f"node {node} is not reclaimed: that {evidence.value} is no proof that it is off")
    problem = ""
    for _ in range(_ROUNDS):
        stored = store.read_entry(node)
        existing = stored.value.record if stored.value else None
        if existing == record._replace(epoch=proof.epoch, is_fenced=True):
            return free_blocks(store, node)
        swap = protocol.fence(proof, existing)
        if swap is None or stored.value is None:
            return Reclaimed(problem=f"node {node} is not reclaimed: it has registered since, so it runs")
        problem = store.swap_entry(node, stored, stored.value._replace(record=swap.new, networks=())).problem
    return Reclaimed(problem=f"node {node} is not fenced: {problem}; try again")


def free_blocks(store: Store, node: str) -> Reclaimed:
    """Frees the blocks of a node that is fenced in this epoch; raises ApiError, ValueError."""
    freed: list[Network] = []
    problem = ""
    for _ in range(_ROUNDS):
        blocks = {block: stored for block, stored in store.list_blocks(node).items() if stored.value.owner == node}
        if not blocks:
            return Reclaimed(tuple(freed))
        entry = store.read_entry(node)
        record, epoch = entry.value.record if entry.value else None, _read_epoch(store)
        for block, stored in blocks.items():
            swap = protocol.reclaim(stored.value, record, epoch)
            if swap is None:
                return Reclaimed(
                    tuple(freed), f"node {node} is not fenced any more: it has booted, or an epoch has begun"
                )
            change = store.swap_block(block, stored, swap.new, BlockNote(key=stored.note.key))
            if protocol.succeeded(change.outcome):
                freed.append(block)
            problem = change.problem or problem
    return Reclaimed(tuple(freed), f"blocks of node {node} are not free yet: {problem}; try again")


def random_epoch() -> str:
    """Returns a random epoch, which no store has had."""
    return secrets.token_hex(8)


def recover(store: Store, joined: Collection[str], new_epoch: str = "") -> str:
    """Begins a new epoch after the store was restored, and returns it; raises ApiError, ValueError, RuntimeError.

    `joined` are the IDs of all nodes that may have registered after the backup. An ID too many is safe: if no node has
    it, all wait until it is declared dead. An ID too few is not noticed, and its blocks may be claimed by others.
    """
    records = {node: stored.value.record for node, stored in store.list_entries().by_node.items()}
    missing, epoch = protocol.recover(records, joined, new_epoch or random_epoch())
    for node, swap in missing.items():
        _create_entry(store, node, swap.new)
    for _ in range(_ROUNDS):
        stored = store.read_space()
        if stored.value is None:
            raise ValueError("the store has no space")
        if stored.value.epoch == epoch:
            return epoch
        change = store.swap_space(stored, Space(epoch, stored.value.pools))
    raise RuntimeError(f"the new epoch is not set: {change.problem}; run it again")


def _create_entry(store: Store, node: str, record: NodeRecord) -> None:
    """Creates an entry whose node all agents wait for; returns when there is one."""
    for _ in range(_ROUNDS):
        change = store.swap_entry(node, Stored(None), NodeEntry(record))
        if change.outcome is SwapOutcome.SUCCEEDED or store.read_entry(node).value is not None:
            return
    raise RuntimeError(f"the entry of node {node} is not created: {change.problem}; run it again")


def _read_epoch(store: Store) -> str:
    space = store.read_space().value
    if space is None:
        raise ValueError("the store has no space")
    return space.epoch
