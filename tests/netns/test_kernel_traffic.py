"""Reading traffic control (kernel.traffic): qdiscs and filters of `tc` and other programs."""

import pytest

from kernel import link, traffic
from kernel.rtnl import Socket
from kernel.traffic import Bucket, Filter, Qdisc
from tests.support.netstate import links

FIRST = 0x80000800  # the handle of a u32 table's first filter
ALL, IPV4 = 0x0300, 0x0008  # protocols, in network byte order
ANYTHING = "u32 match u32 0 0"


@pytest.fixture
def veth(host):
    """A function that asks the kernel for what is on the end of a pair, after each line for `tc`."""
    host.ip("link", "add", "veth0", "up", "type", "veth", "peer", "name", "veth1")

    def tc(line=""):
        if line:
            host.run("tc", *line.split())

    with host.entered():
        socket = Socket()
    with socket:
        (veth0,) = link.get(socket, link.by_name_request("veth0"))
        tc.socket, tc.index = socket, veth0.index
        yield tc


def qdiscs(veth):
    return [
        traffic.qdisc_from_answer(message)
        for message in veth.socket.get(traffic.get_root_request(veth.index), traffic.get_ingress_request(veth.index))
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("handle 2: pfifo_fast", Qdisc("pfifo_fast", 0x20000)),
        ("handle 1: pfifo limit 10", Qdisc("pfifo", 0x10000)),
        pytest.param("handle 1: fq", Qdisc("fq", 0x10000), marks=pytest.mark.needs("fq")),
        pytest.param(
            "handle 1: tbf rate 1gbit burst 125kb limit 1000000",
            Qdisc("tbf", 0x10000, Bucket(125_000_000, 16_000, 1_000_000)),
            marks=pytest.mark.needs("tbf"),
        ),
        pytest.param(
            "handle 1: tbf rate 80gbit burst 10mb limit 1000000",
            Qdisc("tbf", 0x10000, Bucket(10_000_000_000, 16_383, 1_000_000)),
            marks=pytest.mark.needs("tbf"),
        ),
    ],
)
def test_a_root_qdisc_of_any_kind(veth, line, expected):
    """A root qdisc that `tc` made is read, with the bucket of a token bucket filter; without one it is noqueue."""
    assert qdiscs(veth) == [Qdisc("noqueue", 0), None]
    veth(f"qdisc add dev veth0 root {line}")
    assert qdiscs(veth) == [expected, None]


@pytest.mark.parametrize("kind", ["ingress", "clsact"])
def test_a_place_for_filters(veth, kind):
    """Both kinds of qdiscs for received packets are read, and have no filters."""
    veth(f"qdisc add dev veth0 {kind}")
    assert qdiscs(veth) == [Qdisc("noqueue", 0), Qdisc(kind, 0xFFFF0000)]
    assert traffic.list_filters(veth.socket, veth.index) == []


def test_no_interface_and_no_place(veth):
    """An interface that is gone has no qdiscs and no filters, and one without a place for them has none."""
    assert traffic.list_filters(veth.socket, veth.index) == []
    veth.socket.change(link.delete_request(link.get(veth.socket, link.by_name_request("veth0"))[0]))
    assert qdiscs(veth) == [None, None]
    assert traffic.list_filters(veth.socket, veth.index) == []


def test_deleting_what_is_gone(veth):
    """To delete what is gone, with its place or with the interface, is success; what others have in its place stays."""
    ours = Filter(FIRST, 1 << 16 | ALL)

    def delete():
        roots = [
            traffic.delete_root_request(veth.index, Qdisc(*root)) for root in (("tbf", 0x10000), ("htb", 0x70770000))
        ]
        qdisc_deletions = [*roots, traffic.delete_ingress_request(veth.index)]
        way = traffic.delete_filter_request(veth.index, ours), traffic.delete_priority_request(veth.index, ours.info)
        for request in (*way, *qdisc_deletions):
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
    veth.socket.change(link.delete_request(link.get(veth.socket, link.by_name_request("veth0"))[0]))
    delete()


@pytest.mark.needs("ifb")
def test_filters_of_others(veth, host):
    """Filters are listed in their order with their targets, also a deleted interface."""
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
    filters = traffic.list_filters(veth.socket, veth.index)
    assert [(item.info >> 16, item.info & 0xFFFF, item.target, item.matches_all) for item in filters] == expected
    veth.socket.change(*(traffic.delete_filter_request(veth.index, item) for item in filters if item.target != 100))
    assert [item.target for item in traffic.list_filters(veth.socket, veth.index)] == [100, 100]


@pytest.mark.needs("matchall")
def test_filters_of_other_kinds(veth):
    """A filter of another kind is listed without its action: it may match everything."""
    veth("qdisc add dev veth0 clsact")
    veth("filter add dev veth0 ingress prio 7 protocol all matchall action pass")
    assert traffic.list_filters(veth.socket, veth.index) == [Filter(1, 7 << 16 | ALL, matches_all=True)]


@pytest.mark.needs("ifb")
def test_a_redirect_is_read_as_requested(veth, host):
    """What `redirect` makes takes everything and leads to its target."""
    host.ip("link", "add", "ifb0", "index", "100", "type", "ifb")
    veth.socket.change(traffic.create_ingress_request(veth.index), traffic.add_redirect_request(veth.index, 100))
    assert traffic.list_filters(veth.socket, veth.index) == [Filter(FIRST, 1 << 16 | ALL, 100, True)]
    shown = host.run("tc", "filter", "show", "dev", "veth0", "ingress")
    assert "match 00000000/00000000 at 0" in shown
    assert shown.count("mirred (Egress Redirect to device ifb0) stolen") == 1


@pytest.mark.needs("ifb", "tbf")
def test_no_feature_is_missing_and_nothing_is_created(veth, host):
    """A kernel with all features lacks none, and probing it changes nothing."""
    before = list(links(host)), host.run("tc", "qdisc", "show")
    assert traffic.probe_missing_features(veth.socket) == []
    assert (list(links(host)), host.run("tc", "qdisc", "show")) == before
