"""Changes of the cluster's nodes, and how the agent's routes follow them with requests for the changed node only."""

from ipaddress import ip_address, ip_network

import pytest

from agent.node import Node
from agent.route_plan import RouteOptions, mac_of
from agent.routes import Routes
from tests.support.agent_routes import DEVICE, assert_reached, route_to, started, state, strip_indexes
from tests.support.cluster import RouteMonitor, Stream, cluster, mtu_of
from tests.support.namespaces import Namespace

VXLAN, AUTO, DIRECT = (RouteOptions(mode=mode) for mode in ("vxlan", "auto", "direct"))


def requests(routes: Routes) -> int:
    return routes.counters.requests


def test_a_change_of_a_direct_node_costs_one_request_per_ip_version(joined):
    """Adding, changing and removing a direct node costs one request per IP version, and no comparison."""
    with started(joined) as routes:
        host, third = joined.nodes[0].host, joined.nodes[2].node()
        before, count, comparisons = state(host), requests(routes), routes.counters.comparisons
        routes.remove_peer(third.name)
        assert requests(routes) == count + 2
        assert route_to(host, "10.244.3.0/24") == route_to(host, "fd00:244:3::/64") == []
        routes.update_peer(third)
        assert requests(routes) == count + 4
        assert state(host) == before
        routes.update_peer(third._replace(uid="another"))
        assert requests(routes) == count + 4
        moved = tuple(ip_address(text) for text in ("192.0.0.99", "2001:db8::99"))
        routes.update_peer(third._replace(addresses=moved))
        assert requests(routes) == count + 6
        gateways = [route_to(host, text)[0]["gateway"] for text in ("10.244.3.0/24", "fd00:244:3::/64")]
        assert gateways == ["192.0.0.99", "2001:db8::99"]
        assert routes.counters.comparisons == comparisons


def test_a_change_of_a_vxlan_node_costs_at_most_three_requests_per_ip_version(distant):
    """Adding and removing a node costs five requests: two routes, two neighbours and one forwarding entry."""
    with started(distant) as routes:
        host, third = distant.nodes[0].host, distant.nodes[2].node()
        before, count, comparisons = state(host), requests(routes), routes.counters.comparisons
        routes.remove_peer(third.name)
        assert requests(routes) == count + 5
        assert "10.244.3.0" not in host.ip("route") + host.ip("neigh")
        assert mac_of(third.name).hex(":") not in host.run("bridge", "fdb")
        routes.update_peer(third)
        assert requests(routes) == count + 10
        assert state(host) == before
        routes.update_peer(third._replace(addresses=(ip_address("192.0.9.9"),)))
        assert requests(routes) == count + 11
        assert f"{mac_of(third.name).hex(':')} dev {DEVICE} dst 192.0.9.9" in host.run("bridge", "fdb")
        assert routes.counters.comparisons == comparisons


@pytest.mark.parametrize("is_joined", [True, False])
@pytest.mark.parametrize("new_first", [True, False])
def test_a_pod_network_moves_to_another_node(root, is_joined, new_first):
    """A network that moves to another node has a route at every moment, and the other node's afterwards."""
    with cluster(3, is_joined=is_joined) as nodes, started(nodes) as routes:
        first, second, third = nodes.nodes
        networks = (*second.node().pod_cidrs, *third.node().pod_cidrs)
        expected_host = first.host
        if new_first:
            routes.update_peer(third.node(pod_cidrs=networks))
            routes.remove_peer(second.name)
        else:
            routes.update_peer(second.node(pod_cidrs=()))
            routes.update_peer(third.node(pod_cidrs=networks))
        moved, other = route_to(expected_host, "10.244.2.0/24"), route_to(expected_host, "10.244.3.0/24")
        assert len(moved) == len(other) == 1
        if is_joined:
            assert moved[0]["gateway"] == third.address(4)
        else:
            assert third_mac(expected_host, "10.244.2.0") == third_mac(expected_host, "10.244.3.0")
        assert routes.problems == []


def third_mac(host: Namespace, gateway: str) -> str:
    """Returns the MAC address of a gateway of the VXLAN device."""
    return next(line.split()[4] for line in host.ip("neigh").splitlines() if line.startswith(f"{gateway} "))


@pytest.mark.parametrize("is_joined", [True, False])
def test_nothing_changes_for_conflicting_networks(root, is_joined):
    """For conflicting networks nothing is added, changed, deleted or restored; afterwards the plan is applied."""
    with cluster(3, is_joined=is_joined) as nodes, started(nodes) as routes:
        first, second, third = nodes.nodes
        conflicting = frozenset(second.node().pod_cidrs)
        before = state(first.host)
        routes.remove_peer(second.name, conflicting)
        routes.update_peer(third.node(pod_cidrs=(*second.node().pod_cidrs, *third.node().pod_cidrs)), conflicting)
        routes.reconcile()
        assert state(first.host) == before
        assert all(map(routes.has_route, conflicting))
        routes.update_peer(third.node())
        assert state(first.host) != before
        assert second.address(4) not in first.host.ip("route") + first.host.run("bridge", "fdb")
        assert not any(map(routes.has_route, conflicting))
        routes.update_peer(second.node())
        routes.set_node(first.node(), conflicting)
        first.host.ip("route", "del", "10.244.2.0/24", "proto", "112")
        routes.handle_notifications()
        routes.reconcile()
        assert route_to(first.host, "10.244.2.0/24") == []


def test_foreign_objects_stay(distant):
    """Routes, neighbours and forwarding entries of other programs stay through all changes, and removal."""
    host = distant.nodes[0].host
    host.ip("route", "add", "10.99.0.0/16", "via", "192.0.1.1")
    host.ip("route", "add", "10.98.0.0/16", "via", "192.0.1.1", "metric", "1120")
    host.ip("route", "add", "10.97.0.0/16", "via", "192.0.1.1", "proto", "112", "table", "99")
    host.ip("-6", "route", "add", "fd99::/64", "via", "2001:db8:1::1", "metric", "1120")
    host.ip("neigh", "add", "192.0.1.77", "lladdr", "02:00:00:00:00:77", "nud", "permanent", "dev", "eth0")
    host.ip("link", "add", "tunnel1", "type", "vxlan", "id", "9", "dstport", "4790", "local", "192.0.1.11")
    host.run("bridge", "fdb", "add", "0a:00:00:00:00:09", "dev", "tunnel1", "dst", "192.0.2.9", "self", "permanent")
    before = state(host), host.ip("route", "show", "table", "99")
    with started(distant) as routes:
        assert state(host) != before[0]
        routes.remove_peer("node-2")
        routes.reconcile()
        assert routes.problems == []
        routes.remove()
        assert (state(host), host.ip("route", "show", "table", "99")) == before
        routes.handle_notifications()
        assert (state(host), host.ip("route", "show", "table", "99")) == before


@pytest.mark.parametrize("is_joined", [True, False])
def test_a_restart_loses_no_packet(root, is_joined):
    """A restart changes nothing in the kernel, and no packet is lost."""
    with cluster(3, is_joined=is_joined) as nodes, nodes.routed(RouteOptions()) as running:
        first, second, _ = nodes.nodes
        before = state(first.host)
        with Stream(first.pod, second.pod, second.pod_address(4)) as stream, RouteMonitor(first.host) as monitor:
            running[0].close()
            for _ in range(3):
                stream.wait(50)
                with started(nodes) as again:
                    assert requests(again) == 0
            stream.wait(50)
        assert stream.sent >= 200
        assert stream.lost == 0
        assert monitor.lines == []
        assert state(first.host) == before


def test_stale_objects_are_deleted_at_the_start(distant):
    """Objects of nodes that disappeared while the agent did not run are deleted; a route of another metric stays."""
    with started(distant):
        pass
    host = distant.nodes[0].host
    host.ip("route", "add", "10.50.0.0/24", "via", "192.0.1.1", "proto", "112", "metric", "7")
    host.run("bridge", "fdb", "add", "0a:00:00:00:00:09", "dev", DEVICE, "dst", "192.0.2.9", "self", "permanent")
    routes = distant.nodes[0].routes(RouteOptions())
    with routes:
        routes.set_node(distant.nodes[0].node())
        assert requests(routes) == 0
        routes.replace_peers({each.name: each.node() for each in distant.nodes[:2]})
        assert "10.50.0.0" in host.ip("route")
        shown = state(host)
        assert len(shown["forwarding"]) == 1
        assert len(shown["neighbours"]) == 2
        assert "10.244.3.0" not in host.ip("route")


@pytest.mark.parametrize(
    ("before", "after"),
    [(VXLAN, AUTO), (VXLAN, DIRECT), (DIRECT, VXLAN), (VXLAN, RouteOptions(mode="vxlan", vni=9, port=8472))],
)
def test_options_change_by_a_restart(joined, before, after):
    """After a restart with other options packets arrive, and the state is as if it had been the first start."""
    with joined.routed(before):
        pass
    with joined.routed(after) as running:
        first = joined.nodes[0]
        for node in joined.nodes:
            node.set_pod_mtu(1450)
        assert_reached(joined)
        assert [routes.problems for routes in running] == [[], [], []]
        assert (DEVICE in first.host.ip("link")) == (after.mode != "direct")
        changed = state(first.host)
        running[0].remove()
        with started(joined, after):
            assert strip_indexes(state(first.host)) == strip_indexes(changed) or after.mode == "auto"


def test_this_nodes_address_and_pod_networks_change(distant):
    """The device follows this node's address, the unreachable route and the device's address its pod networks."""
    with started(distant) as routes:
        node, host = distant.nodes[0], distant.nodes[0].host
        host.ip("address", "add", "192.0.1.200/24", "dev", "eth0")
        routes.handle_notifications()
        changed = (ip_address("192.0.1.200"), *node.node().addresses[1:])
        index = host.ip("-o", "link", "show", DEVICE).split(":")[0]
        routes.set_node(node.node(addresses=changed))
        assert "local 192.0.1.200" in host.ip("-d", "link", "show", DEVICE)
        assert host.ip("-o", "link", "show", DEVICE).split(":")[0] == index
        routes.set_node(node.node(addresses=changed, pod_cidrs=(ip_network("10.244.77.0/24"),)))
        assert "10.244.77.0/32" in host.ip("address", "show", DEVICE)
        assert "10.244.1.0/32" not in host.ip("address", "show", DEVICE)
        assert "unreachable 10.244.77.0/24" in host.ip("route")
        assert "unreachable 10.244.1.0/24" not in host.ip("route")


def test_the_underlay_becomes_ipv6_when_all_nodes_have_only_ipv6(distant):
    """A cluster whose nodes have no IPv4 InternalIP any more gets IPv6 tunnels when the agents restart."""
    with started(distant):
        pass
    node, host = distant.nodes[0], distant.nodes[0].host
    with node.routes(RouteOptions()) as routes:
        routes.set_node(node.node(addresses=(ip_address("2001:db8:1::11"),)))
        routes.replace_peers({each.name: each.node(addresses=each.node().addresses[1:]) for each in distant.nodes})
        assert "local 2001:db8:1::11" in host.ip("-d", "link", "show", DEVICE)
        assert mtu_of(host, DEVICE) == 1430
        assert "dst 2001:db8:2::12" in host.run("bridge", "fdb")
        assert routes.problems == []


def test_a_node_joins_the_segment_of_this_node(distant):
    """A node whose new address is in a connected network changes from VXLAN to direct in one batch, and back."""
    with started(distant) as routes:
        host, second = distant.nodes[0].host, distant.nodes[1].node()
        before = state(host)
        near = (ip_address("192.0.1.12"), ip_address("2001:db8:1::12"))
        with RouteMonitor(host) as monitor:
            routes.update_peer(second._replace(addresses=near))
            assert route_to(host, "10.244.2.0/24")[0]["gateway"] == "192.0.1.12"
            assert route_to(host, "fd00:244:2::/64")[0]["gateway"] == "2001:db8:1::12"
            assert mac_of("node-2").hex(":") not in host.run("bridge", "fdb")
            routes.update_peer(second)
        assert "Deleted" not in monitor.lines
        assert state(host) == before


@pytest.mark.parametrize("is_joined", [True, False])
def test_a_machine_that_is_registered_under_another_name_is_reached_at_once(root, is_joined):
    """While an old and a new Node have one address, both have routes; the old one's deletion changes only its own."""
    with cluster(2, is_joined=is_joined) as nodes, started(nodes) as routes:
        first, second = nodes.nodes
        old = second.node()
        new = old._replace(name="new", uid="v", pod_cidrs=(ip_network("10.244.9.0/24"),))
        before = route_to(first.host, "10.244.2.0/24")
        with RouteMonitor(first.host) as monitor:
            routes.update_peer(new)
            added = route_to(first.host, "10.244.9.0/24")
            assert len(added) == 1
            assert route_to(first.host, "10.244.2.0/24") == before
            routes.remove_peer(old.name)
            assert route_to(first.host, "10.244.2.0/24") == []
            assert route_to(first.host, "10.244.9.0/24") == added
        assert monitor.lines == ["Added", "Deleted", "Deleted"]
        assert routes.problems == []
        if not is_joined:
            entries = [line for line in state(first.host)["forwarding"] if f"dst {second.address(4)}" in line]
            assert [line.split()[0] for line in entries] == [mac_of("new").hex(":")]


def test_a_node_may_be_the_default_gateway(joined):
    """A node to which another node's default route leads has direct routes as the others, and packets arrive."""
    first, second, _ = joined.nodes
    for version in (4, 6):
        first.host.ip(f"-{version}", "route", "add", "default", "via", second.address(version))
    with joined.routed(RouteOptions()) as running:
        assert [routes.problems for routes in running] == [[], [], []]
        for version in (4, 6):
            (route,) = route_to(first.host, second.network(version))
            assert route["gateway"] == second.address(version)
        assert_reached(joined)


def test_the_first_distant_node_creates_the_device(joined):
    """In mode auto the device is created when the first node needs it."""
    with started(joined) as routes:
        host = joined.nodes[0].host
        assert DEVICE not in host.ip("link")
        far = Node("far", "u", (ip_network("10.244.9.0/24"),), (ip_address("198.51.100.9"),))
        routes.update_peer(far)
        assert DEVICE in host.ip("link")
        assert route_to(host, "10.244.9.0/24")[0]["dev"] == DEVICE
        assert route_to(host, "10.244.2.0/24")[0]["dev"] == "eth0"
        assert routes.problems == []
