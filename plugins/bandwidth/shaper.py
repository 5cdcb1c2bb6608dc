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
from kernel import link, traffic
from kernel.errors import KernelError
from kernel.link import Link
from kernel.link_deletion import delete_on_host
from kernel.netns import Netns
from kernel.rtnl import Request, Socket
from kernel.traffic import Bucket, Filter, Qdisc
from kernel.wire import DecodedMessage
from plugins.bandwidth.ifb_owner import Owner, select_ifbs
from plugins.bandwidth.subnets import Subnets, receiving, sending
from process.undo import Undo
from process.values import dataclass

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


def usual_index(outside: int) -> int:
    """Returns the index that an ifb gets unless it is taken, by the index of the host's end."""
    return _INDEX_BASES[0] + outside % _INDEX_STEP


def survey(
    host: Socket, owner: Owner, inside: Link | None, namespace: Netns, *further: Request, filters: bool = True
) -> tuple[Link | None, Limits, list[DecodedMessage | None]]:
    """Finds the host's end of `inside` and what is there, in one send; returns the answers to `further`, too.

    All of it goes by the index of which the pod's end tells. With `filters` these are asked for at once, which is
    quicker if there are any. Raises KernelError.
    """
    pair = link.local_peer_requests(inside, namespace) if inside else []
    if not inside or not pair:
        return None, look(host, owner, None), []
    asked = _asked(owner.names, inside.lower)
    listings = [traffic.list_filters_request(inside.lower)] if filters else []
    answers = host.get(*pair, *asked, *listings, *further)
    end = len(pair) + len(asked)
    outside = link.local_peer_from_answers(inside, namespace, answers[: len(pair)])
    listing = answers[end] if filters else None
    limits = _limits(host, owner, outside, answers[len(pair) : end], listing)
    return outside, limits, answers[end + len(listings) :]


def look(host: Socket, owner: Owner, outside: Link | None) -> Limits:
    """Returns what is there, of the ifbs only without the host's end; raises KernelError."""
    return _limits(host, owner, outside, host.get(*_asked(owner.names, outside.index if outside else 0)))


def limit(
    host: Socket, owner: Owner, outside: Link, found: Limits, wanted: Wanted, undo: Undo, *, index_is_free: bool = False
) -> Interface | None:
    """Sets the limits in place of those of an earlier ADD; returns the ifb, if it takes one.

    `index_is_free` tells that of `usual_index`. Raises KernelError, with the cure where it is known.
    """
    if remove(host, outside, found, wanted):
        found = look(host, owner, outside)
    undo.push("remove the limits", partial(_retract, host, owner, outside, wanted, place_is_ours=not found.place))
    requests = receiving(outside.index, wanted.ingress, wanted.subnets) if wanted.ingress else []
    ifb = None
    if wanted.egress:
        ifb, mac = found.free_name, link.random_mac()
        index = usual_index(outside.index) if index_is_free else _free_index(host, outside)
        requests += [link.create_ifb_request(index, ifb, mac, outside.mtu), link.set_alias_request(index, owner.alias)]
        requests += [] if found.place else [traffic.create_ingress_request(outside.index)]
        requests += [traffic.create_tbf_request(index, wanted.egress), *sending(outside.index, index, wanted.subnets)]
    try:
        host.change(*requests)
    except KernelError as error:
        error.details = "; ".join(filter(None, (error.details, _cure(error, outside, found))))
        raise
    return Interface(ifb, format_mac(mac)) if ifb else None


def remove(
    host: Socket,
    outside: Link | None,
    found: Limits,
    wanted: Wanted | None = None,
    *,
    place_is_ours: bool | None = None,
) -> bool:
    """Removes the limits, of the directions that are `wanted` or of both, and tells whether there were any.

    First the way to the ifb, so that what the pod sends is not dropped. The place for filters is ours, unless told,
    when there is anything else of ours to do with it. All is tried, then what failed is raised.
    """
    gone: list[Request] = []
    ifbs = found.ifbs if wanted is None or wanted.egress else ()
    if outside and (wanted is None or wanted.egress):
        ours = bool(found.redirects or found.ifbs) if place_is_ours is None else place_is_ours
        gone += _way_deletions(outside, found, ours)
    if outside and (wanted is None or wanted.ingress) and found.root and found.root.is_shaper:
        gone.append(traffic.delete_root_request(outside.index, found.root))
    if not gone and not ifbs:  # as before most ADDs
        return False
    all_of(partial(host.change, *gone), *(partial(delete_on_host, item, host) for item in ifbs))
    return True


def _retract(host: Socket, owner: Owner, outside: Link, wanted: Wanted, *, place_is_ours: bool) -> None:
    remove(host, outside, look(host, owner, outside), wanted, place_is_ours=place_is_ours)


def _asked(names: tuple[str, str], outside: int) -> list[Request]:
    """Asks for the ifbs of the owner's names, and, if `outside` is an ifindex, for the qdiscs there."""
    of_outside = [traffic.get_root_request(outside), traffic.get_ingress_request(outside)] if outside else []
    return [*map(link.by_name_request, names), *of_outside]


def _limits(
    host: Socket,
    owner: Owner,
    outside: Link | None,
    answers: Sequence[DecodedMessage | None],
    listing: Sequence[DecodedMessage] | None = None,
) -> Limits:
    """Returns what the answers to `_asked` say, and the `listing` of filters, which is requested unless given."""
    named = [link.from_message(message) if message else None for message in answers[:2]]
    root, place, filters = None, None, []
    if outside:  # else those are the qdiscs of somebody else
        root, place = map(traffic.qdisc_from_answer, answers[2:4])
        if place:
            filters = (
                traffic.filters_from_answers(listing)
                if listing is not None
                else traffic.list_filters(host, outside.index)
            )
    ifbs = select_ifbs(owner, named)
    if outside:  # without a pod there is no other interface of it either
        ifbs = [item for item in ifbs if item.alias or not _is_anothers(host, item, outside, filters)]
    return Limits(root, place, tuple(ifbs), tuple(filters), owner.names[0 if named[0] is None else 1])


def _way_deletions(outside: Link, found: Limits, place_is_ours: bool) -> list[Request]:
    """Returns how the way to the ifb goes: with the place for filters, with a whole priority, or by itself.

    The larger is taken where nothing of others is in it: the kernel may keep the emptied table of a priority.
    """
    ours = found.redirects
    is_ingress = found.place is not None and found.place.kind == traffic.INGRESS
    if is_ingress and place_is_ours and len(ours) == len(found.filters):
        return [traffic.delete_ingress_request(outside.index)]
    shared = {item.table for item in set(found.filters).difference(ours)}
    whole = {item.info for item in ours if item.table not in shared}
    single = [traffic.delete_filter_request(outside.index, item) for item in ours if item.info not in whole]
    return single + [traffic.delete_priority_request(outside.index, info) for info in whole]


def _is_anothers(host: Socket, ifb: Link, outside: Link, filters: Sequence[Filter]) -> bool:
    """Tells whether an ifb without an owner's text is that of another interface of the container.

    It is asked of all veths, since that is rare: the reference made the ifb, and its filter on our interface is not
    there.
    """
    if any(item.target == ifb.index for item in filters):
        return False
    others = (item.index for item in link.list_all(host) if item.kind == outside.kind and item.index != outside.index)
    return any(item.target == ifb.index for index in others for item in traffic.list_filters(host, index))


def _free_index(host: Socket, outside: Link) -> int:
    """Returns an index for an ifb, which other requests of the same send must not mistake for another interface's."""
    indexes = (base + outside.index % _INDEX_STEP for base in _INDEX_BASES)
    return next((index for index in indexes if link.get(host, link.by_index_request(index)) == [None]), 0)


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
