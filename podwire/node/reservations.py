"""host-local's addresses, compared with who lives: what each reservation is, and what is wrong with them.

One rule: it reads only. An address is called gone only where `Snapshot.is_gone` says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_interface
from shlex import quote

from cni.address import Address
from cni.conf import Attachment
from ipam.host_local import listing
from podwire.node.model import NO_ATTACHMENT, Pod, State, short_id
from podwire.node.records import Pool, Reservation
from podwire.node.snapshot import Snapshot

_FULL_PERCENT = 90
_NS = 1_000_000_000


class ReservationState(StrEnum):
    """What a file of a store is."""

    LIVING = "living"
    GONE = "gone"  # surely nobody lives who has it
    NEW = "new"  # not a minute old and unknown to the cache: an ADD may be under way
    UNKNOWN = "unknown"  # its container may be running: not everything could be looked at from here
    REMARK = "remark"  # of an administrator, who keeps the address to himself
    EMPTY = "empty"  # residue of a killed ADD: it is free
    FOREIGN = "foreign"  # it names nobody, so that the address is not given to anybody
    UNREADABLE = "not readable"  # without root
    LAST = "last_reserved"  # no reservation: behind it the next search begins


@dataclass(frozen=True)
class Entry:
    """One file of a store for a person or a program; `since` in ns of the epoch."""

    address: str
    network: str
    data_dir: str
    state: ReservationState
    attachment: Attachment = NO_ATTACHMENT
    pod: str = ""
    since: int = 0
    before_boot: bool = False

    @property
    def when(self) -> str:
        """Since when it is so."""
        return "before boot" if self.before_boot else format_time(self.since)

    def to_json(self) -> dict[str, object]:
        """Returns its part of the document."""
        return {
            "address": self.address,
            "network": self.network,
            "dataDir": self.data_dir,
            "state": str(self.state),
            "containerID": self.attachment.container_id,
            "ifname": self.attachment.ifname,
            "pod": self.pod,
            "since": format_time(self.since),
            "beforeBoot": self.before_boot,
        }


@dataclass(frozen=True)
class Finding:
    """Something that is wrong: `kind` for programs, `what` and `cure` for a person."""

    kind: str
    network: str
    address: str
    description: str
    fix: str

    def to_json(self) -> dict[str, object]:
        """Returns its part of the document."""
        return {
            "kind": self.kind,
            "network": self.network,
            "address": self.address,
            "what": self.description,
            "cure": self.fix,
        }


def format_time(since_ns: int) -> str:
    """Returns a moment as RFC 3339 has it, in UTC; "" for none."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since_ns // _NS)) if since_ns else ""


def entries(snapshot: Snapshot, network: str = "") -> Iterator[Entry]:
    """Yields what there is in the stores of a network, or of all."""
    for pool in _pools(snapshot, network):
        for item in pool.reservations:
            pods = snapshot.pods_of(item.network, item.attachment) if item.has_container else []
            pod = next((pod.pod for pod in pods if pod.pod), "")
            attachment = item.attachment if item.file.owner else NO_ATTACHMENT
            yield Entry(
                item.file.name,
                item.network,
                item.data_dir,
                state_of(snapshot, item),
                attachment,
                pod,
                item.file.written_ns,
                item.before_boot,
            )
        for address in pool.last_reserved.values():
            yield Entry(address, pool.network, pool.data_dir, ReservationState.LAST)


def unproven_owners(snapshot: Snapshot, network: str = "") -> Iterator[str]:
    """Yields for each network the addresses that may be in use, as nothing proves here that their owners are gone."""
    addresses: dict[str, list[str]] = {}
    for line in entries(snapshot, network):
        if line.state is ReservationState.UNKNOWN:
            addresses.setdefault(line.network, []).append(line.address)
    for name, found in addresses.items():
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield f"network {name}: nothing proves here that the owner of {found[0]}{more} is gone"


def state_of(snapshot: Snapshot, item: Reservation) -> ReservationState:
    """Returns what a reservation is."""
    if item.file.residue:
        return ReservationState.EMPTY
    if item.file.unreadable:
        return ReservationState.UNREADABLE
    if not item.has_container:
        return ReservationState.REMARK if item.is_remark else ReservationState.FOREIGN
    if snapshot.is_gone(item):
        return ReservationState.GONE
    states = {pod.state for pod in snapshot.pods_of(item.network, item.attachment)}
    if snapshot.is_configured(item) or states - {State.NO_CACHE, State.UNKNOWN}:
        return ReservationState.LIVING
    if State.UNKNOWN in states:
        return ReservationState.UNKNOWN
    # A container with several addresses gets them one after another.
    return (
        ReservationState.NEW
        if any(own.is_recent for own in snapshot.reservations[item.network, item.attachment])
        else ReservationState.UNKNOWN
    )


def findings(snapshot: Snapshot, network: str = "") -> Iterator[Finding]:
    """Yields what is wrong in the stores of a network, or of all, and with their attachments."""
    for pool in _pools(snapshot, network):
        yield from _gone(snapshot, pool)
        yield from _foreign(snapshot, pool)
        yield from _full(snapshot, pool)
        yield from _index(pool)
    living = [pod for pod in snapshot.pods if not pod.leaked and pod.state is not State.NO_CACHE]
    yield from _unreserved(snapshot, [pod for pod in living if network in ("", pod.network)])
    yield from _twice(snapshot, living, network)


def _pools(snapshot: Snapshot, network: str) -> Iterator[Pool]:
    return (pool for pool in snapshot.records.pools if network in ("", pool.network))


def _gone(snapshot: Snapshot, pool: Pool) -> Iterator[Finding]:
    for item in pool.reservations:
        if state_of(snapshot, item) is ReservationState.GONE:
            what = f"{item.file.name} is reserved for {_name(item.attachment)}, which is gone"
            fix = f"podwire ipam free {item.file.name} {pool.network}"
            yield Finding("gone", pool.network, item.file.name, what, fix)


def _foreign(snapshot: Snapshot, pool: Pool) -> Iterator[Finding]:
    directory = pool.store().directory
    for name in pool.foreign:
        yield Finding("foreign", pool.network, "", f"{directory}/{name} is none of host-local's files", "move it away")
    for item in pool.reservations:
        own = item.file.name
        if state_of(snapshot, item) is ReservationState.FOREIGN:
            what = f"{directory}/{own} names no container, so that the address is given to nobody"
            fix = f"podwire ipam free {own} {pool.network} --force"
            yield Finding("foreign", pool.network, own, what, fix)
        elif str(item.address) != own:
            what = f"{directory}/{own} is not how host-local writes {item.address}: it may give that address again"
            fix = f"mv -n {quote(f'{directory}/{own}')} {quote(f'{directory}/{item.address}')}"
            yield Finding("foreign", pool.network, own, what, fix)


def _full(snapshot: Snapshot, pool: Pool) -> Iterator[Finding]:
    for own in pool.range_sets:
        in_use = pool.in_use(own)
        if in_use * 100 < own.size * _FULL_PERCENT:
            continue
        ours = (item for item in pool.reservations if item.address.version == own.version)
        gone = sum(own.holds(int(item.address)) for item in ours if snapshot.is_gone(item))
        free = f"podwire ipam free --gone {pool.network} frees {gone}" if gone else "none of them is of somebody gone"
        what = f"{in_use} of {own.size} addresses of {own} are in use"
        yield Finding("full", pool.network, "", what, f"{free}; give the network a larger range")


def _index(pool: Pool) -> Iterator[Finding]:
    store = pool.store()
    try:
        wrong = listing.list_unindexed(store)
    except OSError:
        return  # what cannot be read has been told
    if wrong:
        index = f"{pool.data_dir.rstrip('/')}.podwire/{pool.network}"
        what = f"the index {index} does not know {', '.join(wrong)}: somebody has edited the files"
        yield Finding("index", pool.network, wrong[0], what, f"rm {quote(index)} (it is written anew)")


def _unreserved(snapshot: Snapshot, pods: Iterable[Pod]) -> Iterator[Finding]:
    """Yields the addresses that living attachments have and that are not reserved for them."""
    for pod in pods:
        pools = list(_pools(snapshot, pod.network))
        inside = snapshot.kernel.namespaces.get(pod.netns)
        for text in pod.addresses:
            own = ip_interface(text).ip
            if not any(range_set.range_of(own) for pool in pools for range_set in pool.range_sets):
                continue
            places = {found.path for found, _ in snapshot.kernel.interfaces_by_address.get(own, ())}
            if inside and inside.links is not None and inside.path not in places:
                continue  # it has lost the address, which is nobody's then
            yield from _owned_by_another(pod, own, pools)


def _owned_by_another(pod: Pod, own: Address, pools: Iterable[Pool]) -> Iterator[Finding]:
    found = [item for pool in pools for item in pool.reservations if item.address == own and not item.file.residue]
    mine = (pod.attachment, Attachment(pod.attachment.container_id, ""))
    if any(item.file.unreadable or item.attachment in mine for item in found):
        return
    owner = _name(pod.attachment)
    if found:
        what = f"{own} is in use by {owner}, but reserved for {_name(found[0].attachment)}"
        fix = "remove both and create them again"
        yield Finding("of another", pod.network, str(own), what, fix)
    else:
        fix = "remove it and create it again: the address may be given to another"
        yield Finding("not reserved", pod.network, str(own), f"{own} is in use by {owner}, but not reserved", fix)


def _twice(snapshot: Snapshot, living: Iterable[Pod], network: str) -> Iterator[Finding]:
    """Yields the addresses that two living attachments of a network, or on one bridge, have."""
    bridges = {pod.network: pod.bridge for pod in snapshot.pods if pod.bridge}
    found: dict[tuple[str, str], list[Pod]] = {}
    for pod in living:
        for text in pod.addresses:
            own = ip_interface(text).ip
            if not own.is_loopback:  # every pod has those: the runtimes' own network "cni-loopback"
                place = bridges.get(pod.network) or f"network {pod.network}"
                found.setdefault((place, str(own)), []).append(pod)
    for (_, address), pods in found.items():
        if len(pods) > 1 and network in ("", *(pod.network for pod in pods)):
            owners = " and ".join(_name(pod.attachment) for pod in pods)
            fix = "remove all but one of them and create them again"
            yield Finding("twice", pods[0].network, address, f"{address} is in use by {owners}", fix)


def _name(attachment: Attachment) -> str:
    return f"container {short_id(attachment.container_id)}{f' {attachment.ifname}' if attachment.ifname else ''}"
