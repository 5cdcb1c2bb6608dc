"""Reading traffic control (kernel.traffic): qdiscs and filters of `tc` and other programs."""

from typing import NamedTuple

import pytest

from kernel import htb, link, queues, traffic
from kernel.link import Link
from kernel.queues import Queue
from kernel.rtnl import Socket
from kernel.traffic import Bucket, Filter, Qdisc
from tests.support.namespaces import Namespace
from tests.support.netstate import links

FIRST = 0x80000800  # the handle of a u32 table's first filter
ALL, IPV4 = 0x0300, 0x0008  # protocols, in network byte order
ANYTHING = "u32 match u32 0 0"


class Veth(NamedTuple):
    """One end of a veth pair; calling it runs a line of `tc`."""

    host: Namespace
    socket: Socket
    link: Link

    @property
    def ifindex(self) -> int:
        return self.link.index

    def __call__(self, line: str) -> None:
        self.host.run("tc", *line.split())


@pytest.fixture
def veth(host, socket):
    host.ip("link", "add", "veth0", "up", "type", "veth", "peer", "name", "veth1")
    (veth0,) = link.get(socket, link.by_name_request("veth0"))
    assert veth0
    return Veth(host, socket, veth0)


def qdiscs(veth):
    return [
        traffic.qdisc_from_answer(message)
        for message in veth.socket.get(
            traffic.get_root_request(veth.ifindex), traffic.get_ingress_request(veth.ifindex)
        )
    ]


def test_a_missing_interface_and_a_missing_qdisc(veth):
    """A deleted interface has no qdiscs and no filters, and one without an ingress qdisc has no filters."""
    assert traffic.list_filters(veth.socket, veth.ifindex) == []
    veth.socket.change(link.delete_request(veth.link))
    assert qdiscs(veth) == [None, None]
    assert traffic.list_filters(veth.socket, veth.ifindex) == []


def test_deleting_missing_objects(veth):
    """Deleting missing qdiscs and filters is success, also without the interface; other programs' qdiscs stay."""
    ours = Filter(FIRST, 1 << 16 | ALL)

    def delete():
        roots = [
            traffic.delete_root_request(veth.ifindex, Qdisc(*root)) for root in (("tbf", 0x10000), ("htb", 0x70770000))
        ]
        qdisc_deletions = [*roots, traffic.delete_ingress_request(veth.ifindex)]
        filter_deletions = (
            traffic.delete_filter_request(veth.ifindex, ours),
            traffic.delete_priority_request(veth.ifindex, ours.info),
        )
        for request in (*filter_deletions, *qdisc_deletions):
            veth.socket.change(request)

    delete()
    veth("qdisc add dev veth0 ingress")
    delete()
    delete()
    veth("qdisc add dev veth0 root pfifo")
    delete()
    assert qdiscs(veth)[0].kind == "pfifo"
    veth("qdisc add dev veth0 clsact")
    delete()
    assert qdiscs(veth)[1].kind == "clsact"
    veth.socket.change(link.delete_request(veth.link))
    delete()


@pytest.mark.needs("ifb")
def test_filters_of_others(veth, host):
    """Filters are listed in order with their targets, also if the target is a deleted interface."""
    for number, name in ((100, "ifb0"), (101, "ifb1")):
        host.ip("link", "add", name, "index", str(number), "type", "ifb")
    veth("qdisc add dev veth0 clsact")
    lines = [
        "protocol ip prio 2 u32 match ip dst 192.0.2.1/32 flowid 1:2",
        "protocol ip prio 3 u32 match ip dst 192.0.2.1/32 action mirred egress redirect dev ifb0",
        f"protocol all prio 4 {ANYTHING} action mirred egress mirror dev ifb0",
        f"protocol all prio 5 {ANYTHING} action mirred egress redirect dev ifb0",
        f"protocol all prio 6 {ANYTHING} action mirred egress redirect dev ifb1",
        f"protocol all prio 1 {ANYTHING} flowid 1:1",
    ]
    for line in lines:
        veth(f"filter add dev veth0 ingress {line}")
    host.ip("link", "del", "ifb1")
    expected = [
        (1, ALL, None, True),
        (2, IPV4, None, False),
        (3, IPV4, 100, False),
        (4, ALL, None, True),
        (5, ALL, 100, True),
        (6, ALL, 0, True),
    ]
    filters = traffic.list_filters(veth.socket, veth.ifindex)
    assert [(item.info >> 16, item.info & 0xFFFF, item.target, item.matches_all) for item in filters] == expected
    veth.socket.change(*(traffic.delete_filter_request(veth.ifindex, item) for item in filters if item.target != 100))
    assert [item.target for item in traffic.list_filters(veth.socket, veth.ifindex)] == [100, 100]


@pytest.mark.needs("matchall")
def test_filters_of_other_kinds(veth):
    """A filter of another kind is listed without its action, as matching everything."""
    veth("qdisc add dev veth0 clsact")
    veth("filter add dev veth0 ingress prio 7 protocol all matchall action pass")
    assert traffic.list_filters(veth.socket, veth.ifindex) == [Filter(1, 7 << 16 | ALL, matches_all=True)]


@pytest.mark.needs("ifb", "tbf")
def test_no_feature_is_missing_and_nothing_is_created(veth, host):
    """A kernel with all features lacks none, and probing it changes nothing."""
    before = list(links(host)), host.run("tc", "qdisc", "show")
    assert traffic.probe_missing_features(veth.socket) == []
    assert (list(links(host)), host.run("tc", "qdisc", "show")) == before


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("bfifo limit 200", Queue("bfifo", None, 200), id="bytes"),
        pytest.param("pfifo limit 200", Queue("pfifo"), id="packets"),
        pytest.param("pfifo limit 0", Queue("pfifo", None, 0), id="no packets"),
        pytest.param("handle 1: htb default 10", Queue("htb", default=0x10010), marks=pytest.mark.needs("htb")),
        pytest.param(
            "tbf rate 8mbit burst 3000 limit 900", Queue("tbf", 10**6, 900), marks=pytest.mark.needs("tbf"), id="tbf"
        ),
        pytest.param("fq maxrate 8kbit", Queue("fq", 1000), marks=pytest.mark.needs("fq"), id="fq"),
    ],
)
def test_queues_of_others(veth, line, expected):
    """The rate of a queue, and the size of the packets that fit into it, are read in bytes."""
    veth(f"qdisc add dev veth0 root {line}")
    assert queues.list_queues(veth.socket)[veth.ifindex] == [expected]


@pytest.mark.needs("tbf", "htb")
@pytest.mark.parametrize(("parent", "is_of_class"), [("1:10", False), ("1:66", True)])
def test_queue_of_a_class(veth, parent, is_of_class):
    """Only packets that a filter classifies enter the queue of a class, except that of the default class."""
    veth("qdisc add dev veth0 root handle 1: htb default 10")
    for classid in ("1:10", "1:66"):
        veth(f"class add dev veth0 parent 1: classid {classid} htb rate 8mbit")
    veth(f"qdisc add dev veth0 parent {parent} handle 66: tbf rate 8mbit burst 3000 limit 900")
    veth("qdisc add dev veth0 ingress")
    of_class = {one.kind: one.is_of_class for one in queues.list_queues(veth.socket)[veth.ifindex]}
    assert of_class == {"htb": False, "tbf": is_of_class, "ingress": False}


@pytest.mark.needs("tbf", "htb")
def test_queues_of_podwire_have_no_limit(veth):
    """A limit of podwire's with all its queues is not read as a limit of others."""
    veth.socket.change(*htb.create_requests(veth.ifindex, Bucket(1000, 100_000, 3000), 1))
    assert queues.list_queues(veth.socket)[veth.ifindex] == [Queue("htb"), Queue("tbf")]
