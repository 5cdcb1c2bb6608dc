"""The limits in the kernel: a token bucket on the host's end, another on an ifb that what the pod sends is led to.

One rule: everything is made in one send, so that no kill leaves a part; it is looked for before, and removed by what
is there, not by what was asked for.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial

from cni.address import format_mac
from cni.errors import all_of
from cni.result import Interface
from cni.undo import Undo
from cni.values import dataclass
from kernel import link, traffic
from kernel.errors import KernelError
from kernel.link import Link
from kernel.rtnl import Request, Socket
from kernel.teardown import delete_on_host
from kernel.traffic import Bucket, Filter, Qdisc
from plugins.bandwidth.owner import Owner, own
from plugins.bandwidth.subnets import Subnets, receiving, sending

# The index of an ifb tells the host's end to which it belongs: the kernel counts far below. All but the first are for
# the case that a leftover has it.
_INDEX_STEP = 100_000_000
_INDEX_BASES = range(1_000_000_000, 2_000_000_001, _INDEX_STEP)


@dataclass(frozen=True)
class Limits:
    """What there is of an attachment's limits: qdiscs and filters of the host's end, its ifbs, a name for a new one."""

    root: Qdisc | None
    place: Qdisc | None
    ifbs: tuple[Link, ...]
    filters: tuple[Filter, ...]
    free_name: str

    @property
    def redirects(self) -> list[Filter]:
        """The filters that lead everything to one of the ifbs, or to an interface that is gone; those of subnets."""
        targets = {0, *(item.index for item in self.ifbs)}
        return [item for item in self.filters if item.rule or (item.matches_all and item.target in targets)]


@dataclass(frozen=True)
class Wanted:
    """The limits of an ADD: None leaves that direction as it is; `subnets` says to and from where they hold."""

    ingress: Bucket | None
    egress: Bucket | None
    subnets: Subnets


def look(host: Socket, owner: Owner, outside: Link | None) -> Limits:
    """Returns what is there, of the ifbs only without the host's end; raises KernelError."""
    requests = [link.by_name(name) for name in owner.names]
    requests += [traffic.root(outside.index), traffic.place(outside.index)] if outside else []
    first, second, *qdiscs = host.get(*requests)
    named = [message and link.from_message(message) for message in (first, second)]
    root, place = (traffic.qdisc(message) for message in qdiscs or (None, None))
    filters = traffic.filters(host, outside.index) if outside and place else []
    ifbs = own(owner, named)
    if outside:  # without a pod there is no other interface of it either
        ifbs = [item for item in ifbs if item.alias or not _is_anothers(host, item, outside, filters)]
    free_name = owner.names[0] if named[0] is None else owner.names[1]
    return Limits(root, place, tuple(ifbs), tuple(filters), free_name)


def limit(host: Socket, owner: Owner, outside: Link, wanted: Wanted, undo: Undo) -> Interface | None:
    """Sets the limits in place of those of an earlier ADD; returns the ifb, if it takes one.

    Raises KernelError, with the cure where it is known.
    """
    found = look(host, owner, outside)
    if _remove(host, found, outside, wanted):
        found = look(host, owner, outside)
    undo.push("remove the limits", partial(remove, host, owner, outside, wanted, place_is_ours=not found.place))
    requests = receiving(outside.index, wanted.ingress, wanted.subnets) if wanted.ingress else []
    ifb = None
    if wanted.egress:
        ifb, mac, index = found.free_name, link.random_mac(), _free_index(host, outside)
        requests += [link.ifb(index, ifb, mac, outside.mtu), link.alias(index, owner.alias)]
        requests += [] if found.place else [traffic.ingress(outside.index)]
        requests += [traffic.tbf(index, wanted.egress), *sending(outside.index, index, wanted.subnets)]
    try:
        host.change(*requests)
    except KernelError as error:
        error.details = "; ".join(filter(None, (error.details, _cure(error, outside, found))))
        raise
    return Interface(ifb, format_mac(mac)) if ifb else None


def remove(
    host: Socket,
    owner: Owner,
    outside: Link | None,
    wanted: Wanted | None = None,
    *,
    place_is_ours: bool | None = None,
) -> None:
    """Removes the limits, of the directions that are `wanted` or of both; all is tried, then what failed is raised.

    First the way to the ifb, so that what the pod sends is not dropped. The place for filters is ours, unless told,
    when there is anything else of ours to do with it.
    """
    _remove(host, look(host, owner, outside), outside, wanted, place_is_ours=place_is_ours)


def _remove(
    host: Socket, found: Limits, outside: Link | None, wanted: Wanted | None, *, place_is_ours: bool | None = None
) -> bool:
    """Removes what was found, and tells whether there was anything."""
    gone: list[Request] = []
    ifbs = found.ifbs if wanted is None or wanted.egress else ()
    if outside and (wanted is None or wanted.egress):
        ours = bool(found.redirects or found.ifbs) if place_is_ours is None else place_is_ours
        gone += _way_deletions(outside, found, ours)
    if outside and (wanted is None or wanted.ingress) and found.root and found.root.is_shaper:
        gone.append(traffic.root_deletion(outside.index, found.root))
    all_of(partial(host.change, *gone), *(partial(delete_on_host, item, host) for item in ifbs))
    return bool(gone or ifbs)


def _way_deletions(outside: Link, found: Limits, place_is_ours: bool) -> list[Request]:
    """Returns how the way to the ifb goes: with the place for filters, with a whole priority, or by itself.

    The larger is taken where nothing of others is in it: the kernel may keep the emptied table of a priority.
    """
    ours = found.redirects
    is_ingress = found.place is not None and found.place.kind == traffic.INGRESS
    if is_ingress and place_is_ours and len(ours) == len(found.filters):
        return [traffic.ingress_deletion(outside.index)]
    shared = {item.table for item in set(found.filters).difference(ours)}
    whole = {item.info for item in ours if item.table not in shared}
    single = [traffic.filter_deletion(outside.index, item) for item in ours if item.info not in whole]
    return single + [traffic.priority_deletion(outside.index, info) for info in whole]


def _is_anothers(host: Socket, ifb: Link, outside: Link, filters: Sequence[Filter]) -> bool:
    """Tells whether an ifb without an owner's text is that of another interface of the container.

    It is asked of all veths, since that is rare: the reference made the ifb, and its filter on our interface is not
    there.
    """
    if any(item.target == ifb.index for item in filters):
        return False
    others = (item.index for item in link.every(host) if item.kind == outside.kind and item.index != outside.index)
    return any(item.target == ifb.index for index in others for item in traffic.filters(host, index))


def _free_index(host: Socket, outside: Link) -> int:
    """Returns an index for an ifb, which other requests of the same send must not mistake for another interface's."""
    indexes = (base + outside.index % _INDEX_STEP for base in _INDEX_BASES)
    return next((index for index in indexes if link.get(host, link.by_index(index)) == [None]), 0)


def _cure(error: KernelError, outside: Link, found: Limits) -> str:
    """Returns what to do about a refused request, "" where it is not known."""
    if error.errno == errno.EEXIST:
        look_at = f'tc qdisc show dev "{outside.name}"; ip link show dev "{found.free_name}"'
        return f'something else limits "{outside.name}" or has the ifb\'s name: {look_at}'
    if error.errno == errno.EINVAL and found.filters:
        return f'something else filters "{outside.name}": tc filter show dev "{outside.name}" ingress'
    if error.errno == errno.EOPNOTSUPP:
        return "limiting what a pod sends takes the kernel's module ifb: modprobe ifb"
    if error.errno == errno.ENOENT:
        return "limits take the kernel's modules sch_tbf, sch_ingress, cls_u32 and act_mirred, for subnets also sch_htb"
    return ""
