"""What the agent restores when other programs or the kernel change its routes, entries and device; its problems."""

import select
import socket as stdlib_socket
from ipaddress import ip_address, ip_network

import pytest

from agent.node import Node
from agent.route_plan import RouteOptions, mac_of
from agent.route_report import Problem
from agent.routes import Routes
from kernel import modules, notifications, vxlan
from kernel.notifications import Notifications
from kernel.rtnl import Socket
from tests.support.agent_routes import DEVICE, assert_reached, route_to, started, state, strip_indexes
from tests.support.cluster import UPLINK, Cluster, cluster, mtu_of

MAC2 = mac_of("node-2").hex(":")


def wait_and_handle(routes: Routes) -> None:
    """Waits for notifications, and handles them until there are none."""
    assert select.select([routes.fileno()], [], [], 20)[0]
    while select.select([routes.fileno()], [], [], 0)[0]:
        routes.handle_notifications()


def texts(routes: Routes) -> str:
    """Returns the problems as one text."""
    return "\n".join(f"{node}: {text}" for node, text in routes.problems)


# What another program does, and whether restoring it takes one request without a comparison.
FOREIGN = {
    "IPv4 route deleted": ("ip route del 10.244.2.0/24 proto 112", True),
    "IPv6 route deleted": ("ip -6 route del fd00:244:2::/64 proto 112", True),
    "IPv4 route replaced": ("ip route replace 10.244.2.0/24 via 192.0.1.1 metric 1120", True),
    "IPv6 route replaced": ("ip -6 route replace fd00:244:2::/64 via 2001:db8:1::1 metric 1120", True),
    "unreachable route deleted": ("ip route del unreachable 10.244.1.0/24", True),
    "neighbour deleted": (f"ip neigh del 10.244.2.0 dev {DEVICE}", True),
    "neighbour changed": (f"ip neigh replace 10.244.2.0 lladdr 02:00:00:00:00:01 nud permanent dev {DEVICE}", True),
    "neighbour not permanent": (f"ip neigh replace 10.244.2.0 lladdr {MAC2} nud reachable dev {DEVICE}", True),
    "forwarding entry deleted": (f"bridge fdb del {MAC2} dev {DEVICE}", True),
    "forwarding entry changed": (f"bridge fdb replace {MAC2} dev {DEVICE} dst 192.0.2.99 self permanent", True),
    "device's address deleted": (f"ip address del 10.244.1.0/32 dev {DEVICE}", False),
    "device's IPv6 address deleted": (f"ip address del fd00:244:1::/128 dev {DEVICE}", True),
    "device deleted": (f"ip link del {DEVICE}", False),
    "device down": (f"ip link set {DEVICE} down", False),
    "device's MTU": (f"ip link set {DEVICE} mtu 1300", False),
    "device's MAC address": (f"ip link set {DEVICE} address 02:00:00:00:00:09", False),
    "device learns": (f"ip link set {DEVICE} type vxlan learning local 192.0.1.99", False),
    "device renamed": (f"ip link set {DEVICE} down; ip link set {DEVICE} name other0; ip link set other0 up", False),
    "device down for a moment": (f"ip link set {DEVICE} down; ip link set {DEVICE} up", False),
    # The kernel deletes IPv4 routes without notifying, and the addresses of IPv6.
    "uplink down for a moment": (
        f"ip link set {UPLINK} down; ip link set {UPLINK} up; ip address add 2001:db8:1::11/64 dev {UPLINK} nodad;"
        "ip route replace default via 192.0.1.1; ip -6 route replace default via 2001:db8:1::1",
        False,
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_changes_of_other_programs_are_restored(distant, name):
    """An object that another program changes or deletes is restored, single ones by one request; packets arrive."""
    command, is_one_request = FOREIGN[name]
    with distant.routed(RouteOptions()) as running:
        routes, host = running[0], distant.nodes[0].host
        before, count, comparisons = state(host), routes.counters.requests, routes.counters.comparisons
        host.run("sh", "-ec", command)
        wait_and_handle(routes)
        assert strip_indexes(state(host)) == strip_indexes(before)
        if is_one_request:
            assert routes.counters.requests - count in (1, 2)  # the kernel may notify of one change twice
            assert routes.counters.comparisons == comparisons
        assert "local 192.0.1.11" in host.ip("-d", "link", "show", DEVICE)
        for node in distant.nodes:
            node.set_pod_mtu(1450)
        assert_reached(distant)
        assert routes.problems == []


@pytest.mark.parametrize("is_joined", [True, False])
def test_routes_return_when_the_uplink_does(root, is_joined):
    """The kernel deletes the routes when the uplink goes down; they return when it comes up, without other changes."""
    with cluster(3, is_joined=is_joined) as nodes, nodes.routed(RouteOptions()) as running:
        routes, first = running[0], nodes.nodes[0]
        first.host.set_sysctl("net/ipv6/conf/all/keep_addr_on_down", "1")
        first.host.set_sysctl(f"net/ipv6/conf/{UPLINK}/keep_addr_on_down", "1")
        before = state(first.host)
        first.host.ip("link", "set", UPLINK, "down")
        wait_and_handle(routes)
        routes.reconcile()
        assert [("is on no interface that is up" in text) for _, text in routes.problems] == [True]
        assert (DEVICE in first.host.ip("link")) == (not is_joined)
        first.host.ip("link", "set", UPLINK, "up")
        if not is_joined:
            for version in (4, 6):
                router = first.address(version).removesuffix("11") + "1"
                first.host.ip(f"-{version}", "route", "replace", "default", "via", router)
        wait_and_handle(routes)
        assert routes.problems == []
        assert state(first.host) == before
        assert_reached(nodes)


def test_the_devices_mtu_follows_the_uplinks(distant):
    """When the uplink's MTU changes, the device's does."""
    with started(distant) as routes:
        host = distant.nodes[0].host
        for mtu in (1400, 9000):
            host.ip("link", "set", UPLINK, "mtu", str(mtu))
            wait_and_handle(routes)
            assert mtu_of(host, DEVICE) == mtu - 50


def test_addresses_of_the_uplink_change(distant):
    """A new InternalIP on the uplink makes a node of its network direct, and the plan changes back with it."""
    with started(distant) as routes:
        host, far = distant.nodes[0].host, (ip_address("203.0.113.12"),)
        routes.update_peer(distant.nodes[1].node(addresses=far))
        assert route_to(host, "10.244.2.0/24")[0]["dev"] == DEVICE
        node = distant.nodes[0].node()
        routes.set_node(node._replace(addresses=(*node.addresses, ip_address("203.0.113.1"))))
        assert route_to(host, "10.244.2.0/24")[0]["dev"] == DEVICE
        host.ip("address", "add", "203.0.113.1/24", "dev", UPLINK)
        wait_and_handle(routes)
        assert route_to(host, "10.244.2.0/24")[0]["gateway"] == "203.0.113.12"
        host.ip("address", "del", "203.0.113.1/24", "dev", UPLINK)
        wait_and_handle(routes)
        assert route_to(host, "10.244.2.0/24")[0]["dev"] == DEVICE
        assert routes.problems == []


def test_unrelated_changes_cost_nothing(distant):
    """A new pod, an address and a route of other programs cause no request and no comparison."""
    with started(distant) as routes:
        host, counters = distant.nodes[0].host, routes.counters
        host.ip("link", "add", "v0", "type", "veth", "peer", "v1")
        host.ip("link", "set", "v0", "master", "cni0", "up")
        host.ip("link", "set", "v1", "up")
        host.ip("route", "add", "10.66.0.0/16", "via", "192.0.1.1")
        host.ip("neigh", "add", "192.0.1.99", "lladdr", "02:00:00:00:00:01", "dev", UPLINK)
        wait_and_handle(routes)
        host.ip("link", "del", "v0")
        wait_and_handle(routes)
        assert routes.counters == counters


def test_lost_notifications_cause_a_full_comparison(distant, monkeypatch):
    """When the kernel drops notifications, all objects are compared and restored."""
    monkeypatch.setattr("agent.routes._BUFFER_BYTES", 4096)
    with started(distant) as routes:
        host, before = distant.nodes[0].host, state(distant.nodes[0].host)
        host.ip("route", "flush", "proto", "112")
        for number in range(40):
            host.ip("route", "add", f"10.70.{number}.0/24", "via", "192.0.1.1")
        host.ip("neigh", "del", "10.244.2.0", "dev", DEVICE)
        for number in range(40):
            host.ip("route", "del", f"10.70.{number}.0/24")
        wait_and_handle(routes)
        assert state(host) == before
        assert "dropped notifications" in "".join(distant.nodes[0].log)


def test_two_programs_that_disagree_do_not_loop(distant):
    """An object that another program changes again and again is restored five times, then at the next comparison."""
    with started(distant) as routes:
        host = distant.nodes[0].host
        for _ in range(6):
            host.ip("route", "replace", "10.244.2.0/24", "via", "192.0.1.1", "metric", "1120")
            wait_and_handle(routes)
        assert route_to(host, "10.244.2.0/24") == []
        assert "another program keeps changing route 10.244.2.0/24" in texts(routes)
        routes.reconcile()
        assert route_to(host, "10.244.2.0/24")[0]["dev"] == DEVICE
        assert routes.problems == []


VXLAN = "link add other0 type vxlan dstport 4789"


@pytest.mark.parametrize(
    ("device", "commands", "text"),
    [
        (
            "other0",
            f"{VXLAN} external; link set other0 up",
            'the VXLAN device "other0" has UDP port 4789: remove it, or',
        ),
        (DEVICE, f"link add {DEVICE} type bridge", f'the interface "{DEVICE}" (bridge) belongs to another program'),
        (
            "other0",
            f"{VXLAN} id 112 local 192.0.1.11",
            'the VXLAN device "other0" of another program has VNI 112 and port 4789',
        ),
    ],
)
def test_a_foreign_device_is_a_problem(distant, device, commands, text):
    """A device of another program with the name, or with VNI and port, stays; it is a problem until it is gone."""
    host = distant.nodes[0].host
    for command in commands.split("; "):
        host.ip(*command.split())
    before = host.ip("link")
    with started(distant) as routes:
        assert text in texts(routes)
        assert {problem.node for problem in routes.problems} == {"", "node-2", "node-3"}
        assert host.ip("link") == before
        assert all("unreachable" in line for line in host.ip("route").splitlines() if "proto 112" in line)
        had_refusals = routes.has_refusals
        host.ip("link", "del", device)
        wait_and_handle(routes)
        assert routes.problems == []
        assert [had_refusals, routes.has_refusals] == [True, False]
        assert len(state(host)["forwarding"]) == 2


def test_a_port_that_a_program_has(distant):
    """A UDP port that a program has is a problem with the option that sets another; no device stays behind."""
    host = distant.nodes[0].host
    with host.entered(), stdlib_socket.socket(stdlib_socket.AF_INET, stdlib_socket.SOCK_DGRAM) as program:
        program.bind(("0.0.0.0", 4789))
        with started(distant) as routes:
            (text,) = (problem.text for problem in routes.problems if not problem.node)
            assert "a program (`ss -lunp sport = 4789`) has UDP port 4789: remove it, or set --vxlan-port to" in text
            assert f"{DEVICE}:" not in host.ip("link")


def test_a_kernel_without_vxlan(distant, monkeypatch):
    """A kernel that does not know the kind of the device is a problem with the command that loads the module."""
    monkeypatch.setattr(vxlan, "KIND", "vxlanx")
    with started(distant) as routes:
        (text,) = (problem.text for problem in routes.problems if not problem.node)
        fix = modules.explain_missing("vxlan")
        assert f"the kernel has no VXLAN devices; on the node {fix}; or set --routes to direct" in text


def test_routes_to_the_api_server_are_deleted(distant):
    """Before the first list the agent deletes its routes that take the packets to the API server, and no others."""
    host = distant.nodes[0].host
    with started(distant) as routes:
        before = state(host)["routes"]
        routes.delete_routes_to(map(ip_address, ("192.0.2.12", "2001:db8::1")))
        assert state(host)["routes"] == before
        routes.delete_routes_to(map(ip_address, ("10.244.2.77", "fd00:244:3::1")))
        assert [route_to(host, text) for text in ("10.244.2.0/24", "fd00:244:3::/64")] == [[], []]
        assert len(state(host)["routes"]) == len(before) - 2


def test_shadowing_routes_are_problems(distant):
    """A route of lower metric to the same network is a problem until it is deleted, at the start and later."""
    host = distant.nodes[0].host
    text = "a route of metric {} and protocol 3 wins over the agent's: {} via {} dev " + UPLINK
    shadow = ("10.244.2.0/24", "via", "192.0.1.1")
    host.ip("route", "add", *shadow)
    with started(distant) as routes:
        assert routes.problems == [Problem("node-2", text.format(0, "10.244.2.0/24", "192.0.1.1"))]
        host.ip("route", "del", *shadow)
        host.ip("-6", "route", "del", "fd00:244:3::/64", "proto", "112")
        host.ip("-6", "route", "add", "fd00:244:3::/64", "via", "2001:db8:1::1")
        wait_and_handle(routes)
        assert routes.problems == [Problem("node-3", text.format(1024, "fd00:244:3::/64", "2001:db8:1::1"))]
        host.ip("-6", "route", "del", "fd00:244:3::/64", "proto", "112")
        host.ip("-6", "route", "del", "fd00:244:3::/64", "via", "2001:db8:1::1")
        wait_and_handle(routes)
        assert routes.problems == []


def test_a_shadowing_route_disappears_with_its_link(root):
    """A route of lower metric that the kernel deletes with its link, without a notification, is no problem any more."""
    with cluster(2, is_joined=True, versions=(4,)) as nodes, started(nodes) as routes:
        host, before = nodes.nodes[0].host, state(nodes.nodes[0].host)
        host.ip("route", "add", "10.244.2.0/24", "via", "192.0.0.77", "metric", "7")
        wait_and_handle(routes)
        assert "wins over the agent's" in texts(routes)
        host.ip("link", "set", UPLINK, "down")
        host.ip("link", "set", UPLINK, "up")
        wait_and_handle(routes)
        assert routes.problems == []
        assert state(host) == before


def test_the_last_address_of_the_uplink_leaves_and_returns(joined):
    """With the uplink's last IPv4 address the kernel deletes the routes without notifying; they return with it."""
    with started(joined) as routes:
        host, before = joined.nodes[0].host, state(joined.nodes[0].host)
        host.ip("address", "del", "192.0.0.11/24", "dev", UPLINK)
        wait_and_handle(routes)
        assert "is on no interface that is up" in texts(routes)
        host.ip("address", "add", "192.0.0.11/24", "dev", UPLINK)
        wait_and_handle(routes)
        host.ip("address", "del", "192.0.0.11/24", "dev", UPLINK)
        host.ip("address", "add", "192.0.0.11/24", "dev", UPLINK)
        wait_and_handle(routes)
        assert strip_indexes(state(host)) == strip_indexes(before)
        assert routes.problems == []


def test_a_refused_request_is_a_problem_of_one_node(joined: Cluster):
    """A request that the kernel refuses is a problem; the others of its batch have effect."""
    with started(joined) as routes:
        host = joined.nodes[0].host
        broadcast = (ip_address("192.0.0.255"),)
        peers = {
            **joined.peers(),
            "bad": Node("bad", "u", (ip_network("10.244.8.0/24"),), broadcast),
            "good": Node("good", "u", (ip_network("10.244.9.0/24"),), joined.nodes[1].node().addresses),
        }
        routes.replace_peers(peers)
        assert "set route 10.244.8.0/24 via 192.0.0.255" in texts(routes)
        assert route_to(host, "10.244.9.0/24") != []
        routes.remove_peer("bad")
        assert (routes.problems, routes.has_refusals) == ([], False)


def test_nothing_happens_before_both_calls(distant):
    """Before the first list of nodes, or without this node, nothing is changed; a change then is an error."""
    host = distant.nodes[0].host
    with started(distant):
        before = state(host)
    groups = notifications.LINK, notifications.IPV4_ROUTE
    with (
        distant.nodes[0].routes(RouteOptions()) as routes,
        host.entered(),
        Socket() as socket,
        Notifications(groups, socket, buffer_bytes=1 << 20) as news,
    ):
        routes.set_node(distant.nodes[0].node())
        routes.reconcile()
        routes.handle_notifications()
        with pytest.raises(ValueError, match="replace_peers"):
            routes.update_peer(distant.nodes[1].node())
        assert news.receive() == []
    with distant.nodes[0].routes(RouteOptions()) as routes:
        routes.replace_peers({})
        assert state(host) == before
