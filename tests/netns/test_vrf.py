"""vrf on a real kernel: the device, its table, addresses and routes after ADD, and what rollback, CHECK and DEL do."""

import contextlib
import errno
import io
import itertools
import json

import pytest

from cni import skel
from podwire.main import PLUGINS
from tests.support import binaries
from tests.support.invocation import Outcome, environment
from tests.support.netlink_faults import Disturbance, disturbed
from tests.support.streams import MemoryStdin
from tests.support.vrf_network import connect, list_routes, master, state, vrfs

pytestmark = pytest.mark.needs("vrf")


@pytest.fixture(params=[False, True], ids=["dropped", "kept"])
def prev_result(request, host, sandbox):
    """The result of an interface plugin; the kernel drops or keeps IPv6 addresses of an interface that goes down."""
    return connect(host, sandbox, keep_ipv6=request.param)


@pytest.fixture
def two(host, sandbox):
    """The results of two interfaces of one pod, eth0 and net1, both with default routes."""
    return connect(host, sandbox), connect(host, sandbox, "net1", number=2)


def test_add(blue, sandbox, prev_result):
    """ADD creates the VRF, up and with table 1, moves addresses and routes, and returns prevResult unchanged."""
    before = state(sandbox)
    assert blue.add(sandbox, prev_result) == prev_result
    after = state(sandbox)
    assert vrfs(sandbox) == {"blue": 1}
    assert {"UP", "MASTER"} <= set(after["links"]["blue"]["flags"])
    assert after["links"]["blue"]["ifalias"] == "podwire"
    assert master(sandbox) == "blue"
    assert after["links"]["eth0"]["addresses"] == before["links"]["eth0"]["addresses"]
    assert list_routes(sandbox, 1) == [
        "10.1.0.0/24 dev eth0 proto kernel scope link src 10.1.0.2",
        "default via 10.1.0.1 dev eth0",
        "local 10.1.0.2 dev eth0 proto kernel scope host src 10.1.0.2",
    ]
    assert list_routes(sandbox, 1, 6) == [
        "default via fd00:1::1 dev eth0 metric 1024 pref medium",
        "fd00:1::/64 dev eth0 proto kernel metric 256 pref medium",
        "local fd00:1::2 dev eth0 proto kernel metric 0 pref medium",
    ]
    assert list_routes(sandbox, "main") == list_routes(sandbox, "main", 6) == []
    blue.check(sandbox, prev_result)


def test_configured_table(blue, sandbox, prev_result):
    """`table` is the routing table of the VRF; a number above 255 works, and CHECK compares it."""
    net = blue.having(table=1001)
    net.check(sandbox, net.add(sandbox, prev_result))
    assert vrfs(sandbox) == {"blue": 1001}
    assert "default via 10.1.0.1 dev eth0" in list_routes(sandbox, 1001)
    msg = blue.having(table=1002).check_error(sandbox, prev_result)
    assert msg == "VRF blue already exist with different routing table 1001"
    blue.check(sandbox, prev_result)


def test_second_interface_in_the_same_vrf(blue, sandbox, two):
    """A second interface joins the VRF, each DEL leaves the other interface, and the last DEL deletes the VRF."""
    blue.add(sandbox, two[0])
    blue.add(sandbox, two[1], ifname="net1")
    assert vrfs(sandbox) == {"blue": 1}
    assert [line for line in list_routes(sandbox, 1) if "default" in line] == [
        "default via 10.1.0.1 dev eth0",
        "default via 10.2.0.1 dev net1",
    ]
    for result, ifname in zip(two, ("eth0", "net1"), strict=True):
        blue.check(sandbox, result, ifname=ifname)
    blue.delete(sandbox, ifname="net1")
    assert (vrfs(sandbox), master(sandbox), master(sandbox, "net1")) == ({"blue": 1}, "blue", "")
    assert [line for line in list_routes(sandbox, 1) if "default" in line] == ["default via 10.1.0.1 dev eth0"]
    blue.delete(sandbox)
    assert (vrfs(sandbox), master(sandbox)) == ({}, "")


def test_shared_table(blue, sandbox, two):
    """VRFs may share a configured table, which ADD reports on stderr."""
    blue.add(sandbox, two[0])
    outcome = blue.having(vrfname="red", table=1).run("ADD", sandbox, two[1], ifname="net1")
    assert outcome.result()
    assert outcome.stderr == "vrf: table 1 of VRF red is also used by VRF blue: their routes are not separate\n"
    assert vrfs(sandbox) == {"blue": 1, "red": 1}


def test_two_vrfs(blue, sandbox, two):
    """VRFs get different tables, and each has the routes of its interface only."""
    red = blue.having(vrfname="red")
    blue.add(sandbox, two[0])
    red.add(sandbox, two[1], ifname="net1")
    assert vrfs(sandbox) == {"blue": 1, "red": 2}
    for table, ifname in ((1, "eth0"), (2, "net1")):
        for family in (4, 6):
            lines = list_routes(sandbox, table, family)
            assert len(lines) == 3
            assert all(f"dev {ifname} " in f"{line} " for line in lines)
    assert list_routes(sandbox, "main") == list_routes(sandbox, "main", 6) == []


def test_table_choice(blue, sandbox, prev_result):
    """The chosen table is the lowest that no VRF, rule or route uses."""
    sandbox.ip("link", "add", "other", "type", "vrf", "table", "1")
    sandbox.ip("link", "set", "lo", "up")
    sandbox.ip("route", "add", "192.0.2.0/24", "dev", "lo", "table", "2")
    sandbox.ip("-6", "route", "add", "2001:db8::/32", "dev", "lo", "table", "3")
    sandbox.ip("rule", "add", "from", "192.0.2.1", "table", "4")
    sandbox.ip("-6", "rule", "add", "from", "2001:db8::1", "table", "6")
    blue.add(sandbox, prev_result)
    assert vrfs(sandbox) == {"other": 1, "blue": 5}


def test_all_kinds_of_routes(blue, sandbox, prev_result):
    """Routes keep metric, MTU, source, preference, scope, several next hops, and their table unless it was main."""
    lines = [
        "192.0.2.0/24 via 10.1.0.1 metric 5 mtu 1300 src 10.1.0.2",
        "192.0.3.0/24 dev eth0 scope link",
        "192.0.4.0/24 nexthop via 10.1.0.7 dev eth0 weight 2 nexthop via 10.1.0.8 dev eth0 weight 1",
        "192.0.5.0/24 via 172.16.0.1 dev eth0 onlink",
        "192.0.6.0/24 via 10.1.0.1 table 300",
        "2001:db8:1::/48 via fd00:1::1 dev eth0 metric 7 pref high src fd00:1::2",
        "2001:db8:2::/48 dev eth0",
        "2001:db8:3::/48 nexthop via fd00:1::7 dev eth0 nexthop via fd00:1::8 dev eth0",
        "2001:db8:4::/48 via fd00:1::1 dev eth0 table 300",
    ]
    for line in lines:
        sandbox.ip("-6" if ":" in line else "-4", "route", "add", *line.split())
    before = {family: list_routes(sandbox, "main", family) for family in (4, 6)}
    blue.add(sandbox, prev_result)
    for family in (4, 6):
        moved = [line for line in list_routes(sandbox, 1, family) if not line.startswith("local")]
        assert moved == before[family]
        assert list_routes(sandbox, "main", family) == []
        assert len(list_routes(sandbox, 300, family)) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_multipath_default_routes(blue, sandbox, two, count):
    """The next hops of a shared IPv6 default route through the interface move whole, the others stay (plugins#1253)."""
    if count == 2:
        sandbox.ip("-6", "route", "append", "default", "via", "fd00:2::9", "dev", "net1")
    assert "nexthop via fd00:2::1 dev net1" in sandbox.run("ip", "-6", "route", "show", "default")
    blue.add(sandbox, two[1], ifname="net1")
    moved = sandbox.run("ip", "-6", "route", "show", "table", "1", "default").split()
    assert moved.count("nexthop") == (2 if count == 2 else 0)
    assert [word for word in moved if word.startswith("fd00:2::")] == ["fd00:2::1", "fd00:2::9"][:count]
    assert list_routes(sandbox, "main", 6) == [
        "default via fd00:1::1 dev eth0 metric 1024 pref medium",
        "fd00:1::/64 dev eth0 proto kernel metric 256 pref medium",
    ]
    assert list_routes(sandbox, "main") == [
        "10.1.0.0/24 dev eth0 proto kernel scope link src 10.1.0.2",
        "default via 10.1.0.1 dev eth0",
    ]


def test_shared_ipv4_multipath_route(blue, sandbox, two):
    """An IPv4 route with next hops through two interfaces is divided, unless it is in another table than main."""
    hops = "nexthop via 10.1.0.1 dev eth0 weight 1 nexthop via 10.2.0.1 dev net1 weight 1"
    for table in ("main", "300"):
        sandbox.ip("route", "add", "192.0.2.0/24", "table", table, *hops.split())
    blue.add(sandbox, two[1], ifname="net1")
    assert "192.0.2.0/24 via 10.1.0.1 dev eth0" in list_routes(sandbox, "main")
    assert "192.0.2.0/24 via 10.2.0.1 dev net1" in list_routes(sandbox, 1)
    assert sandbox.ip("route", "show", "table", "300").count("nexthop") == 2


def test_interface_that_is_down(blue, sandbox, prev_result):
    """An interface that is down enters the VRF and stays down."""
    sandbox.ip("link", "set", "eth0", "down")
    blue.check(sandbox, blue.add(sandbox, prev_result))
    assert "UP" not in state(sandbox)["links"]["eth0"]["flags"]


def test_duplicate_address_detection(blue, sandbox, host, prev_result):
    """ADD waits for duplicate address detection, so that a route with an IPv6 source address works at once."""
    sandbox.set_sysctl("net/ipv6/conf/eth0/accept_dad", "1")
    sandbox.ip("-6", "route", "add", "2001:db8::/32", "via", "fd00:1::1", "src", "fd00:1::2")
    sandbox.ip("address", "change", "fd00:1::2/64", "dev", "eth0")
    blue.add(sandbox, prev_result)
    assert "tentative" not in sandbox.ip("-6", "address", "show", "dev", "eth0", "scope", "global")
    assert any("src fd00:1::2" in line for line in list_routes(sandbox, 1, 6))


def test_existing_vrf(blue, sandbox, prev_result):
    """A VRF that existed before ADD is used, set up, and kept by DEL."""
    sandbox.ip("link", "add", "blue", "type", "vrf", "table", "77")
    before = state(sandbox)
    blue.check(sandbox, blue.add(sandbox, prev_result))
    assert {"UP"} <= set(state(sandbox)["links"]["blue"]["flags"])
    assert "default via 10.1.0.1 dev eth0" in list_routes(sandbox, 77)
    blue.delete(sandbox, prev_result)
    assert (vrfs(sandbox), master(sandbox)) == ({"blue": 77}, "")
    assert state(sandbox)["links"].keys() == before["links"].keys()


def test_del(blue, sandbox, prev_result):
    """DEL without prevResult restores the pod except for its routes, and succeeds again, without interface and VRF."""
    before = state(sandbox)
    blue.add(sandbox, prev_result)
    blue.delete(sandbox)
    assert state(sandbox)["links"].keys() == before["links"].keys()
    assert master(sandbox) == ""
    for _ in range(2):
        blue.delete(sandbox, prev_result)
    blue.add(sandbox, prev_result)
    sandbox.ip("link", "delete", "eth0")
    for _ in range(2):
        blue.delete(sandbox, prev_result)
    assert vrfs(sandbox) == {}


def test_del_leaves_other_masters(blue, sandbox, prev_result):
    """DEL does not take an interface out of another VRF, keeps a link that is not a VRF, and accepts no namespace."""
    sandbox.ip("link", "add", "other", "type", "vrf", "table", "5")
    sandbox.ip("link", "set", "eth0", "master", "other")
    sandbox.ip("link", "add", "blue", "type", "bridge")
    before = state(sandbox)
    for network in (blue, blue.having(vrfname=None), blue.having(vrfname="a/b"), blue.having(vrfname=7)):
        network.delete(sandbox, prev_result)
    for netns in (None, "", "/no/such/netns"):
        blue.delete(netns)
    assert state(sandbox) == before


def test_interface_with_a_master(blue, sandbox, prev_result):
    """An interface that is a port of another link, or of the VRF itself, is refused."""
    sandbox.ip("link", "add", "br0", "type", "bridge")
    sandbox.ip("link", "set", "eth0", "master", "br0")
    error = blue.add_error(sandbox, prev_result)
    assert (error["code"], error["msg"]) == (999, "cmdAdd failed: interface eth0 has already a master set: br0")
    sandbox.ip("link", "set", "eth0", "nomaster")
    blue.add(sandbox, prev_result)
    msg = blue.add_error(sandbox, prev_result)["msg"]
    assert msg == "cmdAdd failed: interface eth0 has already a master set: blue"


def test_check(blue, sandbox, prev_result):
    """CHECK fails without the VRF, without the interface in it, with the VRF down, and without the l3mdev rule."""
    blue.add(sandbox, prev_result)
    sandbox.ip("rule", "delete", "pref", "1000")
    assert blue.check_error(sandbox, prev_result) == "the IPv4 routing rule of VRFs is missing"
    sandbox.ip("rule", "add", "l3mdev", "pref", "1000")
    blue.check(sandbox, prev_result)
    sandbox.ip("link", "set", "blue", "down")
    assert blue.check_error(sandbox, prev_result) == "VRF blue is down"
    sandbox.ip("link", "set", "blue", "up")
    sandbox.ip("link", "set", "eth0", "nomaster")
    assert blue.check_error(sandbox, prev_result) == "failed to find eth0 associated to vrf blue"
    sandbox.ip("link", "delete", "blue")
    assert blue.check_error(sandbox, prev_result) == "Link not found"


def test_flushed_rules(blue, sandbox, prev_result):
    """ADD adds the l3mdev rules, which the kernel does not add again after a flush."""
    sandbox.ip("link", "add", "other", "type", "vrf", "table", "5")
    for family in ("-4", "-6"):
        sandbox.ip(family, "rule", "delete", "pref", "1000")
    blue.check(sandbox, blue.add(sandbox, prev_result))
    for family in ("-4", "-6"):
        assert "1000:\tfrom all lookup [l3mdev-table]" in sandbox.run("ip", family, "rule").splitlines()


def test_pod_without_ipv6(blue, sandbox, prev_result):
    """ADD of an IPv4-only pod does not need IPv6, which may be disabled."""
    sandbox.set_sysctl("net/ipv6/conf/all/disable_ipv6", "1")
    result = prev_result | {"ips": prev_result["ips"][:1], "routes": prev_result["routes"][:1]}
    blue.check(sandbox, blue.add(sandbox, result))
    assert "default via 10.1.0.1 dev eth0" in list_routes(sandbox, 1)


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EPERM])
def test_refused_request(blue, sandbox, two, code):
    """If the kernel refuses any request of ADD, ADD fails and addresses, routes and links are as before."""
    for line in (
        "192.0.2.0/24 nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev net1",
        "192.0.3.0/24 via 10.1.0.1 metric 5 mtu 1300 src 10.1.0.2",
        "192.0.4.0/24 dev eth0 scope link",
        "192.0.6.0/24 via 10.1.0.1 table 300",
        "2001:db8:1::/48 via fd00:1::1 dev eth0 metric 7 src fd00:1::2",
        "2001:db8:3::/48 nexthop via fd00:1::7 dev eth0 nexthop via fd00:1::8 dev eth0",
    ):
        sandbox.ip("-6" if ":" in line else "-4", "route", "replace", *line.split())
    before = state(sandbox)
    numbers = itertools.count(1)
    while (
        outcome := add_disturbed(blue, sandbox, two[0], Disturbance(number := next(numbers), "refused", code))
    ).status:
        assert outcome.error()["msg"].startswith("cmdAdd failed: "), number
        assert outcome.stderr == "", number
        assert state(sandbox) == before, number
    assert number > 15


def add_disturbed(network, pod, prev_result, disturbance):
    """Runs ADD from the sources in this process, with a fault in one of its netlink requests."""
    names = {"CNI_CONTAINERID": pod.name, "CNI_NETNS": pod.path, "CNI_IFNAME": "eth0"}
    env = environment("ADD", CNI_PATH=str(binaries.directory()), **names)
    stdin = MemoryStdin(json.dumps({**network.config, "prevResult": prev_result}).encode())
    stdout, stderr = io.BytesIO(), io.StringIO()
    with network.host.entered(), disturbed(disturbance), contextlib.redirect_stderr(stderr):
        status = skel.run(PLUGINS["vrf"], env, stdin, stdout, about="")
    return Outcome(status, stdout.getvalue(), stderr.getvalue())
