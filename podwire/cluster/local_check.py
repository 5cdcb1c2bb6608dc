"""Compares the reservations of this node's networks with the blocks in its grants files. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from podwire.cluster.answers import ClusterFault, LocalReport
from podwire.cluster.why import FIX_OF_LOST, describe_lost
from podwire.node import reservations
from podwire.node.records import Reservation
from podwire.node.reservations import ReservationState
from podwire.node.snapshot import Snapshot

_IN_USE = (ReservationState.RUNNING, ReservationState.NEW, ReservationState.UNKNOWN)


def find_faults(local: LocalReport, snapshot: Snapshot) -> Iterator[ClusterFault]:
    """Yields the addresses of this node's pods that are in none of its blocks or not reserved, and its lost blocks."""
    pooled = {network for network, _ in local.networks}
    for pool in snapshot.records.pools:
        if pool.network in pooled:
            blocks = [block.block for block in local.blocks if block.network == pool.network]
            for item in pool.reservations:
                has_block = any(item.address in block for block in blocks)
                if not has_block and not item.before_boot and reservations.state_of(snapshot, item) in _IN_USE:
                    yield _unblocked(item)
    for one in reservations.find_unreserved(snapshot, lambda pod, address: pod.network in pooled):
        yield ClusterFault(one.kind, one.address, one.description, one.fix)
    for block in local.blocks:
        if block.state == "lost" and block.used:
            yield ClusterFault("lost block", str(block.block), describe_lost(block), FIX_OF_LOST)


def _unblocked(item: Reservation) -> ClusterFault:
    owner = item.attachment.container_id
    return ClusterFault(
        "outside blocks",
        item.file.name,
        f"{item.file.name} of network {item.network} is reserved for container {owner}, but is in no block of this "
        "node: a pod of another node may have the same address",
        "delete the pod and create it again",
    )
