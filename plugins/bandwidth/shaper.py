"""The limits in the kernel: a token bucket on the host's end, another on an ifb that what the pod sends is led to.

One rule: everything is made in one send, so that no kill leaves a part; it is looked for before, and removed by what
is there, not by what was asked for.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cni.address import format_mac
from cni.errors import all_of
from cni.result import Interface
from cni.undo import Undo
from kernel import link, traffic
from kernel.errors import KernelError
from kernel.link import Link
from kernel.rtnl import Socket
from kernel.teardown import delete_on_host
from kernel.traffic import Bucket, Filter, Qdisc
from plugins.bandwidth.owner import Owner, own

# The index of an ifb tells the host's end to which it belongs: the kernel counts far below. The second is for the case
# that a leftover has the first.
_INDEX_BASES = (1_000_000_000, 1_500_000_000)


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
        """The filters that lead everything to one of the ifbs, or to an interface that is gone."""
        targets = {0, *(item.index for item in self.ifbs)}
        return [item for item in self.filters if item.matches_all and item.target in targets]

    @property
    def any(self) -> bool:
        """Tells whether there is anything."""
        return bool(self.ifbs or self.redirects or (self.root and self.root.is_shaper))


def look(host: Socket, owner: Owner, outside: Link | None) -> Limits:
    """Returns what is there, of the ifbs only without the host's end; raises KernelError."""
    requests = [link.by_name(name) for name in owner.names]
    requests += [traffic.root(outside.index), traffic.place(outside.index)] if outside else []
    first, second, *qdiscs = host.get(*requests)
    named = [message and link.from_message(message) for message in (first, second)]
    root, place = (traffic.qdisc(message) for message in qdiscs or (None, None))
    filters = traffic.filters(host, outside.index) if outside and place else []
    free_name = owner.names[0] if named[0] is None else owner.names[1]
    return Limits(root, place, tuple(own(owner, named)), tuple(filters), free_name)


def limit(
    host: Socket, owner: Owner, outside: Link, ingress: Bucket | None, egress: Bucket | None, undo: Undo
) -> Interface | None:
    """Sets the limits in place of those of an earlier ADD; returns the ifb, if it takes one.

    Raises KernelError, with the cure where it is known.
    """
    found = look(host, owner, outside)
    if found.any:
        remove(host, owner, outside)
        found = look(host, owner, outside)
    undo.push("remove the limits", partial(remove, host, owner, outside))
    requests = [traffic.tbf(outside.index, ingress)] if ingress else []
    ifb = None
    if egress:
        ifb, mac, index = found.free_name, link.random_mac(), _free_index(host, outside)
        requests += [link.ifb(index, ifb, mac, outside.mtu), link.alias(index, owner.alias)]
        requests += [] if found.place else [traffic.ingress(outside.index)]
        requests += [traffic.tbf(index, egress), traffic.redirect(outside.index, index)]
    try:
        host.change(*requests)
    except KernelError as error:
        error.details = "; ".join(filter(None, (error.details, _cure(error, outside))))
        raise
    return Interface(ifb, format_mac(mac)) if ifb else None


def remove(host: Socket, owner: Owner, outside: Link | None) -> None:
    """Removes the limits, as far as they are there; all is tried, then what failed is raised.

    First the way to the ifb, so that what the pod sends is not dropped; and the place for filters only when no filter
    of others is there.
    """
    found = look(host, owner, outside)
    steps: list[Callable[[], None]] = []
    if outside:
        gone = [traffic.filter_deletion(outside.index, item) for item in found.redirects]
        if found.place and found.place.kind == traffic.INGRESS and len(gone) == len(found.filters):
            gone = [traffic.ingress_deletion(outside.index)]
        if found.root and found.root.is_shaper:
            gone.append(traffic.tbf_deletion(outside.index))
        steps.append(partial(host.change, *gone))
    all_of(*steps, *(partial(delete_on_host, item, host) for item in found.ifbs))


def _free_index(host: Socket, outside: Link) -> int:
    """Returns an index for an ifb, which other requests of the same send must not mistake for another interface's."""
    indexes = [base + outside.index for base in _INDEX_BASES]
    return next((index for index in indexes if link.get(host, link.by_index(index)) == [None]), 0)


def _cure(error: KernelError, outside: Link) -> str:
    """Returns what to do about a refused request, "" where it is not known."""
    if error.errno == errno.EEXIST:
        return f'something else limits or filters "{outside.name}": tc qdisc show dev "{outside.name}"'
    if error.errno == errno.EOPNOTSUPP:
        return "limiting what a pod sends takes the kernel's module ifb: modprobe ifb"
    if error.errno == errno.ENOENT:
        return "limits take the kernel's modules sch_tbf, sch_ingress, cls_u32 and act_mirred"
    return ""
