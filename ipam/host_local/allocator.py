"""The allocator: chooses and reserves an address from each range set.

One rule: addresses are allocated in order, round robin, as by the reference plugin, so that a released address is
reused as late as possible.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from os import fsdecode, lstat
from os.path import basename

from attachment.cache import ResultCache
from cni.address import Address, format_ip, parse_ip, with_prefix
from cni.conf import VALID_NAME, Attachment
from cni.errors import CniError, Code, internal
from cni.result import IPConfig
from ipam.host_local import ranges
from ipam.host_local.boots import is_orphaned
from ipam.host_local.ranges import Range, RangeSet
from ipam.host_local.store import Origins, Owners, Reservations, ReservationStore, owner_of, values
from kernel import boot
from process.undo import Undo
from process.values import dataclass

_LARGE = 2**32

# After this many reserved addresses in a row, the search lists the directory once instead of testing each address:
# listing 100,000 files takes as long as 1000 tests.
_MAX_TESTS = 1000
# STATUS looks for any free address: it tests this many next ones, and this many samples of each range.
_NEXT, _SPREAD = 16, 64


class ExhaustedError(CniError):
    """A CniError(999) for a range set without an available address, with the numbers of the set."""

    def __init__(self, range_set: RangeSet, usage: Usage, directory: str) -> None:
        super().__init__(Code.INTERNAL, _exhausted_text(range_set), f"{usage}; {_hint(directory)}")
        self.range_set = range_set
        self.usage = usage


def allocate(
    reservations: Reservations,
    attachment: Attachment,
    range_sets: tuple[RangeSet, ...],
    requested: tuple[Address, ...],
    cache: Callable[[], ResultCache],
) -> tuple[IPConfig, ...]:
    """Reserves one address of each set for `attachment`: a requested address in the set, otherwise the next free one.

    Reclaims addresses that a reboot orphaned if the set has no free one, or if one of them is requested; also an
    address that this attachment had in a deleted namespace. Calls `cache` only to decide this.
    Raises CniError(999), with nothing reserved, if no address is available (ExhaustedError) or the attachment already
    has one.
    """
    owner = owner_of(*attachment)
    remaining = list(requested)
    ips = []
    # `find` rebuilds an index of an earlier boot, so that the index lists the new reservations as of this boot.
    owned = reservations.find(owner) + reservations.find(owner_of(attachment.container_id, ""))
    with Undo() as undo:
        for number, range_set in enumerate(range_sets):
            choice = next(((ip, address_range) for ip in remaining if (address_range := range_set.range_of(ip))), None)
            try:
                if choice is not None:
                    address, address_range = choice
                    remaining.remove(address)
                    _reserve_requested(reservations, range_set, address, address_range, attachment, cache)
                else:
                    _refuse_second_address(reservations, range_set, owned, attachment, cache)
                    address, address_range = _reserve_next(reservations, range_set, number, owner, cache)
            except CniError as error:
                error.msg = f"failed to allocate for range {number}: {error.msg}"
                raise
            name = format_ip(address)
            undo.push(f"release {name}", partial(reservations.release, name, owner))
            reservations.note_last_reserved(number, name)
            ips.append(IPConfig(with_prefix(address, address_range.subnet.prefixlen), address_range.gateway))
        if remaining:
            raise internal(
                f"failed to allocate all requested IPs: {' '.join(map(str, remaining))}",
                "request addresses of these range sets, at most one of each: " + "; ".join(map(str, range_sets)),
            )
    return tuple(ips)


def exhaustion_error(
    store: ReservationStore, number: int, range_set: RangeSet, cache: Callable[[], ResultCache]
) -> CniError | None:
    """Returns the error that ADD would raise for a full range set, None if an address is available."""
    if _has_room(store, number, range_set):
        return None
    owners, result_cache = owners_in(range_set, store.list_owners()), cache()
    usage = Usage.count(range_set, owners, result_cache)
    if usage.in_use < usage.size:
        return None
    with store.origins() as origins:
        if next(_orphaned(owners, origins, store.directory, result_cache), None):
            return None
    return CniError(Code.PLUGIN_NOT_AVAILABLE, f"{_exhausted_text(range_set)}: {usage}", _hint(store.directory))


def format_usage(in_use: int, size: int) -> str:
    """Returns how many addresses of a range are in use, without the size of one that never becomes full (IPv6)."""
    return f"{in_use} of {size}" if size < _LARGE else str(in_use)


@dataclass(frozen=True)
class Usage:
    """The numbers of a range set: all addresses, those in use, those used by containers that are no longer running."""

    size: int
    in_use: int
    stale: int

    def __str__(self) -> str:
        used = f"{format_usage(self.in_use, self.size)} in use"
        return f"{used}, {self.stale} of them by containers that are no longer running"

    @classmethod
    def count(cls, range_set: RangeSet, owners: Owners, cache: ResultCache) -> Usage:
        """Counts `owners`, which contain only reservations in `range_set`."""
        in_use = stale = 0
        for owner, names in owners.items():
            in_use += len(names)
            attachment = attachment_of(owner)
            if cache.is_gone(attachment) and VALID_NAME.fullmatch(attachment.container_id):
                stale += len(names)
        return cls(range_set.size, in_use, stale)


def owners_in(range_set: RangeSet, owners: Owners) -> Owners:
    """Returns the reservations that lie in the range set."""
    holds, matching = range_set.membership_test(), {}
    for owner, names in owners.items():
        names_in_set = [name for name in names if any(map(holds, values(range_set.version, (name,))))]
        if names_in_set:
            matching[owner] = names_in_set
    return matching


def attachment_of(owner: bytes) -> Attachment:
    """Returns the attachment that an owner names; its ifname is "" for a reservation without interface."""
    container_id, _, ifname = fsdecode(owner).partition("\r\n")
    return Attachment(container_id, ifname)


def _reserve_requested(
    reservations: Reservations,
    range_set: RangeSet,
    choice: Address,
    address_range: Range,
    attachment: Attachment,
    cache: Callable[[], ResultCache],
) -> None:
    if choice == address_range.gateway:
        raise internal(f"requested ip {choice} is subnet's gateway")
    name, owner = str(choice), owner_of(*attachment)
    if reservations.reserve(name, owner):
        return
    if not _is_reclaimable(reservations, name, attachment, cache()):
        raise internal(
            f"requested IP address {choice} is not available in range set {range_set}",
            _describe_reservation(reservations, name),
        )
    _reclaim(reservations, [(reservations.get_owner(name), name)])
    reservations.reserve(name, owner)


def _refuse_second_address(
    reservations: Reservations,
    range_set: RangeSet,
    owned: list[str],
    attachment: Attachment,
    cache: Callable[[], ResultCache],
) -> None:
    """Raises CniError(999) if the attachment already has an address in the set, unless its namespace was deleted.

    In that case it reclaims the address.
    """
    for name in owned:
        address = _parse(name)
        if address is None or not range_set.range_of(address):
            continue
        if not _is_reclaimable(reservations, name, attachment, cache()):
            raise internal(
                f"{address} has been allocated to {attachment.container_id}, duplicate allocation is not allowed",
                f"{_describe_reservation(reservations, name)}; run DEL for this attachment before the next ADD",
            )
        _reclaim(reservations, [(reservations.get_owner(name), name)])


def _reserve_next(
    reservations: Reservations, range_set: RangeSet, number: int, owner: bytes, cache: Callable[[], ResultCache]
) -> tuple[Address, Range]:
    last = _last_allocated(reservations, number, range_set)
    allocated = _search(reservations, range_set, last, owner)
    if allocated is None:
        owners = owners_in(range_set, reservations.scan())  # the scan also deletes empty files, left by a crash
        result_cache = cache()
        _reclaim(reservations, list(_orphaned(owners, reservations.origin, reservations.directory, result_cache)))
        allocated = _search(reservations, range_set, last, owner)
        if allocated is None:
            usage = Usage.count(range_set, owners, result_cache)
            raise ExhaustedError(range_set, usage, reservations.directory)
    return allocated


def _is_reclaimable(reservations: Reservations, name: str, attachment: Attachment, cache: ResultCache) -> bool:
    """Returns whether a reboot orphaned `name`, or it belongs to this attachment in a deleted namespace.

    A reservation without interface belongs to the attachment if no interface of its container is in use.
    """
    owner = reservations.get_owner(name)
    owner_attachment = attachment_of(owner)
    is_same = owner_attachment in (attachment, Attachment(attachment.container_id, ""))
    origin, is_readded = reservations.origin(owner, name), owner_attachment == attachment
    path, began_ns = f"{reservations.directory}/{name}", boot.get_boot_time_ns()
    if is_orphaned(path, owner_attachment, origin, cache, began_ns, is_readded=is_readded):
        return True
    return is_same and cache.namespace_is_gone(owner_attachment)


def _orphaned(owners: Owners, origins: Origins, directory: str, cache: ResultCache) -> Iterator[tuple[bytes, str]]:
    """Yields the owner and name of each reservation that a reboot orphaned."""
    began_ns = boot.get_boot_time_ns()
    for owner, names in owners.items():
        attachment = attachment_of(owner)
        for name in names:
            if is_orphaned(f"{directory}/{name}", attachment, origins(owner, name), cache, began_ns):
                yield owner, name


def _reclaim(reservations: Reservations, orphaned: list[tuple[bytes, str]]) -> None:
    for owner, name in orphaned:
        reservations.release(name, owner)
    if orphaned:
        print(
            f"host-local: reclaimed {len(orphaned)} address(es) of containers that are no longer running, "
            f"in {reservations.directory}",
            file=sys.stderr,
        )


def _search(
    reservations: Reservations, range_set: RangeSet, last: int | None, owner: bytes
) -> tuple[Address, Range] | None:
    """Reserves the first free address after `last` and returns it; None if there is none."""
    version = range_set.version
    used: set[int] = set()
    tests = 0
    for value, address_range in range_set.candidates(last):
        if value in used:
            continue
        name = ranges.address_text(version, value)
        # The first address is usually free. For later ones, a test is cheaper than a failed attempt to create the file.
        if (not tests or reservations.is_free(name)) and reservations.reserve(name, owner):
            return ranges.address(version, value), address_range
        tests += 1
        if tests == _MAX_TESTS:
            used = reservations.list_used(version)
    return None


def _has_room(store: ReservationStore, number: int, range_set: RangeSet) -> bool:
    """Returns whether any address of the set is free, as seen without the lock."""
    version, last = range_set.version, _last_allocated(store, number, range_set)
    next_values = (value for value, _ in islice(range_set.candidates(last), _NEXT))
    if any(
        store.is_free(ranges.address_text(version, value)) for value in chain(next_values, range_set.samples(_SPREAD))
    ):
        return True
    used = store.list_used(version)
    return any(value not in used for value, _ in range_set.candidates(last))


def _last_allocated(store: ReservationStore | Reservations, number: int, range_set: RangeSet) -> int | None:
    """Returns the last allocated address, None if none is stored or it is of the other family."""
    last = _parse(store.last_reserved(number))
    return int(last) if last is not None and last.version == range_set.version else None


def _parse(text: str) -> Address | None:
    try:
        return parse_ip(text)
    except ValueError:
        return None


def _exhausted_text(range_set: RangeSet) -> str:
    return f"no IP addresses available in range set: {range_set}"


def _hint(directory: str) -> str:
    """Returns the fix for a full range; it removes no files, which may be reservations of running pods.

    Not `podwire gc`: it needs the network's file in net.d or an attachment in the cache.
    """
    network = basename(directory)
    return (
        f"podwire ipam list {network} lists the addresses; podwire ipam free --gone {network} releases those of "
        "containers that are no longer running; if all are running, enlarge the range"
    )


def _describe_reservation(reservations: Reservations, name: str) -> str:
    """Returns the path of a reservation, its owner, and its age."""
    path = f"{reservations.directory}/{name}"
    container_id, ifname = attachment_of(reservations.get_owner(name))
    owner = f"{container_id} {ifname}".strip() or "no container"
    try:
        age = _age(time.time() - lstat(path).st_mtime)
    except OSError:
        age = "an unknown time"
    return f"{path} has been held by {owner} for {age}"


def _age(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} seconds"
