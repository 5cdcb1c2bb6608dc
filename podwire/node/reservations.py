"""Compares host-local's reservations with the running attachments: the state of each, and the faults.

Nothing is changed. An address counts as gone only if `Snapshot.is_gone` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_interface
from shlex import quote

from cni.address import Address
from cni.conf import Attachment
from ipam.host_local import listing
from podwire.node.model import NO_ATTACHMENT, AttachmentState, Pod, short_id
from podwire.node.records import HostLocalStore, Reservation
from podwire.node.snapshot import Snapshot
from podwire.output import format_time

_FULL_PERCENT = 90
_NS = 1_000_000_000


class ReservationState(StrEnum):
    """The state of one file in a store."""

    RUNNING = "running"  # not proven to be gone, and the cache or an interface shows its container
    GONE = "gone"  # its container is provably no longer running
    NEW = "new"  # less than a minute old and not in the cache: its ADD may still be running
    UNKNOWN = "unknown"  # its container may be running: not everything could be read from here
    REMARK = "remark"  # written by an administrator, to keep the address unallocated
    EMPTY = "empty"  # residue of a killed ADD: the address is free
    FOREIGN = "foreign"  # it names no owner, so the address is never allocated
    UNREADABLE = "not readable"  # without root
    LAST = "last_reserved"  # not a reservation: the last address of a range set, where the next search starts


@dataclass(frozen=True)
class ListedReservation:
    """A file of a store, as `podwire ipam list` prints it; `since` is in ns since the epoch, 0 if unknown."""

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
        """The time of the reservation."""
        return "before boot" if self.before_boot else format_time(self.since // _NS)

    def to_json(self) -> dict[str, object]:
        """Returns this object's part of the JSON document."""
        return {
            "address": self.address,
            "network": self.network,
            "dataDir": self.data_dir,
            "state": str(self.state),
            "containerID": self.attachment.container_id,
            "ifname": self.attachment.ifname,
            "pod": self.pod,
            "since": format_time(self.since // _NS),
            "beforeBoot": self.before_boot,
        }


@dataclass(frozen=True)
class ReservationFault:
    """A fault: `kind` is for programs, `description` and `fix` for an operator."""

    kind: str
    network: str
    address: str
    description: str
    fix: str

    def to_json(self) -> dict[str, object]:
        """Returns this object's part of the JSON document."""
        return {
            "kind": self.kind,
            "network": self.network,
            "address": self.address,
            "what": self.description,
            "cure": self.fix,
        }


def entries(snapshot: Snapshot, network: str = "") -> Iterator[ListedReservation]:
    """Yields the files in the stores of a network, or of all networks."""
    for pool in _pools(snapshot, network):
        for item in pool.reservations:
            pods = snapshot.pods_of(item.network, item.attachment) if item.has_container else []
            pod = next((pod.pod for pod in pods if pod.pod), "")
            attachment = item.attachment if item.file.owner else NO_ATTACHMENT
            yield ListedReservation(
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
            yield ListedReservation(address, pool.network, pool.data_dir, ReservationState.LAST)


def unproven_owners(snapshot: Snapshot, network: str = "") -> Iterator[str]:
    """Yields, for each network, a description of the addresses whose owners may or may not be running."""
    by_network: dict[str, list[str]] = {}
    for entry in entries(snapshot, network):
        if entry.state is ReservationState.UNKNOWN:
            by_network.setdefault(entry.network, []).append(entry.address)
    for name, addresses in by_network.items():
        more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
        yield f"network {name}: nothing proves here that the owner of {addresses[0]}{more} is gone"


def state_of(snapshot: Snapshot, item: Reservation) -> ReservationState:
    """Returns the state of a reservation."""
    if item.file.residue:
        return ReservationState.EMPTY
    if item.file.unreadable:
        return ReservationState.UNREADABLE
    if not item.has_container:
        return ReservationState.REMARK if item.is_remark else ReservationState.FOREIGN
    if snapshot.is_gone(item):
        return ReservationState.GONE
    states = {pod.state for pod in snapshot.pods_of(item.network, item.attachment)}
    if snapshot.is_configured(item) or states - {AttachmentState.NO_CACHE, AttachmentState.UNKNOWN}:
        return ReservationState.RUNNING
    if AttachmentState.UNKNOWN in states:
        return ReservationState.UNKNOWN
    # A container with several addresses gets them sequentially.
    return (
        ReservationState.NEW
        if any(one.is_recent for one in snapshot.reservations[item.network, item.attachment])
        else ReservationState.UNKNOWN
    )


def findings(snapshot: Snapshot, network: str = "") -> Iterator[ReservationFault]:
    """Yields the faults in the stores of a network, or of all networks, and of their attachments."""
    for pool in _pools(snapshot, network):
        yield from _gone(snapshot, pool)
        yield from _foreign(snapshot, pool)
        yield from _full(snapshot, pool)
        yield from _index(pool)

    def is_in_a_range(pod: Pod, address: Address) -> bool:
        range_sets = (range_set for pool in _pools(snapshot, pod.network) for range_set in pool.range_sets)
        return any(range_set.range_of(address) for range_set in range_sets)

    yield from find_unreserved(snapshot, is_in_a_range, network)
    yield from _duplicates(snapshot, network)


def find_unreserved(
    snapshot: Snapshot, is_allocated: Callable[[Pod, Address], bool], network: str = ""
) -> Iterator[ReservationFault]:
    """Yields the addresses of running attachments that host-local allocates and that are not reserved for them."""
    for pod in snapshot.running:
        namespace = snapshot.kernel.namespaces.get(pod.netns)
        for text in pod.addresses if network in ("", pod.network) else ():
            address = ip_interface(text).ip
            paths = {used_in.path for used_in, _ in snapshot.kernel.interfaces_by_address.get(address, ())}
            if namespace and namespace.links is not None and namespace.path not in paths:
                continue  # the pod no longer has the address
            if is_allocated(pod, address):
                yield from _owned_by_another(pod, address, list(_pools(snapshot, pod.network)))


def _pools(snapshot: Snapshot, network: str) -> Iterator[HostLocalStore]:
    return (pool for pool in snapshot.records.pools if network in ("", pool.network))


def _gone(snapshot: Snapshot, pool: HostLocalStore) -> Iterator[ReservationFault]:
    for item in pool.reservations:
        if state_of(snapshot, item) is ReservationState.GONE:
            description = f"{item.file.name} is reserved for {_name(item.attachment)}, which is no longer running"
            fix = f"podwire ipam free {item.file.name} {pool.network}"
            yield ReservationFault("gone", pool.network, item.file.name, description, fix)


def _foreign(snapshot: Snapshot, pool: HostLocalStore) -> Iterator[ReservationFault]:
    directory = pool.store().directory
    for name in pool.foreign:
        path = quote(f"{directory}/{name}")
        description = f"{directory}/{name} was not written by host-local"
        yield ReservationFault("foreign", pool.network, "", description, f"move the file out of the store: {path}")
    for item in pool.reservations:
        name = item.file.name
        if state_of(snapshot, item) is ReservationState.FOREIGN:
            description = f"{directory}/{name} names no container, so the address is never allocated"
            fix = f"podwire ipam free {name} {pool.network} --force"
            yield ReservationFault("foreign", pool.network, name, description, fix)
        elif str(item.address) != name:
            description = f"{directory}/{name} is not how host-local spells {item.address}: it may allocate it again"
            fix = f"mv -n {quote(f'{directory}/{name}')} {quote(f'{directory}/{item.address}')}"
            yield ReservationFault("foreign", pool.network, name, description, fix)


def _full(snapshot: Snapshot, pool: HostLocalStore) -> Iterator[ReservationFault]:
    for range_set in pool.range_sets:
        in_use = pool.in_use(range_set)
        if in_use * 100 < range_set.size * _FULL_PERCENT:
            continue
        same_version = (item for item in pool.reservations if item.address.version == range_set.version)
        gone = sum(range_set.holds(int(item.address)) for item in same_version if snapshot.is_gone(item))
        description = f"{in_use} of {range_set.size} addresses of {range_set} are in use"
        if gone:
            description += f", {gone} of them by containers that are no longer running"
        fix = f"podwire ipam free --gone {pool.network}" if gone else "give the network a larger range"
        yield ReservationFault("full", pool.network, "", description, fix)


def _index(pool: HostLocalStore) -> Iterator[ReservationFault]:
    store = pool.store()
    try:
        wrong = listing.list_unindexed(store)
    except OSError:
        return  # `Records.unread` describes it
    if wrong:
        index = f"{pool.data_dir.rstrip('/')}.podwire/{pool.network}"
        description = f"the index {index} lacks {', '.join(wrong)}: the files of the store were edited by hand"
        yield ReservationFault(
            "index", pool.network, wrong[0], description, f"rm {quote(index)}  # the next ADD writes it anew"
        )


def _owned_by_another(pod: Pod, address: Address, pools: Iterable[HostLocalStore]) -> Iterator[ReservationFault]:
    same_address = (item for pool in pools for item in pool.reservations if item.address == address)
    reservations = [item for item in same_address if not item.file.residue]
    expected = (pod.attachment, Attachment(pod.attachment.container_id, ""))
    if any(item.file.unreadable or item.attachment in expected for item in reservations):
        return
    owner = _name(pod.attachment)
    if reservations:
        description = f"{address} is in use by {owner}, but reserved for {_name(reservations[0].attachment)}"
        fix = "remove both containers and create them again"
        yield ReservationFault("of another", pod.network, str(address), description, fix)
    else:
        description = (
            f"{address} is in use by {owner}, but not reserved: host-local may allocate it to another container"
        )
        fix = "remove the container and create it again"
        yield ReservationFault("not reserved", pod.network, str(address), description, fix)


def _duplicates(snapshot: Snapshot, network: str) -> Iterator[ReservationFault]:
    """Yields the addresses that two running attachments of a network, or on one bridge, have."""
    bridges = {pod.network: pod.bridge for pod in snapshot.pods if pod.bridge}
    users: dict[tuple[str, str], list[Pod]] = {}
    for pod in snapshot.running:
        for text in pod.addresses:
            ip = ip_interface(text).ip
            if not ip.is_loopback:  # every pod has those: the runtimes' network "cni-loopback"
                segment = bridges.get(pod.network) or f"network {pod.network}"
                users.setdefault((segment, str(ip)), []).append(pod)
    for (_, address), pods in users.items():
        if len(pods) > 1 and network in ("", *(pod.network for pod in pods)):
            owners = " and ".join(_name(pod.attachment) for pod in pods)
            fix = "remove all of these containers but one, and create them again"
            yield ReservationFault("twice", pods[0].network, address, f"{address} is in use by {owners}", fix)


def _name(attachment: Attachment) -> str:
    return f"container {short_id(attachment.container_id)}{f' {attachment.ifname}' if attachment.ifname else ''}"
