"""Releasing addresses of host-local whose owners are gone.

One rule: an address is released under its store's lock, and only if it is still what was looked at: nobody else's by
now, not reserved anew, and its owner has not come into the runtime's cache meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from cni.errors import CniError, Code
from ipam.host_local.store import Reservations, Store
from podwire import attachments
from podwire.node.records import Reservation
from podwire.node.reservations import ReservationState, state_of
from podwire.node.snapshot import Snapshot
from process import signals

_REFUSED = {
    ReservationState.REMARK: "it is a remark of the administrator's, who keeps the address",
    ReservationState.FOREIGN: "its file names nobody",
    ReservationState.NEW: "it was reserved less than a minute ago: an ADD may be under way",
    ReservationState.UNKNOWN: "its container may be running: not everything could be looked at from here",
    ReservationState.UNREADABLE: "its file cannot be read",
}


@dataclass(frozen=True)
class Outcome:
    """What became of one reservation; `reason` is why it stays, "" for one that is free now."""

    item: Reservation
    reason: str = ""

    def to_json(self) -> dict[str, object]:
        """Returns its part of the document."""
        attachment = self.item.attachment
        found: dict[str, object] = {
            "address": self.item.file.name,
            "network": self.item.network,
            "containerID": attachment.container_id,
            "ifname": attachment.ifname,
        }
        return {**found, "reason": self.reason} if self.reason else found


def refusal_reason(snapshot: Snapshot, item: Reservation) -> str:
    """Returns why a reservation is not to be released, "" when it may be."""
    kind = state_of(snapshot, item)
    if kind in (ReservationState.GONE, ReservationState.EMPTY):
        return ""
    if kind is not ReservationState.LIVING:
        return _REFUSED[kind]
    place = next(iter(snapshot.places(item.network, item.address)), None)
    if place:
        inside, ifname = place
        return f"the address is configured on {ifname} in {inside.path}"
    return f"container {item.attachment.container_id} lives, by the runtime's cache"


def release(snapshot: Snapshot, items: Iterable[Reservation], cache_dir: str, *, force: bool) -> Iterator[Outcome]:
    """Releases what may be released, with `force` all of `items`; raises CniError where a store cannot be used."""
    wanted: list[Reservation] = []
    for item in items:
        reason = "" if force else refusal_reason(snapshot, item)
        if reason:
            yield Outcome(item, reason)
        else:
            wanted.append(item)
    for (data_dir, network), group in groupby(wanted, key=lambda item: (item.data_dir, item.network)):
        chosen = list(group)
        store = Store(data_dir, network)
        with signals.blocked(), store.locked() as held:
            living = set() if force else _living(cache_dir, network)
            outcomes = [_released(held, item, living) for item in chosen]
        yield from outcomes


def _living(cache_dir: str, network: str) -> set[str]:
    """Returns the containers of a network that live by the cache as it is now."""
    return {item.attachment.container_id for item in attachments.list_cached(cache_dir, network) if item.may_be_running}


def _released(held: Reservations, item: Reservation, living: set[str]) -> Outcome:
    """Looks once more and releases; the lock is held, so nobody else reserves meanwhile."""
    path = f"{held.directory}/{item.file.name}"
    owner = held.get_owner(item.file.name)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return Outcome(item, "it was released meanwhile")
    if owner != item.file.owner or (status.st_mtime_ns, status.st_ctime_ns) != (
        item.file.written_ns,
        item.file.changed_ns,
    ):
        return Outcome(item, "it was reserved anew meanwhile")
    if item.has_container and item.attachment.container_id in living:
        return Outcome(item, "its container has come into the runtime's cache meanwhile")
    try:
        held.release(item.file.name, owner)
    except OSError as error:
        raise CniError(Code.IO_FAILURE, f"cannot release {path}: {error.strerror}", "move it away by hand") from error
    return Outcome(item)
