"""The allocator: which address an attachment gets out of each range set.

One rule: the order is the reference's round robin, so that a freed address is not given again before the turn comes.
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
from cni.errors import CniError, Code
from cni.result import IPConfig
from ipam.host_local import ranges
from ipam.host_local.boots import is_left_over
from ipam.host_local.ranges import Range, RangeSet
from ipam.host_local.store import Origins, Owners, Reservations, Store, owner_of, values
from kernel import boot
from process.undo import Undo
from process.values import dataclass

# As many names in a row are looked at one by one before one listing of the directory tells all that are taken: with
# 100,000 it takes as long as as many looks.
_LOOKS = 1000
# STATUS asks for any free address, not for the next: as many in turn are looked at, and as many all over each range.
_NEXT, _ALL_OVER = 16, 64


def allocate(
    held: Reservations,
    attachment: Attachment,
    range_sets: tuple[RangeSet, ...],
    requested: tuple[Address, ...],
    cache: Callable[[], ResultCache],
) -> tuple[IPConfig, ...]:
    """Reserves one address of each set for `attachment`: a requested one that lies in the set, else the next.

    An address whose container a reboot has ended is taken back when there is no other, or when it is asked for; so is
    what this attachment itself had in a namespace that is gone. `cache` is called when that is to be found out.
    Raises CniError(999) with nothing reserved: an address is not to be had, or the attachment already has one.
    """
    owner = owner_of(*attachment)
    wanted = list(requested)
    ips = []
    # This look renews an index of an earlier boot, so that it knows what is reserved below as of this one.
    owned = held.find(owner) + held.find(owner_of(attachment.container_id, ""))
    with Undo() as undo:
        for number, range_set in enumerate(range_sets):
            choice = next(((ip, item) for ip in wanted if (item := range_set.range_of(ip))), None)
            try:
                if choice is not None:
                    given, item = choice
                    wanted.remove(given)
                    _take(held, range_set, given, item, attachment, cache)
                else:
                    _refuse_second(held, range_set, owned, attachment, cache)
                    given, item = _next(held, range_set, number, owner, cache)
            except CniError as error:
                raise error.prefixed(f"failed to allocate for range {number}: ") from None
            name = format_ip(given)
            undo.push(f"release {name}", partial(held.release, name, owner))
            held.note_last_reserved(number, name)
            ips.append(IPConfig(with_prefix(given, item.subnet.prefixlen), item.gateway))
        if wanted:
            raise CniError(
                Code.INTERNAL,
                f"failed to allocate all requested IPs: {' '.join(map(str, wanted))}",
                "each must lie in a range set of its own: " + "; ".join(map(str, range_sets)),
            )
    return tuple(ips)


def exhaustion_error(
    store: Store, number: int, range_set: RangeSet, cache: Callable[[], ResultCache]
) -> CniError | None:
    """Returns the error of an ADD that would find no free address in the set, None when there is one."""
    if _has_room(store, number, range_set):
        return None
    owners, known = owners_in(range_set, store.list_owners()), cache()
    usage = Usage.count(range_set, owners, known)
    if usage.in_use < usage.size:
        return None
    with store.origins() as origins:
        if next(_left_over(owners, origins, store.directory, known), None):
            return None
    return CniError(Code.PLUGIN_NOT_AVAILABLE, f"{_none_left(range_set)}: {usage}", _hint(store.directory))


@dataclass(frozen=True)
class Usage:
    """How full a range set is: addresses it can give, those in use, and of these the ones of containers gone."""

    size: int
    in_use: int
    stale: int

    def __str__(self) -> str:
        return f"{self.in_use} of {self.size} in use, {self.stale} of them by containers that are gone"

    @classmethod
    def count(cls, range_set: RangeSet, owners: Owners, cache: ResultCache) -> Usage:
        """Counts `owners`, the reservations of addresses of `range_set` alone."""
        in_use = stale = 0
        for owner, names in owners.items():
            in_use += len(names)
            attachment = attachment_of(owner)
            if cache.is_gone(attachment) and VALID_NAME.fullmatch(attachment.container_id):
                stale += len(names)
        return cls(range_set.size, in_use, stale)


def owners_in(range_set: RangeSet, owners: Owners) -> Owners:
    """Returns the reservations of addresses that the set can allocate."""
    holds, found = range_set.membership(), {}
    for owner, names in owners.items():
        held = [name for name in names if any(map(holds, values(range_set.version, (name,))))]
        if held:
            found[owner] = held
    return found


def attachment_of(owner: bytes) -> Attachment:
    """Returns the attachment in a reservation's content; a legacy one has no ifname."""
    container_id, _, ifname = fsdecode(owner).partition("\r\n")
    return Attachment(container_id, ifname)


def _take(
    held: Reservations,
    range_set: RangeSet,
    choice: Address,
    item: Range,
    attachment: Attachment,
    cache: Callable[[], ResultCache],
) -> None:
    if choice == item.gateway:
        raise CniError(Code.INTERNAL, f"requested ip {choice} is subnet's gateway")
    name, owner = str(choice), owner_of(*attachment)
    if held.reserve(name, owner):
        return
    if not _may_take_back(held, name, attachment, cache()):
        raise CniError(
            Code.INTERNAL,
            f"requested IP address {choice} is not available in range set {range_set}",
            _told(held, name),
        )
    _take_back(held, [(held.get_owner(name), name)])
    held.reserve(name, owner)


def _refuse_second(
    held: Reservations,
    range_set: RangeSet,
    owned: list[str],
    attachment: Attachment,
    cache: Callable[[], ResultCache],
) -> None:
    """Refuses an attachment that has an address of the set, unless it had that before it lost its namespace."""
    for name in owned:
        own = _parsed(name)
        if own is None or not range_set.range_of(own):
            continue
        if not _may_take_back(held, name, attachment, cache()):
            raise CniError(
                Code.INTERNAL,
                f"{own} has been allocated to {attachment.container_id}, duplicate allocation is not allowed",
                f"{_told(held, name)}; run DEL for this attachment before the next ADD",
            )
        _take_back(held, [(held.get_owner(name), name)])


def _next(
    held: Reservations, range_set: RangeSet, number: int, owner: bytes, cache: Callable[[], ResultCache]
) -> tuple[Address, Range]:
    last = _last(held, number, range_set)
    found = _search(held, range_set, last, owner)
    if found is None:
        owners = owners_in(range_set, held.scan())  # reading releases those that a crash left empty
        known = cache()
        _take_back(held, list(_left_over(owners, held.origin, held.directory, known)))
        found = _search(held, range_set, last, owner)
        if found is None:
            usage = Usage.count(range_set, owners, known)
            raise CniError(Code.INTERNAL, _none_left(range_set), f"{usage}; {_hint(held.directory)}")
    return found


def _may_take_back(held: Reservations, name: str, attachment: Attachment, cache: ResultCache) -> bool:
    """Tells whether `name` is of a container that a reboot ended, or this attachment's, which has lost its namespace.

    A legacy reservation, without ifname, is the attachment's if its container has no other interface that lives.
    """
    holder = held.get_owner(name)
    had = attachment_of(holder)
    own = had in (attachment, Attachment(attachment.container_id, ""))
    origin, returns = held.origin(holder, name), had == attachment
    return is_left_over(f"{held.directory}/{name}", had, origin, cache, boot.get_boot_time_ns(), returns=returns) or (
        own and cache.namespace_is_gone(had)
    )


def _left_over(owners: Owners, origins: Origins, directory: str, cache: ResultCache) -> Iterator[tuple[bytes, str]]:
    """Yields owner and name of the reservations whose containers a reboot has ended."""
    began_ns = boot.get_boot_time_ns()
    for owner, names in owners.items():
        attachment = attachment_of(owner)
        for name in names:
            if is_left_over(f"{directory}/{name}", attachment, origins(owner, name), cache, began_ns):
                yield owner, name


def _take_back(held: Reservations, left_over: list[tuple[bytes, str]]) -> None:
    for owner, name in left_over:
        held.release(name, owner)
    if left_over:
        print(
            f"host-local: took back {len(left_over)} address(es) of containers that are gone, in {held.directory}",
            file=sys.stderr,
        )


def _search(held: Reservations, range_set: RangeSet, last: int | None, owner: bytes) -> tuple[Address, Range] | None:
    """Reserves the first free candidate after `last`; None when there is none."""
    version = range_set.version
    taken: set[int] = set()
    looks = 0
    for value, item in range_set.candidates(last):
        if value in taken:
            continue
        name = ranges.text(version, value)
        # The first one is most often free; to make a file in vain takes longer than to look.
        if (not looks or held.is_free(name)) and held.reserve(name, owner):
            return ranges.address(version, value), item
        looks += 1
        if looks == _LOOKS:
            taken = held.list_used(version)
    return None


def _has_room(store: Store, number: int, range_set: RangeSet) -> bool:
    """Tells whether an address of the set is free, wherever; by looks into the directory without the lock."""
    version, last = range_set.version, _last(store, number, range_set)
    in_turn = (value for value, _ in islice(range_set.candidates(last), _NEXT))
    if any(store.is_free(ranges.text(version, value)) for value in chain(in_turn, range_set.spread(_ALL_OVER))):
        return True
    taken = store.list_used(version)
    return any(value not in taken for value, _ in range_set.candidates(last))


def _last(store: Store | Reservations, number: int, range_set: RangeSet) -> int | None:
    """Returns the address of the set's family that was given last, None when there is none."""
    last = _parsed(store.last_reserved(number))
    return int(last) if last is not None and last.version == range_set.version else None


def _parsed(text: str) -> Address | None:
    try:
        return parse_ip(text)
    except ValueError:
        return None


def _none_left(range_set: RangeSet) -> str:
    return f"no IP addresses available in range set: {range_set}"


def _hint(directory: str) -> str:
    """Returns the fix for a full range; no command removes a file, which may be the reservation of a running pod."""
    network = basename(directory)
    return (
        f"podwire ipam list {network} lists the addresses; podwire gc {network} releases those of containers that are "
        f"no longer running; if all are running, enlarge the range"
    )


def _told(held: Reservations, name: str) -> str:
    """Returns the path of a reservation, who has it, and since when."""
    path = f"{held.directory}/{name}"
    container_id, ifname = attachment_of(held.get_owner(name))
    who = f"{container_id} {ifname}".strip() or "nobody"
    try:
        age = _age(time.time() - lstat(path).st_mtime)
    except OSError:
        age = "an unknown time"
    return f"{path} has been held by {who} for {age}"


def _age(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} seconds"
