"""Traffic control: token bucket filters, ingress qdiscs, and filters that lead packets to another interface.

One rule: functions named after an object return a Request, a value to be sent; what is read of the kernel is a value,
too. Rates are bytes/s, sizes bytes, buckets ticks of 64 ns.
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
TICK_NS = 64  # of a bucket: PSCHED_SHIFT is 6 (net/pkt_sched.h, since Linux 2.6.31), and so says /proc/net/psched
NS_PER_S = 1_000_000_000
UINT32_MAX = (1 << 32) - 1
TBF, INGRESS, HTB = "tbf", "ingress", "htb"
# Of an HTB root and of filters by address, which anybody may have: by this number, "pw", ours are known.
HTB_HANDLE = 0x70770000
PASSED, LIMITED = HTB_HANDLE, HTB_HANDLE | 1  # class IDs: past the bucket; into it
RULES_MAX = 0x7FF  # of `classified`: from 0x800 on the kernel gives numbers

ROOT, _INGRESS_PARENT = 0xFFFFFFFF, 0xFFFFFFF1  # TC_H_ROOT, TC_H_INGRESS (linux/pkt_sched.h)
_LO = 1  # in every network namespace
_TBF_HANDLE, _INGRESS_HANDLE, _CLASS = 0x10000, 0xFFFF0000, 0x10001  # 1:, ffff:, 1:1
RECEIVED = 0xFFFFFFF2  # TC_H_MIN_INGRESS of ffff:, be that an ingress or a clsact qdisc
_NEW = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
# A deletion's: no such interface, qdisc or filter; a default, or somebody else's, in its place. The kernel leaves that.
_GONE = (errno.ENODEV, errno.ENOENT, errno.EINVAL)
TBF_QOPT = struct.Struct("=8xI12xIII")  # struct tc_tbf_qopt: of its rate only the bytes/s; limit, buffer, mtu
_ALL_FIRST = 1 << 16 | 0x0300  # priority 1, ETH_P_ALL in network byte order
_SELECTOR = struct.Struct("=BBBxHHhhI")  # struct tc_u32_sel: flags, of which 1 is "terminal", and the number of keys
_TABLE_SHIFT = 20  # of a u32 filter's handle (TC_U32_HTID, linux/pkt_cls.h)
_ANY = bytes(16)  # a key that any packet matches: nothing of it is looked at
_MIRRED = struct.Struct("=IIiiiiI")  # struct tc_mirred: index, capab, action, refcnt, bindcnt, eaction, ifindex
_STOLEN, _REDIRECT = 4, 1  # TC_ACT_STOLEN, TCA_EGRESS_REDIR


@dataclass(frozen=True)
class Bucket:
    """A token bucket filter: `rate` in bytes/s, `size` in ticks at that rate, the queue's `limit` in bytes."""

    rate: int
    size: int
    limit: int

    @property
    def held(self) -> int:
        """What it holds at most, in bytes."""
        return self.size * TICK_NS * self.rate // NS_PER_S


@dataclass(frozen=True)
class Qdisc:
    """A queueing discipline; `handle` is 0 for one that the kernel chose, `bucket` None for other kinds than TBF."""

    kind: str
    handle: int
    bucket: Bucket | None = None

    @property
    def is_shaper(self) -> bool:
        """Tells whether it is what `tbf` makes, and the reference, or `kernel.htb`."""
        return (self.kind, self.handle) in ((TBF, _TBF_HANDLE), (HTB, HTB_HANDLE))


@dataclass(frozen=True)
class Rule:
    """What a filter by address does: `selector` (struct tc_u32_sel with keys) says to which packets.

    `classid` is PASSED or LIMITED; `target` is the ifindex that they are redirected to, None for none.
    """

    selector: bytes
    classid: int
    target: int | None = None


@dataclass(frozen=True)
class Filter:
    """A filter of what an interface receives; `target` is the ifindex that it redirects to, 0 for one that is gone.

    `target` is None for one that does anything else. `matches_all` tells that no packet gets past it, as far as is
    known: it is in the chain where packets begin, and looks at nothing of them or is of a kind that is not read here.
    `rule` is that of one of ours by address.
    """

    handle: int
    info: int
    target: int | None = None
    matches_all: bool = False
    rule: Rule | None = None

    @property
    def table(self) -> tuple[int, int]:
        """The hash table in which a u32 filter is asked in its turn, by priority and protocol.

        The kernel tells those of other chains' and of a clsact qdisc's other direction, too, as if they were of the
        priority that was asked for; in the end the table tells which filters share it.
        """
        return self.info, self.handle >> _TABLE_SHIFT


def create_tbf_request(index: int, bucket: Bucket) -> Request:
    """Makes a token bucket filter, 1:, the root of an interface; refused with EEXIST when somebody set another root."""
    parms = TBF_QOPT.pack(min(bucket.rate, UINT32_MAX), bucket.limit, bucket.size, 0)
    options: Attributes = [("TCA_TBF_PARMS", parms)]
    if bucket.rate > UINT32_MAX:
        options.append(("TCA_TBF_RATE64", bucket.rate))
    return qdisc_request("create qdisc", RTM_NEWQDISC, index, (TBF, ROOT, _TBF_HANDLE), {"attrs": options})


def delete_root_request(index: int, own: Qdisc) -> Request:
    """Deletes the root of an interface, back to the kernel's default; absent is success, and another root stays."""
    return qdisc_request("delete qdisc", RTM_DELQDISC, index, (own.kind, ROOT, own.handle))


def create_ingress_request(index: int) -> Request:
    """Makes the place for filters of what an interface receives; refused with EEXIST when there is one."""
    return qdisc_request("create ingress qdisc", RTM_NEWQDISC, index, (INGRESS, _INGRESS_PARENT, _INGRESS_HANDLE), b"")


def delete_ingress_request(index: int) -> Request:
    """Deletes what `ingress` made, with all its filters; absent is success."""
    return qdisc_request("delete ingress qdisc", RTM_DELQDISC, index, (INGRESS, _INGRESS_PARENT, _INGRESS_HANDLE))


def selector(keys: Sequence[bytes]) -> bytes:
    """Returns what matches packets by all of `keys`, each a struct tc_u32_key (linux/pkt_cls.h)."""
    return _SELECTOR.pack(1, 0, len(keys), 0, 0, 0, 0, 0) + b"".join(keys)


def add_redirect_request(index: int, target: int) -> Request:
    """Leads all that an interface receives to the interface `target`, as if that one were to send it."""
    return _u32(index, RECEIVED, 0, Rule(selector([_ANY]), _CLASS, target))


def add_rule_requests(index: int, parent: int, rules: Sequence[Rule]) -> list[Request]:
    """Adds filters in their order and in front of `redirect`; `parent` is RECEIVED or a classful qdisc's handle.

    What is not redirected goes on: into its class, or, of what is received, as if there were no filter.
    """
    return [_u32(index, parent, number, rule) for number, rule in enumerate(rules, 1)]


def delete_filter_request(index: int, found: Filter) -> Request:
    """Deletes a filter; absent is success."""
    values = {"index": index, "parent": RECEIVED, "info": found.info, "handle": found.handle}
    kind: Attributes = [("TCA_KIND", "u32")]
    request = Request("delete filter", FilterMessage, RTM_DELTFILTER, NLM_F_ACK, values, kind, _GONE)
    return request._replace(details=partial(_of, index))


def delete_priority_request(index: int, info: int) -> Request:
    """Deletes all u32 filters of a priority, and its table, which the last filter's deletion may leave behind."""
    return delete_filter_request(index, Filter(0, info))


def get_root_request(index: int) -> Request:
    """Asks for an interface's root qdisc; no such interface is no error. `qdisc` reads the answer."""
    return get_qdisc_request(index, ROOT)


def get_ingress_request(index: int) -> Request:
    """Asks for an interface's ingress or clsact qdisc; none is no error. `qdisc` reads the answer."""
    return get_qdisc_request(index, _INGRESS_PARENT)


def qdisc_from_answer(message: DecodedMessage | None) -> Qdisc | None:
    """Returns the qdisc in an answer, None when there was none."""
    if message is None:
        return None
    kind, options = message.get_attributes(_OF_A_QDISC)
    return Qdisc(kind, message["handle"], _bucket(options) if kind == TBF else None)


def list_filters(socket: Socket, index: int, parent: int = RECEIVED) -> list[Filter]:
    """Returns the filters of what an interface receives, or of a qdisc, in the order in which they are asked.

    Raises KernelError.
    """
    return filters_from_answers(socket.dump(list_filters_request(index, parent)))


def list_filters_request(index: int, parent: int = RECEIVED) -> Request:
    """Asks for these filters; no such interface or place is no error. `listed` reads the answer."""
    values = {"index": index, "parent": parent}
    ignore = (errno.ENODEV, errno.EINVAL)  # no such interface; no such place, as newer kernels say it
    return Request("list filters", FilterMessage, RTM_GETTFILTER, NLM_F_DUMP, values, [], ignore)


def filters_from_answers(messages: Sequence[DecodedMessage]) -> list[Filter]:
    """Returns the filters in an answer, in its order."""
    return [found for message in messages if (found := _filter(message))]


def list_shaper_roots(socket: Socket) -> dict[int, Qdisc]:
    """Returns the root qdiscs of all interfaces that are shaped as we do it, by ifindex; raises KernelError."""
    found = {}
    for message in socket.dump(Request("list the qdiscs", QdiscMessage, RTM_GETQDISC, NLM_F_DUMP)):
        own = qdisc_from_answer(message)
        if own and own.is_shaper and message["parent"] == ROOT:
            found[message["index"]] = own
    return found


def probe_missing_features(socket: Socket, *further: str) -> list[str]:
    """Returns what the kernel lacks of what shaping takes: "ifb", "tbf" and `further` kinds of qdiscs.

    Told by requests that are refused in any case, for another reason where the part is there: nothing is made. Raises
    KernelError for who lacks the privilege.
    """
    made = link.create_ifb_request(0, "/", link.random_mac(), 0)
    asked = [("ifb", errno.EOPNOTSUPP, made._replace(description="create an ifb"))]
    for kind in (TBF, *further):
        unsaid = qdisc_request("create qdisc", RTM_NEWQDISC, _LO, (kind, ROOT, 0), {"attrs": []})
        # Replacing, so that a qdisc which lo may have is not the reason.
        asked.append((kind, errno.ENOENT, unsaid._replace(flags=_NEW | NLM_F_REPLACE)))
    found = []
    for name, absent, request in asked:
        try:
            socket.send(request)
        except KernelError as error:
            if error.errno == absent:
                found.append(name)
            elif error.errno == errno.EPERM:  # nothing was told, and nothing could be made
                raise
    return found


def qdisc_request(doing: str, kind: int, index: int, which: tuple[str, int, int], options: object = None) -> Request:
    """Returns a request for a qdisc or class (`kind` is RTM_*); `which` is its kind, parent and handle.

    One with options makes it, one without deletes it.
    """
    name, parent, handle = which
    flags = NLM_F_ACK
    ignore: tuple[int, ...] = _GONE
    attributes: Attributes = [("TCA_KIND", name)]
    if options is not None:
        flags, ignore = _NEW, ()
        attributes.append(("TCA_OPTIONS", options))
    values = {"index": index, "parent": parent, "handle": handle}
    return Request(doing, QdiscMessage, kind, flags, values, attributes, ignore, details=partial(_of, index, name))


def get_qdisc_request(index: int, parent: int, kind: int = RTM_GETQDISC, handle: int = 0) -> Request:
    """Asks for a qdisc by its parent, or with RTM_GETTCLASS for a class by its handle; none is no error."""
    values = {"index": index, "parent": parent, "handle": handle}
    ignore = (errno.ENOENT, errno.ENODEV, errno.EINVAL)
    # Without ECHO the answer goes to those who listen for news only.
    flags = NLM_F_ACK | NLM_F_ECHO
    return Request("look up a qdisc", QdiscMessage, kind, flags, values, [], ignore)


_OF_A_QDISC = attribute_specs(QdiscMessage, TCA_KIND="", TCA_OPTIONS=b"")
_OF_A_TBF = attribute_specs(TbfOptions, TCA_TBF_PARMS=b"", TCA_TBF_RATE64=0)
_OF_A_FILTER = attribute_specs(FilterMessage, TCA_KIND="", TCA_OPTIONS=b"", TCA_CHAIN=0)
_OF_A_U32 = attribute_specs(U32Options, TCA_U32_SEL=None, TCA_U32_CLASSID=None, TCA_U32_ACT=b"")
_FIRST_ACTION = attribute_specs(Actions, TCA_ACT_PRIO_1=b"")
_OF_AN_ACTION = attribute_specs(Action, TCA_ACT_KIND="", TCA_ACT_OPTIONS=b"")
_OF_A_MIRRED = attribute_specs(MirredOptions, TCA_MIRRED_PARMS=b"")


def _bucket(options: bytes) -> Bucket | None:
    parms, rate64 = get_nested_attributes(options, _OF_A_TBF)
    if len(parms) < TBF_QOPT.size:
        return None
    rate, limit, size, _ = TBF_QOPT.unpack_from(parms)
    return Bucket(rate64 or rate, size, limit)


def _u32(index: int, parent: int, number: int, rule: Rule) -> Request:
    """Returns the request for a filter of priority 1 for all protocols; the kernel gives a number instead of 0."""
    options: Attributes = [("TCA_U32_CLASSID", rule.classid), ("TCA_U32_SEL", rule.selector)]
    if rule.target is not None:
        parms = _MIRRED.pack(0, 0, _STOLEN, 0, 0, _REDIRECT, rule.target)
        mirred = {"attrs": [("TCA_MIRRED_PARMS", parms)]}
        action: Attributes = [("TCA_ACT_KIND", "mirred"), ("TCA_ACT_OPTIONS", mirred)]
        options.append(("TCA_U32_ACT", {"attrs": [("TCA_ACT_PRIO_1", {"attrs": action})]}))
    attributes: Attributes = [("TCA_KIND", "u32"), ("TCA_OPTIONS", {"attrs": options})]
    values = {"index": index, "parent": parent, "info": _ALL_FIRST, "handle": number}
    return Request("add filter", FilterMessage, RTM_NEWTFILTER, _NEW, values, attributes, details=partial(_of, index))


def _of(index: int, kind: str = "") -> str:
    """Returns what tells in words whose a qdisc or filter is: 'tbf of "veth3f2a"'."""
    try:
        name = f'"{stdlib_socket.if_indextoname(index)}"'
    except OSError:
        name = f"interface {index}"
    return f"of {name}" if kind in ("", INGRESS) else f"{kind} of {name}"


def _filter(message: DecodedMessage) -> Filter | None:
    """Returns the filter in a message, None for one that only tells of a table of them."""
    kind, options, chain = message.get_attributes(_OF_A_FILTER)
    if kind != "u32":
        return Filter(message["handle"], message["info"], matches_all=not chain) if options else None
    selector, classid, actions = get_nested_attributes(options, _OF_A_U32)
    if selector is None:
        return None
    target = _target(actions)
    rule = Rule(selector, classid, target) if classid in (PASSED, LIMITED) else None
    return Filter(message["handle"], message["info"], target, not chain and _matches_all(selector), rule)


def _target(actions: bytes) -> int | None:
    """Returns to which interface the first of a filter's actions redirects, None when it does anything else."""
    (action,) = get_nested_attributes(actions, _FIRST_ACTION)
    kind, options = get_nested_attributes(action, _OF_AN_ACTION)
    (parms,) = get_nested_attributes(options, _OF_A_MIRRED) if kind == "mirred" else (b"",)
    if len(parms) < _MIRRED.size:
        return None
    *_, does, index = _MIRRED.unpack_from(parms)
    return index if does == _REDIRECT else None


def _matches_all(selector: bytes) -> bool:
    keys = [selector[start : start + 16] for start in range(16, len(selector), 16)]
    return len(selector) >= 16 and selector[2] == len(keys) and not any(any(key[:4]) for key in keys)
