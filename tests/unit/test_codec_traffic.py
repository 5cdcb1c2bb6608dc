"""Traffic control's messages against pyroute2's full classes, as test_codec.py compares those of links.

Its full classes decode C structs; podwire's return them as bytes, which kernel.traffic packs and unpacks.
"""

import importlib
import struct
from ipaddress import ip_network
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernel import htb, queues, traffic
from kernel.codec_traffic import FilterMessage, QdiscMessage
from kernel.queues import Queue
from kernel.rtnl import Request, Socket
from kernel.traffic import AddressFilter, Bucket, Filter, Qdisc
from kernel.wire import decode

# Not by an import statement: kernel.codec must replace the package's __init__ before.
tcmsg = importlib.import_module("pyroute2.netlink.rtnl.tcmsg").tcmsg
sched_tbf = importlib.import_module("pyroute2.netlink.rtnl.tcmsg.sched_tbf")

ROOT, INGRESS = 0xFFFFFFFF, 0xFFFFFFF1
BUCKET = Bucket(1_000_000, 1_562_500, 125_000)
TBF, HTB = Qdisc("tbf", 0x10000), Qdisc("htb", 0x70770000)
FAST = Bucket(5_000_000_000, 15_625, 126_000_000)
FILTER = Filter(0x80000800, 0x00010300, 9, True)

MIRRED = {"action": 4, "eaction": 1, "ifindex": 9}
REDIRECT = {"attrs": [("TCA_ACT_KIND", "mirred"), ("TCA_ACT_OPTIONS", {"attrs": [("TCA_MIRRED_PARMS", MIRRED)]})]}


SUBNET = ip_network("10.22.0.0/16")
HTB_INIT = {"version": 3, "rate2quantum": 10, "defcls": 1, "debug": 0, "direct_pkts": 0}


def named(kind, **options):
    return [("TCA_KIND", kind), *(("TCA_OPTIONS", value) for value in options.values())]


def parms(bucket):
    return {"attrs": [("TCA_TBF_PARMS", {"rate": bucket.rate, "limit": bucket.limit, "buffer": bucket.size})]}


def u32(*actions, keys=("0x0/0x0+0",), classid=0x10001):
    options = [("TCA_U32_CLASSID", classid), ("TCA_U32_SEL", {"keys": list(keys)})]
    numbered = [(f"TCA_ACT_PRIO_{number}", action) for number, action in enumerate(actions, 1)]
    return {"attrs": options + ([("TCA_U32_ACT", {"attrs": numbered})] if numbered else [])}


# podwire's request, and the fields and attributes for the full class.
REQUESTS = {
    "token bucket": (
        traffic.create_tbf_request(7, BUCKET),
        {"parent": ROOT, "handle": 0x10000},
        named("tbf", options=parms(BUCKET)),
    ),
    "no token bucket": (traffic.delete_root_request(7, TBF), {"parent": ROOT, "handle": 0x10000}, named("tbf")),
    "no ingress": (traffic.delete_ingress_request(7), {"parent": INGRESS, "handle": 0xFFFF0000}, named("ingress")),
    "redirect": (
        traffic.add_redirect_request(7, 9),
        {"parent": 0xFFFFFFF2, "info": 0x00010300},
        named("u32", options=u32(REDIRECT)),
    ),
    "HTB": (
        htb.create_requests(7, BUCKET, 1)[0],
        {"parent": ROOT, "handle": 0x70770000},
        named("htb", options={"attrs": [("TCA_HTB_INIT", HTB_INIT), ("TCA_HTB_DIRECT_QLEN", 1000)]}),
    ),
    "no HTB": (traffic.delete_root_request(7, HTB), {"parent": ROOT, "handle": 0x70770000}, named("htb")),
    "subnet": (
        traffic.add_filter_requests(7, 0x70770000, [AddressFilter(htb.selector(SUBNET, source=True), 0x70770000)])[0],
        {"parent": 0x70770000, "info": 0x00010300, "handle": 1},
        named("u32", options=u32(keys=("0x40000000/0xf0000000+0", "0x0a160000/0xffff0000+12"), classid=0x70770000)),
    ),
    "no filter": (
        traffic.delete_filter_request(7, FILTER),
        {"parent": 0xFFFFFFF2, "info": 0x00010300, "handle": 0x80000800},
        named("u32"),
    ),
    "root": (traffic.get_root_request(7), {"parent": ROOT}, []),
    "ingress": (traffic.get_ingress_request(7), {"parent": INGRESS}, []),
}


def full(fields, attributes, *, kind=0, flags=0):
    """Returns a message that the full class encodes."""
    message = tcmsg()
    message["header"].update({"type": kind, "flags": flags, "sequence_number": 3})
    message.update({"index": 7, **fields})
    message["attrs"] = attributes
    message.encode()
    return bytes(message.data)


def flagged(data, *, nested):
    """Returns a message with or without the flag NLA_F_NESTED, which the kernel ignores, on an action's options."""
    at = data.find(b"mirred\0\0")
    return data if at < 0 else data[: at + 11] + (b"\x80" if nested else b"\0") + data[at + 12 :]


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_are_encoded_as_by_the_full_class(name, monkeypatch):
    """Each request has the same bytes as when pyroute2's full class encodes it, but for the flag NLA_F_NESTED."""
    # The full class adds a rate table, which kernels since 3.8 ignore, and describes it in the struct.
    monkeypatch.setattr(sched_tbf.options.tbf_parms, "calc_rtab", lambda *_: None)
    request, fields, attributes = REQUESTS[name]
    expected = full(fields, attributes, kind=request.type, flags=request.flags | 1)
    assert request.encode(3).hex() == flagged(expected, nested=False).hex()
    assert request.encode(3) == request.encode(3)


def test_rates_beyond_32_bits():
    """A rate beyond 32 bits is in a separate attribute (TCA_TBF_RATE64), which the full class does not support."""
    data, largest = (
        traffic.create_tbf_request(7, bucket).encode(3) for bucket in (FAST, Bucket(0xFFFFFFFF, FAST.size, FAST.limit))
    )
    rate64 = bytes.fromhex("0c00 0400") + struct.pack("=Q", 5_000_000_000)
    assert data[-12:] == rate64
    assert data[44:] == largest[44:].replace(bytes.fromhex("2c00 0200"), bytes.fromhex("3800 0200")) + rate64
    assert len(data) == len(largest) + 12


PRIO = {"bands": 3, "priomap": list(range(16))}
QDISCS = {
    "tbf": (full({"handle": 0x10000}, named("tbf", options=parms(BUCKET))), Qdisc("tbf", 0x10000, BUCKET)),
    "tbf with 64 bits": (traffic.create_tbf_request(7, FAST).encode(3), Qdisc("tbf", 0x10000, FAST)),
    "another tbf": (full({"handle": 0x20000}, named("tbf", options=parms(BUCKET))), Qdisc("tbf", 0x20000, BUCKET)),
    "tbf without numbers": (full({"handle": 0x10000}, named("tbf", options={"attrs": []})), Qdisc("tbf", 0x10000)),
    "tbf without options": (full({"handle": 0x10000}, named("tbf")), Qdisc("tbf", 0x10000)),
    "a plain struct": (full({"handle": 0x10000}, named("prio", options=PRIO)), Qdisc("prio", 0x10000)),
    "the kernel's own": (full({"handle": 0}, named("pfifo_fast", options=PRIO)), Qdisc("pfifo_fast", 0)),
    "attributes": (
        full({"handle": 0x80010000}, named("fq_codel", options={"attrs": [("TCA_FQ_CODEL_LIMIT", 10240)]})),
        Qdisc("fq_codel", 0x80010000),
    ),
    "none at all": (full({"handle": 0}, named("noqueue")), Qdisc("noqueue", 0)),
    "ingress": (traffic.create_ingress_request(7).encode(3), Qdisc("ingress", 0xFFFF0000)),
    "clsact": (full({"handle": 0xFFFF0000}, named("clsact")), Qdisc("clsact", 0xFFFF0000)),
    "no kind": (full({"handle": 0x10000}, []), Qdisc("", 0x10000)),
}


@pytest.mark.parametrize("name", QDISCS)
def test_qdiscs_are_read(name):
    """Kind and handle of any qdisc are read, the bucket only of a token bucket filter; podwire's is the shaper."""
    data, expected = QDISCS[name]
    root = traffic.qdisc_from_answer(decode(QdiscMessage, data))
    assert root == expected
    assert root.is_shaper == (name.startswith("tbf"))


LIMITS = {  # by kind of queue: its options as the kernel sends them, and what is read of them
    "red": (struct.pack("=HH16s", 20, 1, struct.pack("=I", 500)), Queue("red", None, 500)),
    "fq": (struct.pack("=HHIHHI", 8, 6, 5, 8, 7, 1000), Queue("fq", 1000)),
    "cake": (struct.pack("=HHQ", 12, 2, 8000), Queue("cake", 8000)),
    "pfifo_head_drop": (struct.pack("=I", 0), Queue("pfifo_head_drop", None, 0)),
    "sfq": (bytes(8), Queue("sfq")),
}


@pytest.mark.parametrize("kind", LIMITS)
def test_limits_of_queues_are_read(kind):
    """The rate in bytes/s and the size of queues that not every kernel has are read from their options."""
    options, expected = LIMITS[kind]
    request = traffic.qdisc_request("create qdisc", traffic.RTM_NEWQDISC, 7, (kind, traffic.ROOT, 0x10000), options)
    answers = [decode(QdiscMessage, request.encode(3))]
    assert queues.list_queues(Mock(Socket, dump=lambda _request: answers)) == {7: [expected]}


def filters(*messages):
    answers = [decode(FilterMessage, message) for message in messages]
    return traffic.list_filters(Mock(Socket, dump=lambda request, **_how: answers), 7)


def action(kind="mirred", **parameters):
    options = {"attrs": [("TCA_MIRRED_PARMS", {**MIRRED, **parameters})]} if kind == "mirred" else None
    attributes = [("TCA_ACT_KIND", kind), *([("TCA_ACT_OPTIONS", options)] if options else [])]
    return {"attrs": attributes}


TABLE = {"attrs": [("TCA_U32_DIVISOR", 1)]}  # the kernel's message about a u32 table
FILTERS = {
    "podwire's": (u32(action()), 9, True),
    "the reference plugin's": (u32(action(), action(action=0)), 9, True),
    "a deleted target": (u32(action(ifindex=0)), 0, True),
    "a mirror": (u32(action(eaction=2, action=3)), None, True),
    "to ingress": (u32(action(eaction=3)), None, True),
    "no action": (u32(), None, True),
    "another action first": (u32(action("gact"), action()), None, True),
    "for some packets": (u32(action(), keys=["0x06000000/0xff000000+8"]), 9, False),
    "for some packets, by two keys": (u32(action(), keys=["0x0/0x0+0", "0x06000000/0xff000000+8"]), 9, False),
}


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("name", FILTERS)
def test_filters_are_read(name, nested):
    """The target of a u32 filter's first action, and whether the filter matches everything."""
    options, target, matches_all = FILTERS[name]
    data = full({"handle": 0x80000800, "info": 0x00010300}, named("u32", options=options))
    data = data if name.startswith("another") else flagged(data, nested=nested)
    assert filters(data) == [Filter(0x80000800, 0x00010300, target, matches_all)]


def test_tables_and_heads_are_not_filters():
    """Messages for hash tables, and without a filter, are skipped; filters are in the kernel's order."""
    head = full({"info": 0x00010300}, named("u32"))
    table = full({"handle": 0x80000000, "info": 0x00010300}, named("u32", options=TABLE))
    first, second = (full({"handle": number, "info": 1}, named("u32", options=u32(action()))) for number in (5, 4))
    assert filters(head, table, first, second) == [Filter(5, 1, 9, True), Filter(4, 1, 9, True)]


def with_structs(data, action_kind="mirred"):
    """Returns the message of a u32 filter with `data` as selector and as parameters of the action."""
    action = [("TCA_ACT_KIND", action_kind), ("TCA_ACT_OPTIONS", {"attrs": [("TCA_MIRRED_PARMS", data)]})]
    options = [("TCA_U32_SEL", data), ("TCA_U32_ACT", {"attrs": [("TCA_ACT_PRIO_1", {"attrs": action})]})]
    request = Request("", FilterMessage, 44, 0, {}, [("TCA_KIND", "u32"), ("TCA_OPTIONS", {"attrs": options})])
    return request.encode(3)


def test_only_mirred_has_a_target():
    """Parameters of another action than mirred have no target."""
    data = struct.pack("=IIiiiiI", 0, 0, 4, 1, 1, 1, 9)
    for kind, target in (("mirred", 9), ("other", None)):
        (decoded,) = filters(with_structs(data, kind))
        assert decoded.target == target


@given(st.binary(max_size=80))
@example(bytes([1, 0, 2]) + bytes(29))
def test_any_struct_is_read(data):
    """A qdisc and a filter are read with any content and length of the C structs."""
    bucket = [("TCA_KIND", "tbf"), ("TCA_OPTIONS", {"attrs": [("TCA_TBF_PARMS", data)]})]
    request = Request("", QdiscMessage, 36, 0, {"index": 7}, bucket)
    root = traffic.qdisc_from_answer(decode(QdiscMessage, request.encode(3)))
    assert root
    assert (root.bucket is None) == (len(data) < 36)
    (one,) = filters(with_structs(data))
    assert one.target is None or len(data) >= 28
    assert not one.matches_all or 0 <= 16 * (data[2] + 1) - len(data) < 16
