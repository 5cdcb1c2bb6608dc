"""Releases host-local addresses whose owners are no longer running.

An address is released under its store's lock, and only if its file is unchanged since the snapshot and its
owner has not appeared in the runtime's cache meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from cni.errors import CniError, Code
from ipam.host_local.store import Reservations, ReservationStore
from podwire import attachments
from podwire.layers import Layer
from podwire.node.records import Reservation
from podwire.node.reservations import ReservationState, state_of
from podwire.node.snapshot import Snapshot
from process import signals

_REASONS = {
    ReservationState.REMARK: "an administrator has reserved the address with a remark",
    ReservationState.FOREIGN: "its file names no owner",
    ReservationState.NEW: "it was reserved less than a minute ago: its ADD may still be running",
    ReservationState.UNKNOWN: "its container may be running: not everything could be inspected from here",
    ReservationState.UNREADABLE: "its file cannot be read",
}


@dataclass(frozen=True)
class ReleaseOutcome:
    """The outcome for one reservation; `reason` is why it was kept, "" if it was released."""

    item: Reservation
    reason: str = ""

    def to_json(self) -> dict[str, object]:
        """Returns this object's part of the JSON document."""
        attachment = self.item.attachment
        document: dict[str, object] = {
            "address": self.item.file.name,
            "network": self.item.network,
            "containerID": attachment.container_id,
            "ifname": attachment.ifname,
        }
        return {**document, "reason": self.reason} if self.reason else document


def refusal_reason(snapshot: Snapshot, item: Reservation) -> str:
    """Returns why a reservation must not be released, "" if it may be."""
    state = state_of(snapshot, item)
    if state in (ReservationState.GONE, ReservationState.EMPTY):
        return ""
    if state is not ReservationState.RUNNING:
        return _REASONS[state]
    user = next(iter(snapshot.presences.interfaces_with(item.network, item.address)), None)
    if user:
        namespace, ifname = user
        return f"the address is configured on {ifname} in {namespace.path}"
    return f"container {item.attachment.container_id} is running, by the runtime's cache"


def release(snapshot: Snapshot, items: Iterable[Reservation], *, force: bool) -> Iterator[ReleaseOutcome]:
    """Releases those `items` that may be released, with `force` all; raises CniError if a store cannot be used."""
    accepted: list[Reservation] = []
    for item in items:
        reason = "" if force else refusal_reason(snapshot, item)
        if reason:
            yield ReleaseOutcome(item, reason)
        else:
            accepted.append(item)
    for (data_dir, network), group in groupby(accepted, key=lambda item: (item.data_dir, item.network)):
        chosen = list(group)
        store = ReservationStore(data_dir, network)
        with signals.blocked(), store.locked() as reservations:
            running = set() if force else _get_running(snapshot.layers, network)
            outcomes = [_release(reservations, item, running) for item in chosen]
        yield from outcomes


def _get_running(layers: Sequence[Layer], network: str) -> set[str]:
    """Returns the IDs of a network's running containers; reads the cache anew."""
    return {item.attachment.container_id for item in attachments.list_cached(layers, network) if item.may_be_running}


def _release(reservations: Reservations, item: Reservation, running: set[str]) -> ReleaseOutcome:
    """Releases an address if its file is unchanged; the store's lock is held, so no ADD reserves it meanwhile."""
    path = f"{reservations.directory}/{item.file.name}"
    owner = reservations.get_owner(item.file.name)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return ReleaseOutcome(item, "it was released meanwhile")
    if owner != item.file.owner or (status.st_mtime_ns, status.st_ctime_ns) != (
        item.file.written_ns,
        item.file.changed_ns,
    ):
        return ReleaseOutcome(item, "it was reserved anew meanwhile")
    if item.has_container and item.attachment.container_id in running:
        return ReleaseOutcome(item, "its container has appeared in the runtime's cache meanwhile")
    try:
        reservations.release(item.file.name, owner)
    except OSError as error:
        raise CniError(Code.IO_FAILURE, f"cannot release {path}: {error.strerror}", "move it away by hand") from error
    return ReleaseOutcome(item)
