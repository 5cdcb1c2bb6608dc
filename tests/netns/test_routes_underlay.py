"""Nodes whose Node object loses its InternalIP, or has one that no interface has: nothing is given up without need."""

import contextlib
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from agent.node import Node
from agent.route_plan import RouteOptions
from agent.routes import Routes
from tests.netns.test_routes_restored import texts, wait_and_handle
from tests.support.agent_routes import DEVICE, assert_reached, route_to
from tests.support.cluster import UPLINK, Cluster, TestNode, cluster, mtu_of

PUBLIC = "198.18.7.7"  # leads to the first node by NAT


def restarted(node: TestNode, objects: dict[str, Node], options: RouteOptions | None = None) -> Routes:
    """Returns the routes of an agent that starts now."""
    routes = node.routes(options or RouteOptions())
    routes.set_node(objects[node.name])
    routes.replace_peers(objects)
    return routes


def local_of(node: TestNode) -> str:
    """Returns the underlay address of the tunnel of a node."""
    words = node.host.ip("-d", "link", "show", DEVICE).split()
    return words[words.index("local") + 1]


@pytest.mark.parametrize("is_joined", [True, False])
@pytest.mark.parametrize("lost", [(4, 6), (4,), (6,)])
def test_a_node_object_that_loses_its_internal_ips(root, is_joined, lost):
    """If a Node object loses its InternalIPs, or those of one version, all nodes keep the last ones; packets arrive."""
    with cluster(2, is_joined=is_joined) as nodes, nodes.routed(RouteOptions()) as running:
        first, second = nodes.nodes
        before = [route_to(first.host, second.network(version)) for version in (4, 6)]
        left = tuple(each for each in first.node().addresses if each.version not in lost)
        objects = {**nodes.peers(), first.name: first.node(addresses=left)}
        running[0].set_node(objects[first.name])
        running[1].update_peer(objects[first.name])
        assert [route_to(first.host, second.network(version)) for version in (4, 6)] == before
        version = f"IPv{lost[0]} " if left else ""
        text = f"this node's Node object has no {version}InternalIP any more: the agent keeps {first.address(lost[0])}"
        assert text in (running[0].note if left else texts(running[0]))
        assert bool(texts(running[0])) == (not left)
        assert texts(running[1]) == ""
        assert_reached(nodes)
        running[0].close()
        with restarted(first, objects) as again:
            assert_reached(nodes)
            running[1].close()
            with restarted(second, objects) as other:
                assert_reached(nodes)
                for routes in (again, other):
                    routes.set_node(nodes.peers()["node-1" if routes is again else "node-2"])
                    routes.replace_peers(nodes.peers())
                    assert (routes.problems, routes.note) == ([], "")
                assert [route_to(first.host, second.network(version)) for version in (4, 6)] == before
                assert_reached(nodes)


def test_a_node_that_never_had_an_internal_ip_has_no_routes(joined):
    """A new node whose object has no InternalIP yet changes nothing, and says what it waits for."""
    first = joined.nodes[0]
    with restarted(first, {**joined.peers(), first.name: first.node(addresses=())}) as routes:
        assert "node-2: this node has no InternalIP" in texts(routes)
        assert route_to(first.host, joined.nodes[1].network(4)) == []
        assert DEVICE not in first.host.ip("link")
        routes.set_node(first.node())
        assert routes.problems == []


@contextlib.contextmanager
def translated(nodes: Cluster) -> Iterator[dict[str, Node]]:
    """Translates PUBLIC to the first node's address between the nodes; yields the Node objects that name it."""
    first = nodes.nodes[0]
    rules = f"ip daddr {PUBLIC} dnat to {first.address(4)}"
    chain = "type nat hook prerouting priority -100;"
    nodes.middle.run("nft", f"add table ip nat; add chain ip nat to {{ {chain} }}; add rule ip nat to {rules}")
    yield {**nodes.peers(), first.name: first.node(addresses=(ip_address(PUBLIC),))}


@pytest.mark.needs("nft_nat")
def test_an_internal_ip_that_no_interface_has(root):
    """A node whose InternalIP becomes one of a NAT keeps the address of its tunnel, also after a restart."""
    with cluster(2, is_joined=False) as nodes, nodes.routed(RouteOptions()) as running, translated(nodes) as objects:
        first = nodes.nodes[0]
        running[0].set_node(objects[first.name])
        running[1].update_peer(objects[first.name])
        assert local_of(first) == first.address(4)
        text = f"InternalIP {PUBLIC} is on no interface that is up: the tunnel keeps {first.address(4)}; where it is"
        assert text in texts(running[0])
        assert_reached(nodes)
        running[0].close()
        with restarted(first, objects) as again:
            assert local_of(first) == first.address(4)
            assert text in texts(again)
            assert_reached(nodes)


@pytest.mark.parametrize("is_named", [True, False])
def test_the_option_names_the_underlay(root, is_named):
    """With --underlay, an address or the name of an interface, a node behind a NAT works from its first start."""
    with cluster(2, is_joined=False) as nodes, translated(nodes) as objects:
        first, second = nodes.nodes
        with restarted(second, objects) as other:
            with restarted(first, objects) as routes:
                assert "there is no tunnel; where it is translated (NAT), set --underlay" in texts(routes)
                assert "node-2: no interface of this node has its InternalIP, which VXLAN uses" in texts(routes)
                assert DEVICE not in first.host.ip("link")
            underlay = UPLINK if is_named else ip_address(first.address(4)).packed
            with restarted(first, objects, RouteOptions(underlay=underlay)) as routes:
                assert [*routes.problems, *other.problems, routes.note, other.note] == ["", ""]
                assert local_of(first) == first.address(4)
                assert mtu_of(first.host, DEVICE) == 1450
                assert_reached(nodes)


def test_the_named_underlay_appears_changes_and_disappears(distant):
    """The tunnel follows the address of the interface of --underlay, and keeps the last one without it."""
    first, host = distant.nodes[0], distant.nodes[0].host
    with restarted(first, distant.peers(), RouteOptions(underlay="wan0")) as routes:
        problem = "--underlay wan0 names no IPv4 address that this node has: the tunnel keeps"
        assert f"{problem} 192.0.1.11" in texts(routes)
        host.ip("link", "add", "wan0", "type", "bridge")
        host.ip("link", "set", "wan0", "up")
        wait_and_handle(routes)
        for address in ("203.0.113.7", "203.0.113.8"):
            host.ip("address", "add", f"{address}/32", "dev", "wan0")
            wait_and_handle(routes)
            assert local_of(first) == address
            assert routes.problems == []
            host.ip("address", "del", f"{address}/32", "dev", "wan0")
            wait_and_handle(routes)
        assert local_of(first) == "192.0.1.11"
        host.ip("link", "del", "wan0")
        wait_and_handle(routes)
        assert f"{problem} 192.0.1.11" in texts(routes)


def test_ipv4_routes_return_before_the_ipv6_address(distant):
    """A link that was down has lost its IPv6 address: the IPv4 routes return at once, the others with the address."""
    first, second = distant.nodes[:2]
    near = second.node(addresses=(ip_address("192.0.1.12"), ip_address("2001:db8:1::12")))
    with restarted(first, {**distant.peers(), second.name: near}) as routes:
        before = [route_to(first.host, second.network(version)) for version in (4, 6)]
        first.host.ip("link", "set", UPLINK, "down")
        wait_and_handle(routes)
        first.host.ip("link", "set", UPLINK, "up")
        wait_and_handle(routes)
        assert [route_to(first.host, second.network(version)) for version in (4, 6)] == [before[0], []]
        assert [text for _, text in routes.problems] == [
            f"this node's InternalIP {first.address(6)} is on no interface that is up: "
            "the agent keeps its routes and tunnel as they are until it is"
        ]
        assert not routes.has_refusals
        first.host.ip("address", "add", f"{first.address(6)}/64", "dev", UPLINK, "nodad")
        wait_and_handle(routes)
        assert [route_to(first.host, second.network(version)) for version in (4, 6)] == before
        assert routes.problems == []
