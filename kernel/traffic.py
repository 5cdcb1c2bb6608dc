"""Traffic control: token bucket filters, ingress qdiscs, and filters that redirect packets to another interface.

*_request functions return a Request and do no I/O. Rates are in bytes/s, sizes in bytes, bucket sizes in ticks of
64 ns.
"""

from __future__ import annotations

import errno
import socket as stdlib_socket
import struct
from collections.abc import Sequence
from functools import partial

from kernel import link
from kernel.codec_traffic import Action, Actions, FilterMessage, MirredOptions, QdiscMessage, TbfOptions, U32Options
from kernel.errors import KernelError
from kernel.rtnl import (
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_ECHO,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    Request,
    Socket,
)
from kernel.wire import Attributes, DecodedMessage, attribute_specs, get_nested_attributes
from process.values import dataclass

RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 44, 45, 46
TICK_NS = 64  # PSCHED_SHIFT is 6 (net/pkt_sched.h, since Linux 2.6.31); /proc/net/psched reports it, too
NS_PER_S = 1_000_000_000
UINT32_MAX = (1 << 32) - 1
TBF, INGRESS, HTB = "tbf", "ingress", "htb"
# The handle, "pw", that identifies podwire's HTB root and filters by address; other programs may add their own.
HTB_HANDLE = 0x70770000
PASSED, LIMITED = HTB_HANDLE, HTB_HANDLE | 1  # class IDs: past the bucket; into it
ADDRESS_FILTERS_MAX = 0x7FF  # filters of one interface: from 0x800 on, the kernel numbers filters by itself

ROOT, _INGRESS_PARENT = 0xFFFFFFFF, 0xFFFFFFF1  # TC_H_ROOT, TC_H_INGRESS (linux/pkt_sched.h)
_LO = 1  # the ifindex of lo in every network namespace
_TBF_HANDLE, _INGRESS_HANDLE, _CLASS = 0x10000, 0xFFFF0000, 0x10001  # 1:, ffff:, 1:1
RECEIVED = 0xFFFFFFF2  # TC_H_MIN_INGRESS of ffff:, which is an ingress or a clsact qdisc
_NEW = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
# A deletion succeeds if there is no such interface, qdisc or filter, or another one in its place, which stays.
_GONE = (errno.ENODEV, errno.ENOENT, errno.EINVAL)
TBF_QOPT = struct.Struct("=8xI12xIII")  # struct tc_tbf_qopt: bytes/s of the rate, limit, buffer, mtu
_ALL_FIRST = 1 << 16 | 0x0300  # priority 1, ETH_P_ALL in network byte order
_SELECTOR = struct.Struct("=BBBxHHhhI")  # struct tc_u32_sel: flags, of which 1 is "terminal", and the number of keys
_TABLE_SHIFT = 20  # of a u32 filter's handle (TC_U32_HTID, linux/pkt_cls.h)
_ANY = bytes(16)  # a key that matches any packet: its mask is 0
_MIRRED = struct.Struct("=IIiiiiI")  # struct tc_mirred: index, capab, action, refcnt, bindcnt, eaction, ifindex
_STOLEN, _REDIRECT = 4, 1  # TC_ACT_STOLEN, TCA_EGRESS_REDIR


@dataclass(frozen=True)
class Bucket:
    """A token bucket filter: `rate` in bytes/s, `size` as the ticks it takes to fill, the queue's `limit` in bytes."""

    rate: int
    size: int
    limit: int

    @property
    def capacity(self) -> int:
        """The capacity of the bucket, in bytes."""
        return self.size * TICK_NS * self.rate // NS_PER_S


@dataclass(frozen=True)
class Qdisc:
    """A queueing discipline; `handle` is 0 for the kernel's default, `bucket` None for kinds other than TBF."""

    kind: str
    handle: int
    bucket: Bucket | None = None

    @property
    def is_shaper(self) -> bool:
        """Whether create_tbf_request(), kernel.htb or the reference plugins create this qdisc."""
        return (self.kind, self.handle) in ((TBF, _TBF_HANDLE), (HTB, HTB_HANDLE))


@dataclass(frozen=True)
class AddressFilter:
    """A filter by address: assigns the packets that `selector` (struct tc_u32_sel with keys) matches to a class.

    `classid` is PASSED or LIMITED; `target` is the ifindex to which the packets are redirected, or None.
    """

    selector: bytes
    classid: int
    target: int | None = None


@dataclass(frozen=True)
class Filter:
    """A filter on the packets that an interface receives.

    `target` is the ifindex to which it redirects, 0 for a deleted interface, None for other actions. If `matches_all`,
    later filters get no packets: it is in the first chain and matches every packet. A filter of another kind than u32
    is not decoded, and counts as matching all. `address_filter` is set for podwire's filters by address.
    """

    handle: int
    info: int
    target: int | None = None
    matches_all: bool = False
    address_filter: AddressFilter | None = None

    @property
    def table(self) -> tuple[int, int]:
        """The priority and protocol, and the hash table, of a u32 filter.

        A list from the kernel may contain filters of other chains, or of the other direction of a clsact qdisc, with
        the same priority; only the hash table distinguishes them.
        """
        return self.info, self.handle >> _TABLE_SHIFT


def create_tbf_request(index: int, bucket: Bucket) -> Request:
    """Returns a request that makes a token bucket filter, 1:, the root qdisc; EEXIST when another root was set."""
    parms = TBF_QOPT.pack(min(bucket.rate, UINT32_MAX), bucket.limit, bucket.size, 0)
    options: Attributes = [("TCA_TBF_PARMS", parms)]
    if bucket.rate > UINT32_MAX:
        options.append(("TCA_TBF_RATE64", bucket.rate))
    return qdisc_request("create qdisc", RTM_NEWQDISC, index, (TBF, ROOT, _TBF_HANDLE), {"attrs": options})


def delete_root_request(index: int, root: Qdisc) -> Request:
    """Returns a request that restores the default root qdisc; a missing root is success, another one stays."""
    return qdisc_request("delete qdisc", RTM_DELQDISC, index, (root.kind, ROOT, root.handle))


def create_ingress_request(index: int) -> Request:
    """Returns a request that creates the qdisc for filters on received packets; EEXIST when there is one."""
    return qdisc_request("create ingress qdisc", RTM_NEWQDISC, index, (INGRESS, _INGRESS_PARENT, _INGRESS_HANDLE), b"")


def delete_ingress_request(index: int) -> Request:
    """Returns a request that deletes the ingress qdisc with all its filters; a missing one is success."""
    return qdisc_request("delete ingress qdisc", RTM_DELQDISC, index, (INGRESS, _INGRESS_PARENT, _INGRESS_HANDLE))


def selector(keys: Sequence[bytes]) -> bytes:
    """Returns a struct tc_u32_sel that matches all of `keys`, each a struct tc_u32_key (linux/pkt_cls.h)."""
    return _SELECTOR.pack(1, 0, len(keys), 0, 0, 0, 0, 0) + b"".join(keys)


def add_redirect_request(index: int, target: int) -> Request:
    """Returns a request for a filter that redirects all packets received by interface `index` to interface `target`.

    `target` transmits them.
    """
    return _u32(index, RECEIVED, 0, AddressFilter(selector([_ANY]), _CLASS, target))


def add_filter_requests(index: int, parent: int, filters: Sequence[AddressFilter]) -> list[Request]:
    """Returns requests that add filters in order; they are evaluated before the one of add_redirect_request().

    `parent` is RECEIVED or the handle of a classful qdisc. A packet that a filter does not redirect enters the class of
    the filter; a received packet has no class and continues as without a filter.
    """
    return [_u32(index, parent, number, address_filter) for number, address_filter in enumerate(filters, 1)]


def delete_filter_request(index: int, doomed: Filter) -> Request:
    """Returns a request that deletes a filter; a missing one is success."""
    values = {"index": index, "parent": RECEIVED, "info": doomed.info, "handle": doomed.handle}
    kind: Attributes = [("TCA_KIND", "u32")]
    request = Request("delete filter", FilterMessage, RTM_DELTFILTER, NLM_F_ACK, values, kind, _GONE)
    return request._replace(details=partial(_describe_target, index))


def delete_priority_request(index: int, info: int) -> Request:
    """Returns a request that deletes all u32 filters of a priority, and its hash table, even if it has no filter."""
    return delete_filter_request(index, Filter(0, info))


def get_root_request(index: int) -> Request:
    """Returns a request for an interface's root qdisc, for qdisc_from_answer(); a missing interface is no error."""
    return get_qdisc_request(index, ROOT)


def get_ingress_request(index: int) -> Request:
    """Returns a request for the ingress or clsact qdisc, for qdisc_from_answer(); a missing one is no error."""
    return get_qdisc_request(index, _INGRESS_PARENT)


def qdisc_from_answer(message: DecodedMessage | None) -> Qdisc | None:
    """Returns the qdisc in an answer, None without an answer."""
    if message is None:
        return None
    kind, options = message.get_attributes(_QDISC_SPECS)
    return Qdisc(kind, message["handle"], _bucket(options) if kind == TBF else None)


def list_filters(socket: Socket, index: int, parent: int = RECEIVED) -> list[Filter]:
    """Returns the filters on received packets, or of the qdisc `parent`, in the order of their evaluation.

    Raises KernelError.
    """
    return filters_from_answers(socket.dump(list_filters_request(index, parent)))


def list_filters_request(index: int, parent: int = RECEIVED) -> Request:
    """Returns the dump request of list_filters(); a missing interface or qdisc is no error."""
    values = {"index": index, "parent": parent}
    ignore = (errno.ENODEV, errno.EINVAL)  # no such interface; no such qdisc, on newer kernels
    return Request("list filters", FilterMessage, RTM_GETTFILTER, NLM_F_DUMP, values, [], ignore)


def filters_from_answers(messages: Sequence[DecodedMessage]) -> list[Filter]:
    """Returns the filters in the answers to list_filters_request(), in their order."""
    return [entry for message in messages if (entry := _filter(message))]


def list_qdiscs_request() -> Request:
    """Returns the dump request for the qdiscs of all interfaces."""
    return Request("list the qdiscs", QdiscMessage, RTM_GETQDISC, NLM_F_DUMP)


def list_shaper_roots(socket: Socket) -> dict[int, Qdisc]:
    """Returns the root qdiscs that are shapers (Qdisc.is_shaper) by ifindex; raises KernelError."""
    by_index = {}
    for message in socket.dump(list_qdiscs_request()):
        root = qdisc_from_answer(message)
        if root and root.is_shaper and message["parent"] == ROOT:
            by_index[message["index"]] = root
    return by_index


def list_dropping_filters(socket: Socket, index: int, parent: int) -> list[str]:
    """Returns the kinds of an interface's filters whose action is to drop, or "bpf" for a program; raises KernelError.

    The action is found by the bytes of its attribute, as each kind of filter has it in another place.
    """
    kinds = []
    for message in socket.dump(list_filters_request(index, parent)):
        kind, options, _ = message.get_attributes(_FILTER_SPECS)
        if kind == "bpf" or any(mark in options for mark in _SHOTS):
            kinds.append(kind)
    return kinds


def probe_missing_features(socket: Socket, *further: str) -> list[str]:
    """Returns the features that the kernel lacks: of "ifb", "tbf" and the kinds of qdiscs in `further`.

    Probes with requests that always fail; the errno shows whether the feature exists. Raises KernelError (EPERM)
    without the privilege to create them.
    """
    ifb = link.create_ifb_request(0, "/", link.random_mac(), 0)
    probes = [("ifb", errno.EOPNOTSUPP, ifb._replace(description="create an ifb"))]
    for kind in (TBF, *further):
        incomplete = qdisc_request("create qdisc", RTM_NEWQDISC, _LO, (kind, ROOT, 0), {"attrs": []})
        # With REPLACE, the request does not fail because lo has a qdisc.
        probes.append((kind, errno.ENOENT, incomplete._replace(flags=_NEW | NLM_F_REPLACE)))
    missing = []
    for name, absent, request in probes:
        try:
            socket.send(request)
        except KernelError as error:
            if error.errno == absent:
                missing.append(name)
            elif error.errno == errno.EPERM:  # shows nothing about the feature
                raise
    return missing


def qdisc_request(
    description: str, kind: int, index: int, which: tuple[str, int, int], options: object = None
) -> Request:
    """Returns a request that creates a qdisc or class, or without `options` deletes it.

    `kind` is RTM_*; `which` is the kind ("tbf"), parent and handle of the qdisc or class.
    """
    name, parent, handle = which
    flags = NLM_F_ACK
    ignore: tuple[int, ...] = _GONE
    attributes: Attributes = [("TCA_KIND", name)]
    if options is not None:
        flags, ignore = _NEW, ()
        attributes.append(("TCA_OPTIONS", options))
    values = {"index": index, "parent": parent, "handle": handle}
    return Request(
        description,
        QdiscMessage,
        kind,
        flags,
        values,
        attributes,
        ignore,
        details=partial(_describe_target, index, name),
    )


def get_qdisc_request(index: int, parent: int, kind: int = RTM_GETQDISC, handle: int = 0) -> Request:
    """Returns a request for a qdisc by its parent, or for a class by its handle (`kind` RTM_GETTCLASS).

    A missing one is no error.
    """
    values = {"index": index, "parent": parent, "handle": handle}
    ignore = (errno.ENOENT, errno.ENODEV, errno.EINVAL)
    # Without ECHO the kernel sends the answer to multicast subscribers only.
    flags = NLM_F_ACK | NLM_F_ECHO
    return Request("look up a qdisc", QdiscMessage, kind, flags, values, [], ignore)


# TCA_GACT_PARMS: struct tc_gact (linux/tc_act/tc_gact.h) begins with index, capab and action; the kernel numbers
# actions from 1, and TC_ACT_SHOT is 2.
_SHOTS = tuple(struct.pack("=HHIIi", 24, 2, index, 0, 2) for index in range(1, 256))
_QDISC_SPECS = attribute_specs(QdiscMessage, TCA_KIND="", TCA_OPTIONS=b"")
_TBF_SPECS = attribute_specs(TbfOptions, TCA_TBF_PARMS=b"", TCA_TBF_RATE64=0)
_FILTER_SPECS = attribute_specs(FilterMessage, TCA_KIND="", TCA_OPTIONS=b"", TCA_CHAIN=0)
_U32_SPECS = attribute_specs(U32Options, TCA_U32_SEL=None, TCA_U32_CLASSID=None, TCA_U32_ACT=b"")
_FIRST_ACTION_SPECS = attribute_specs(Actions, TCA_ACT_PRIO_1=b"")
_ACTION_SPECS = attribute_specs(Action, TCA_ACT_KIND="", TCA_ACT_OPTIONS=b"")
_MIRRED_SPECS = attribute_specs(MirredOptions, TCA_MIRRED_PARMS=b"")


def _bucket(options: bytes) -> Bucket | None:
    parms, rate64 = get_nested_attributes(options, _TBF_SPECS)
    if len(parms) < TBF_QOPT.size:
        return None
    rate, limit, size, _ = TBF_QOPT.unpack_from(parms)
    return Bucket(rate64 or rate, size, limit)


def _u32(index: int, parent: int, number: int, address_filter: AddressFilter) -> Request:
    """Returns a request that adds a filter of priority 1 for all protocols; for `number` 0 the kernel chooses one."""
    options: Attributes = [("TCA_U32_CLASSID", address_filter.classid), ("TCA_U32_SEL", address_filter.selector)]
    if address_filter.target is not None:
        parms = _MIRRED.pack(0, 0, _STOLEN, 0, 0, _REDIRECT, address_filter.target)
        mirred = {"attrs": [("TCA_MIRRED_PARMS", parms)]}
        action: Attributes = [("TCA_ACT_KIND", "mirred"), ("TCA_ACT_OPTIONS", mirred)]
        options.append(("TCA_U32_ACT", {"attrs": [("TCA_ACT_PRIO_1", {"attrs": action})]}))
    attributes: Attributes = [("TCA_KIND", "u32"), ("TCA_OPTIONS", {"attrs": options})]
    values = {"index": index, "parent": parent, "info": _ALL_FIRST, "handle": number}
    return Request(
        "add filter", FilterMessage, RTM_NEWTFILTER, _NEW, values, attributes, details=partial(_describe_target, index)
    )


def _describe_target(index: int, kind: str = "") -> str:
    """Returns the words for a qdisc or filter and its interface in the log of changes: 'tbf of "veth3f2a"'."""
    try:
        name = f'"{stdlib_socket.if_indextoname(index)}"'
    except OSError:
        name = f"interface {index}"
    return f"of {name}" if kind in ("", INGRESS) else f"{kind} of {name}"


def _filter(message: DecodedMessage) -> Filter | None:
    """Returns the filter in a message, None for a message about a hash table."""
    kind, options, chain = message.get_attributes(_FILTER_SPECS)
    if kind != "u32":
        return Filter(message["handle"], message["info"], matches_all=not chain) if options else None
    selector, classid, actions = get_nested_attributes(options, _U32_SPECS)
    if selector is None:
        return None
    target = _target(actions)
    address_filter = AddressFilter(selector, classid, target) if classid in (PASSED, LIMITED) else None
    return Filter(message["handle"], message["info"], target, not chain and _matches_all(selector), address_filter)


def _target(actions: bytes) -> int | None:
    """Returns the ifindex to which a filter's first action redirects, None for other actions."""
    (action,) = get_nested_attributes(actions, _FIRST_ACTION_SPECS)
    kind, options = get_nested_attributes(action, _ACTION_SPECS)
    (parms,) = get_nested_attributes(options, _MIRRED_SPECS) if kind == "mirred" else (b"",)
    if len(parms) < _MIRRED.size:
        return None
    *_, action_kind, index = _MIRRED.unpack_from(parms)
    return index if action_kind == _REDIRECT else None


def _matches_all(selector: bytes) -> bool:
    keys = [selector[start : start + 16] for start in range(16, len(selector), 16)]
    return len(selector) >= 16 and selector[2] == len(keys) and not any(any(key[:4]) for key in keys)
