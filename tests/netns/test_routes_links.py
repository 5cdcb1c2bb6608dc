"""Nodes with several links, addresses or missing addresses: both ends decide alike, and packets arrive both ways.

Each test runs with the reverse path filters off, strict and loose, of all interfaces but the tunnel's.
"""

import contextlib
import json
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from agent.node import Node
from agent.route_plan import RouteOptions
from agent.routes import Routes
from tests.support.agent_routes import DEVICE, assert_reached, route_to
from tests.support.cluster import UPLINK, Cluster, Stream, TestNode, ask, cluster
from tests.support.namespaces import Namespace

SECOND = "eth1"
FILTERS = pytest.mark.parametrize("rp_filter", ["0", "1", "2"])


def set_filters(nodes: Cluster, value: str) -> None:
    """Sets the reverse path filters of the nodes' interfaces; the tunnel's is the agent's."""
    for node in nodes.nodes:
        names = [each["ifname"] for each in json.loads(node.host.ip("-j", "link"))]
        for name in ("all", "default", *(name for name in names if name != DEVICE)):
            node.host.set_sysctl(f"net/ipv4/conf/{name}/rp_filter", value)


def share(middle: Namespace, node: TestNode) -> str:
    """Makes a bridge of the router's link to a node, so that other nodes can have links to this network; returns it."""
    name, wire = f"lan{node.number}", f"wire{node.number}"
    middle.ip("link", "add", name, "type", "bridge")
    middle.ip("address", "flush", "dev", wire)
    middle.ip("link", "set", wire, "master", name)
    middle.ip("link", "set", name, "up")
    middle.ip("address", "add", f"192.0.{node.number}.1/24", "dev", name)
    middle.ip("address", "add", f"2001:db8:{node.number}::1/64", "dev", name, "nodad")
    return name


def add_link(node: TestNode, middle: Namespace, lan: str, *addresses: str, name: str = SECOND) -> None:
    """Connects a node to a bridge of the middle by a further link."""
    port = f"{lan}p{node.number}"
    node.host.ip("link", "add", name, "type", "veth", "peer", "name", port, "netns", middle.name)
    middle.ip("link", "set", port, "master", lan, "up")
    node.host.ip("link", "set", name, "up")
    for address in addresses:
        metric = ("metric", "100") if name != UPLINK else ()
        node.host.ip("address", "add", address, "dev", name, *(("nodad",) if ":" in address else ()), *metric)


@contextlib.contextmanager
def routed(nodes: Cluster, *objects: Node) -> Iterator[list[Routes]]:
    """Runs the routes of all nodes with these Node objects, mode auto."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(each.routes(RouteOptions())) for each in nodes.nodes]
        for node, routes in zip(objects, running, strict=True):
            routes.set_node(node)
            routes.replace_peers({each.name: each for each in objects})
        yield running


def links_of(nodes: Cluster, version: int = 4) -> list[str]:
    """Returns the link of the route to the other one of two nodes, for each."""
    first, second = nodes.nodes[:2]
    routes = [route_to(one.host, other.network(version)) for one, other in ((first, second), (second, first))]
    return [each[0]["dev"] for each in routes]


@FILTERS
def test_a_second_link_in_the_network_of_another_node(root, rp_filter):
    """A node with a further link in another node's network uses the tunnel as the other node does.

    With strict filters the two nodes themselves do not reach each other: the first drops the other's packets, because
    the answers would leave by the further link. It says so.
    """
    with cluster(2, is_joined=False) as nodes:
        first, second = nodes.nodes
        add_link(first, nodes.middle, share(nodes.middle, second), "192.0.2.77/24", "2001:db8:2::77/64")
        set_filters(nodes, rp_filter)
        with routed(nodes, first.node(), second.node()) as running:
            assert links_of(nodes) == links_of(nodes, 6) == [DEVICE, DEVICE]
            assert running[1].problems == []
            if rp_filter == "1":
                assert ask(second.host, first.host, first.address(4), within_s=1) == ""
                text = 'its packets arrive by "eth0" and are dropped, because the answers leave by "eth1"'
                assert [text in problem.text for problem in running[0].problems] == [True, True]
                first.host.set_sysctl(f"net/ipv4/conf/{UPLINK}/rp_filter", "2")
                running[0].reconcile()
            assert running[0].problems == []
            assert_reached(nodes)


@FILTERS
def test_a_second_link_with_an_internal_ip(root, rp_filter):
    """If the Node object names the address of the further link, too, both nodes are direct by it."""
    with cluster(2, is_joined=False) as nodes:
        first, second = nodes.nodes
        lan = share(nodes.middle, second)
        add_link(first, nodes.middle, lan, "192.0.2.77/24", "2001:db8:2::77/64")
        set_filters(nodes, rp_filter)
        further = ip_address("192.0.2.77"), ip_address("2001:db8:2::77")
        for addresses in ((*first.node().addresses, *further), (*further, *first.node().addresses)):
            with routed(nodes, first.node(addresses=addresses), second.node()) as running:
                assert [routes.problems for routes in running] == [[], []]
                assert links_of(nodes) == links_of(nodes, 6) == [SECOND, UPLINK]
                assert route_to(second.host, first.network(4))[0]["gateway"] == "192.0.2.77"
                assert_reached(nodes)


@FILTERS
@pytest.mark.parametrize("is_reversed", [False, True])
def test_two_shared_networks(root, rp_filter, is_reversed):
    """Two nodes with two links each choose one network, though each names the other one first."""
    with cluster(2, is_joined=False, versions=(4,)) as nodes:
        first, second = nodes.nodes
        add_link(first, nodes.middle, share(nodes.middle, second), "192.0.2.77/24")
        add_link(second, nodes.middle, share(nodes.middle, first), "192.0.1.77/24")
        set_filters(nodes, rp_filter)
        mine = [ip_address("192.0.1.11"), ip_address("192.0.2.77")]
        other = [ip_address("192.0.2.12"), ip_address("192.0.1.77")]
        if is_reversed:
            mine.reverse()
            other.reverse()
        objects = first.node(addresses=tuple(mine)), second.node(addresses=tuple(other))
        with routed(nodes, *objects) as running:
            assert [routes.problems for routes in running] == [[], []]
            assert links_of(nodes) == [UPLINK, SECOND]  # 192.0.1.0/24
            assert_reached(nodes, 4)


@FILTERS
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("is_joined", [True, False])
def test_a_node_without_an_internal_ip_of_one_version(root, rp_filter, version, is_joined):
    """The IPv6 pods of a node that has an IPv6 address, but no IPv6 InternalIP, are reached through the tunnel.

    Those of IPv4 are not reached without an IPv4 InternalIP: the other node's tunnel is IPv4. Both ends say so.
    """
    with cluster(2, is_joined=is_joined) as nodes:
        first, second = nodes.nodes
        set_filters(nodes, rp_filter)
        left = tuple(each for each in first.node().addresses if each.version != version)
        with routed(nodes, first.node(addresses=left), second.node()) as running:
            if version == 6:
                assert [routes.problems for routes in running] == [[], []]
                assert links_of(nodes, 6) == [DEVICE, DEVICE]
                assert_reached(nodes)
                return
            texts = [" ".join(text for _, text in routes.problems) for routes in running]
            assert "this node has no IPv4 InternalIP, which VXLAN uses on that one" in texts[0]
            assert "its Node object has no IPv4 InternalIP, which VXLAN uses on this node" in texts[1]
            if is_joined:
                assert_reached(nodes, 6)


@FILTERS
@pytest.mark.parametrize("preferred", [UPLINK, SECOND])
def test_two_links_to_one_network(root, rp_filter, preferred):
    """With two links to one network the routes leave by the one that the kernel prefers, as the node's packets do."""
    with cluster(2, is_joined=True) as nodes:
        first, second = nodes.nodes
        for version, length in ((4, 24), (6, 64)):
            address = f"{first.address(version)}/{length}"
            first.host.ip("address", "del", address, "dev", UPLINK)
            metric = "50" if preferred == UPLINK else "600"
            other = f"192.0.0.111/{length}" if version == 4 else f"2001:db8::111/{length}"
            extra = ("nodad",) if version == 6 else ()
            first.host.ip("address", "add", other, "dev", UPLINK, "metric", metric, *extra)
        add_link(first, nodes.middle, "br0", f"{first.address(4)}/24", f"{first.address(6)}/64")
        set_filters(nodes, rp_filter)
        with routed(nodes, first.node(), second.node()) as running:
            assert [routes.problems for routes in running] == [[], []]
            for version in (4, 6):
                way = json.loads(first.host.ip("-j", "route", "get", second.address(version)))[0]["dev"]
                assert links_of(nodes, version) == [way, UPLINK]
                assert way == preferred
            if preferred == SECOND or rp_filter != "1":  # else the nodes' own packets may be dropped, too
                assert_reached(nodes)


@FILTERS
def test_packets_arrive_through_the_tunnel_where_the_answers_are_direct(root, rp_filter):
    """While one node still has the mode "vxlan" and the other one "auto" already, the former's packets arrive.

    So do the answers, except with a strict filter on the uplink: that is not the agent's.
    """
    with cluster(2, is_joined=True) as nodes, nodes.routed(RouteOptions(mode="vxlan")):
        set_filters(nodes, rp_filter)
        source, target = nodes.nodes
        for node in nodes.nodes:
            node.set_pod_mtu(1450)
        with target.routes(RouteOptions()) as routes:
            routes.set_node(target.node())
            routes.replace_peers(nodes.peers())
            assert [route_to(target.host, source.network(version))[0]["dev"] for version in (4, 6)] == [UPLINK] * 2
            for version in (4, 6):
                with Stream(source.pod, target.pod, target.pod_address(version)) as stream:
                    stream.wait(20)
                assert stream.lost == 0
                expected = "" if rp_filter == "1" and version == 4 else source.pod_address(version)
                within_s = 20 if expected else 1
                assert ask(source.pod, target.pod, target.pod_address(version), within_s=within_s) == expected
