"""The limits in the kernel: a token bucket on the host veth, and another on an ifb for packets that the pod sends.

One rule: ADD creates all limits in one send, so that a killed process leaves no partial limits. Existing limits are
read first; which ones are removed depends on them, not on the configuration.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial

from cni.address import format_mac
from cni.errors import run_all
from cni.result import Interface
from kernel import link, modules, traffic
from kernel.errors import KernelError
from kernel.link import Link
from kernel.link_deletion import delete_on_host
from kernel.netns import Netns
from kernel.rtnl import Request, Socket
from kernel.traffic import Bucket, Filter, Qdisc
from kernel.wire import DecodedMessage
from plugins.bandwidth.ifb_owner import IfbOwner, select_ifbs
from plugins.bandwidth.subnets import Subnets, egress_requests, ingress_requests
from process.undo import Undo
from process.values import dataclass

# The ifindex of an ifb is computed from that of its host veth, far above those that the kernel assigns. The bases after
# the first are used if a stale ifb has the ifindex.
_INDEX_STEP = 100_000_000
_INDEX_BASES = range(1_000_000_000, 2_000_000_001, _INDEX_STEP)


@dataclass(frozen=True)
class Limits:
    """An attachment's existing limits: the host veth's qdiscs and filters, the ifbs, and a free name for a new ifb."""

    root: Qdisc | None
    ingress_qdisc: Qdisc | None
    ifbs: tuple[Link, ...]
    filters: tuple[Filter, ...]
    free_name: str

    @property
    def redirects(self) -> list[Filter]:
        """The filters for subnets, and those that redirect all packets to one of the ifbs or to a deleted interface."""
        targets = {0, *(item.index for item in self.ifbs)}
        return [item for item in self.filters if item.address_filter or (item.matches_all and item.target in targets)]


@dataclass(frozen=True)
class DesiredLimits:
    """The limits that an ADD sets: None does not change that direction; `subnets` selects the traffic to limit."""

    ingress: Bucket | None
    egress: Bucket | None
    subnets: Subnets


def default_ifb_index(host_veth: int) -> int:
    """Returns the ifindex of an ifb, unless another interface has it, computed from the ifindex of the host veth."""
    return _INDEX_BASES[0] + host_veth % _INDEX_STEP


def get_host_veth_and_limits(
    host: Socket,
    owner: IfbOwner,
    container_veth: Link | None,
    namespace: Netns,
    *reads: Request,
    lists_filters: bool = True,
) -> tuple[Link | None, Limits, list[DecodedMessage | None]]:
    """Returns the host veth of `container_veth`, the existing limits, and the answers to `reads`, from one send.

    The container veth reports the ifindex of its peer, so that no request has to wait for the peer's name. With
    `lists_filters` the filters are listed in the same send, which saves a round trip if there are any. Raises
    KernelError.
    """
    peer_requests = link.local_peer_requests(container_veth, namespace) if container_veth else []
    if not container_veth or not peer_requests:
        return None, get_limits(host, owner, None), []
    limit_requests = _limit_requests(owner.names, container_veth.iflink)
    listings = [traffic.list_filters_request(container_veth.iflink)] if lists_filters else []
    answers = host.get(*peer_requests, *limit_requests, *listings, *reads)
    limits_end = len(peer_requests) + len(limit_requests)
    host_veth = link.local_peer_from_answers(container_veth, namespace, answers[: len(peer_requests)])
    listing = answers[limits_end] if lists_filters else None
    limits = _limits(host, owner, host_veth, answers[len(peer_requests) : limits_end], listing)
    return host_veth, limits, answers[limits_end + len(listings) :]


def get_limits(host: Socket, owner: IfbOwner, host_veth: Link | None) -> Limits:
    """Returns the existing limits, without `host_veth` only the ifbs. Raises KernelError."""
    answers = host.get(*_limit_requests(owner.names, host_veth.index if host_veth else 0))
    return _limits(host, owner, host_veth, answers)


def set_limits(
    host: Socket,
    owner: IfbOwner,
    host_veth: Link,
    existing: Limits,
    desired: DesiredLimits,
    undo: Undo,
    *,
    index_is_free: bool = False,
) -> Interface | None:
    """Replaces the `existing` limits with the `desired` ones; returns the created ifb, None if it creates none.

    `index_is_free` states that no interface has the ifindex `default_ifb_index`. Raises KernelError, with a fix if one
    is known.
    """
    if remove_limits(host, host_veth, existing, desired):
        existing = get_limits(host, owner, host_veth)
    creates_ingress = not existing.ingress_qdisc
    undo.push("remove the limits", partial(_roll_back, host, owner, host_veth, desired, creates_ingress))
    requests = ingress_requests(host_veth.index, desired.ingress, desired.subnets) if desired.ingress else []
    ifb = None
    if desired.egress:
        ifb, mac = existing.free_name, link.random_mac()
        index = default_ifb_index(host_veth.index) if index_is_free else _get_free_index(host, host_veth)
        requests += [link.create_ifb_request(index, ifb, mac, host_veth.mtu)]
        requests += [link.set_alias_request(index, owner.alias)]
        requests += [traffic.create_ingress_request(host_veth.index)] if creates_ingress else []
        requests += [traffic.create_tbf_request(index, desired.egress)]
        requests += egress_requests(host_veth.index, index, desired.subnets)
    try:
        host.change(*requests)
    except KernelError as error:
        error.details = "; ".join(filter(None, (error.details, _fix(error, host_veth, existing, desired))))
        raise
    return Interface(ifb, format_mac(mac)) if ifb else None


def remove_limits(
    host: Socket,
    host_veth: Link | None,
    existing: Limits,
    desired: DesiredLimits | None = None,
    *,
    deletes_ingress: bool | None = None,
) -> bool:
    """Removes the limits of the directions set in `desired`, of both for None; returns whether any existed.

    Removes the redirect to the ifb before the ifb, so that packets from the pod are not dropped. `deletes_ingress`
    permits deleting the ingress qdisc; None permits it if the qdisc has one of podwire's redirects or the attachment
    has an ifb. Tries all steps, then raises the errors.
    """
    requests: list[Request] = []
    ifbs = existing.ifbs if desired is None or desired.egress else ()
    if host_veth and (desired is None or desired.egress):
        if deletes_ingress is None:
            deletes_ingress = bool(existing.redirects or existing.ifbs)
        requests += _delete_redirect_requests(host_veth, existing, deletes_ingress)
    if host_veth and (desired is None or desired.ingress) and existing.root and existing.root.is_shaper:
        requests.append(traffic.delete_root_request(host_veth.index, existing.root))
    if not requests and not ifbs:
        return False
    run_all(partial(host.change, *requests), *(partial(delete_on_host, item, host) for item in ifbs))
    return True


def _roll_back(host: Socket, owner: IfbOwner, host_veth: Link, desired: DesiredLimits, created_ingress: bool) -> None:
    existing = get_limits(host, owner, host_veth)
    remove_limits(host, host_veth, existing, desired, deletes_ingress=created_ingress)


def _limit_requests(names: tuple[str, str], host_veth: int) -> list[Request]:
    """Returns requests for the ifbs with these names and, if `host_veth` is an ifindex (not 0), for its qdiscs."""
    qdiscs = [traffic.get_root_request(host_veth), traffic.get_ingress_request(host_veth)] if host_veth else []
    return [*map(link.by_name_request, names), *qdiscs]


def _limits(
    host: Socket,
    owner: IfbOwner,
    host_veth: Link | None,
    answers: Sequence[DecodedMessage | None],
    listing: Sequence[DecodedMessage] | None = None,
) -> Limits:
    """Returns the limits from the answers to `_limit_requests`; lists the filters unless `listing` contains them."""
    links = [link.from_message(message) if message else None for message in answers[:2]]
    root, ingress_qdisc, filters = None, None, []
    if host_veth:  # without it the qdiscs belong to an interface that is not the pod's
        root, ingress_qdisc = map(traffic.qdisc_from_answer, answers[2:4])
        if ingress_qdisc:
            filters = (
                traffic.filters_from_answers(listing)
                if listing is not None
                else traffic.list_filters(host, host_veth.index)
            )
    ifbs = select_ifbs(owner, links)
    if host_veth:  # without it the container has no other interfaces either
        ifbs = [item for item in ifbs if item.alias or not _has_other_user(host, item, host_veth, filters)]
    return Limits(root, ingress_qdisc, tuple(ifbs), tuple(filters), owner.names[0 if links[0] is None else 1])


def _delete_redirect_requests(host_veth: Link, existing: Limits, deletes_ingress: bool) -> list[Request]:
    """Returns requests that delete podwire's filters: with the ingress qdisc, with their priority, or one by one.

    Deletes the largest unit that has no filters of other programs, since the kernel may keep a priority's empty table.
    """
    redirects = existing.redirects
    is_ingress = existing.ingress_qdisc is not None and existing.ingress_qdisc.kind == traffic.INGRESS
    if is_ingress and deletes_ingress and len(redirects) == len(existing.filters):
        return [traffic.delete_ingress_request(host_veth.index)]
    shared = {item.table for item in set(existing.filters).difference(redirects)}
    priorities = {item.info for item in redirects if item.table not in shared}
    single = [traffic.delete_filter_request(host_veth.index, item) for item in redirects if item.info not in priorities]
    return single + [traffic.delete_priority_request(host_veth.index, info) for info in priorities]


def _has_other_user(host: Socket, ifb: Link, host_veth: Link, filters: Sequence[Filter]) -> bool:
    """Returns whether an ifb without an alias belongs to another interface of the container.

    Lists the filters of all veths, but only if the reference plugin created the ifb and `filters`, those of
    `host_veth`, do not redirect to it, which is rare.
    """
    if any(item.target == ifb.index for item in filters):
        return False
    others = (
        item.index for item in link.list_all(host) if item.kind == host_veth.kind and item.index != host_veth.index
    )
    return any(item.target == ifb.index for index in others for item in traffic.list_filters(host, index))


def _get_free_index(host: Socket, host_veth: Link) -> int:
    """Returns an unused ifindex for an ifb, 0 if all are in use; the other requests of the send need it."""
    indexes = (base + host_veth.index % _INDEX_STEP for base in _INDEX_BASES)
    return next((index for index in indexes if link.get(host, link.by_index_request(index)) == [None]), 0)


def _fix(error: KernelError, host_veth: Link, existing: Limits, desired: DesiredLimits) -> str:
    """Returns the fix for a refused request, "" if none is known."""
    if error.errno == errno.EEXIST:
        commands = f'tc qdisc show dev "{host_veth.name}"; ip link show dev "{existing.free_name}"'
        return f'another program limits "{host_veth.name}" or has the ifb\'s name: {commands}'
    if error.errno == errno.EINVAL and existing.filters:
        return f'another program filters "{host_veth.name}": tc filter show dev "{host_veth.name}" ingress'
    if error.errno == errno.EOPNOTSUPP:
        return modules.explain_missing("ifb")
    if error.errno == errno.ENOENT:
        names = ["sch_tbf", *(["sch_htb"] if desired.subnets.networks else [])]
        names += ["sch_ingress", "cls_u32", "act_mirred"] if desired.egress else []
        return modules.explain_missing(*names)
    return ""
