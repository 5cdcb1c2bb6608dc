"""The nodes of a cluster, and the networks that more than one of them has."""

import random
import time
from ipaddress import ip_address, ip_network

import pytest

from agent.cluster import Cluster, Conflict, find_conflicts
from agent.node import Node


def node(name, *cidrs, addresses=()):
    return Node(name, f"uid-{name}", tuple(map(ip_network, cidrs)), tuple(map(ip_address, addresses)))


def pairs(*nodes):
    return {(str(one.network), one.node, str(one.other_network), one.other_node) for one in find_conflicts(nodes)}


def test_disjoint_networks_have_no_conflict():
    """Networks side by side, of both IP versions, are no conflict."""
    one = node("a", "10.0.0.0/24", "fd00::/64")
    assert pairs(one, node("b", "10.0.1.0/24", "fd00:0:0:1::/64")) == set()


@pytest.mark.parametrize(
    ("first", "second"), [("10.0.0.0/24", "10.0.0.0/24"), ("10.0.0.0/16", "10.0.7.0/24"), ("fd00::/48", "fd00::/64")]
)
def test_equal_and_nested_networks_are_a_conflict(first, second):
    """Two nodes with the same network, or one within the other's, are a conflict."""
    assert pairs(node("a", first), node("b", second)) == {(first, "a", second, "b")}


def test_nested_networks_of_one_node_are_no_conflict():
    """A node's networks may overlap each other."""
    assert pairs(node("a", "10.0.0.0/16", "10.0.7.0/24")) == set()


def test_the_same_value_in_both_ip_versions_is_no_conflict():
    """0.0.0.0/0 and ::/0 do not overlap."""
    assert pairs(node("a", "0.0.0.0/0"), node("b", "::/0")) == set()


def test_an_address_of_several_nodes_is_reported_and_no_conflict():
    """An InternalIP of several nodes is named with them, while they have it; their networks do not conflict."""
    cluster = Cluster("a")
    nodes = [node(name, addresses=("192.0.2.1", "2001:db8::1")) for name in "cbdea"]
    cluster.replace({each.name: each for each in nodes[:1]})
    assert not cluster.shared_addresses
    cluster.replace({each.name: each for each in nodes})
    texts = "\n".join(cluster.shared_addresses)
    assert "nodes c, b, d and 2 more have the same InternalIP 192.0.2.1, " in texts
    assert "nodes c, b, d and 2 more have the same InternalIP 2001:db8::1, " in texts
    assert texts.count(" have the same ") == 2
    assert cluster.conflicts == ()
    for each in nodes[2:]:
        cluster.remove(each.name)
    cluster.set(node("b", addresses=("192.0.2.1", "192.0.2.1")))
    (text,) = cluster.shared_addresses
    assert text.startswith("nodes c, b have the same InternalIP 192.0.2.1, ")
    cluster.set(node("b", addresses=("192.0.2.2", "192.0.2.2")))
    assert not cluster.shared_addresses


@pytest.mark.parametrize("seed", range(50))
def test_conflicts_equal_those_of_all_pairs(seed):
    """The conflicts are those that a comparison of all pairs yields."""
    chance = random.Random(seed)
    nodes = []
    for number in range(12):
        lengths = (chance.randint(20, 28) for _ in range(chance.randint(0, 3)))
        cidrs = [str(ip_network((chance.randrange(1 << 12) << 8, size), strict=False)) for size in lengths]
        nodes.append(node(f"n{number}", *cidrs))
    expected = {
        frozenset({(str(one), a.name), (str(other), b.name)})
        for a in nodes
        for b in nodes
        if a.name < b.name
        for one in a.pod_cidrs
        for other in b.pod_cidrs
        if one.overlaps(other)
    }
    assert {frozenset({(one[0], one[1]), (one[2], one[3])}) for one in pairs(*nodes)} == expected


def test_conflicting_networks_follow_the_nodes():
    """A network is conflicting while two nodes have it."""
    cluster = Cluster("a")
    cluster.replace({"a": node("a", "10.0.0.0/24"), "b": node("b", "10.0.1.0/24")})
    assert not cluster.conflicting
    assert cluster.set(node("c", "10.0.1.0/24"))
    assert cluster.conflicting == {ip_network("10.0.1.0/24")}
    assert str(cluster.conflicts[0]) == "nodes b and c both have podCIDR 10.0.1.0/24"
    assert cluster.remove("b")
    assert not cluster.conflicting


def test_a_change_without_networks_is_reported_as_such():
    """A change of addresses is no change of networks; this node is not among its peers."""
    cluster = Cluster("a")
    cluster.replace({"a": node("a", "10.0.0.0/24"), "b": node("b", "10.0.1.0/24")})
    assert not cluster.set(node("b", "10.0.1.0/24", addresses=["192.0.2.2"]))
    assert list(cluster.peers) == ["b"]
    assert cluster.this == node("a", "10.0.0.0/24")
    direct = cluster.list_networks(lambda network: True, lambda node: False)
    assert {str(network) for network in direct} == {"10.0.0.0/24", "10.0.1.0/24", "192.0.2.2/32"}
    tunnelled = cluster.list_networks(lambda network: True, lambda node: True)
    assert {str(network) for network in tunnelled} == {"10.0.0.0/24", "10.0.1.0/24"}
    unrouted = cluster.list_networks(lambda network: False, lambda node: False)
    assert {str(network) for network in unrouted} == {"192.0.2.2/32"}
    assert not cluster.remove("nobody")


def test_a_known_node_with_wrong_podcidrs_keeps_its_networks():
    """A node with missing or wrong podCIDRs keeps the former ones, with the problem; a new node has none."""
    cluster = Cluster("a")
    cluster.set(node("b", "10.0.1.0/24"))
    cluster.set(node("b"))
    assert cluster.nodes["b"] == node("b", "10.0.1.0/24")._replace(problems=("its podCIDR is missing",))
    cluster.set(node("b")._replace(problems=("podCIDR 'x' is wrong",)))
    assert cluster.nodes["b"] == node("b", "10.0.1.0/24")._replace(problems=("podCIDR 'x' is wrong",))
    cluster.replace({"b": node("b", "10.0.2.0/24")})
    assert cluster.nodes["b"] == node("b", "10.0.2.0/24")
    cluster.set(node("b")._replace(uid="other"))
    assert cluster.nodes["b"].pod_cidrs == ()


def test_networks_with_the_address_of_a_node_or_of_the_api_server_are_conflicting():
    """A network with an InternalIP or the API server's address is a conflict of that network's node only."""
    cluster = Cluster("a", [ip_address("203.0.113.9")])
    cluster.set(node("a", "10.0.0.0/24", addresses=["192.0.2.1"]))
    cluster.set(node("b", "192.0.2.0/24", "10.0.1.0/24", addresses=["192.0.3.2"]))
    cluster.set(node("c", "203.0.113.0/24", "192.0.2.1/32", addresses=["203.0.113.7"]))
    assert sorted(map(str, cluster.conflicts)) == [
        "podCIDR 192.0.2.0/24 of node b contains the InternalIP 192.0.2.1 of node a",
        "podCIDR 192.0.2.0/24 of node b overlaps 192.0.2.1/32 of node c",
        "podCIDR 192.0.2.1/32 of node c contains the InternalIP 192.0.2.1 of node a",
        "podCIDR 203.0.113.0/24 of node c contains 203.0.113.9, an address of the API server",
        "podCIDR 203.0.113.0/24 of node c contains the InternalIP 203.0.113.7 of node c",
    ]
    assert cluster.conflicting == {ip_network(text) for text in ("192.0.2.0/24", "192.0.2.1/32", "203.0.113.0/24")}
    assert [any(one.has_network_of(name) for one in cluster.conflicts) for name in "abc"] == [False, True, True]
    cluster.set(node("a", "10.0.0.0/24", addresses=["192.0.9.1"]))
    cluster.remove("c")
    assert not cluster.conflicts


def test_overlap_is_described_with_both_networks():
    """The text of a conflict names both nodes and both networks."""
    conflict = Conflict(ip_network("10.0.0.0/16"), "a", ip_network("10.0.7.0/24"), "b")
    assert str(conflict) == "podCIDR 10.0.0.0/16 of node a overlaps 10.0.7.0/24 of node b"


def test_conflicts_of_many_nodes_take_no_quadratic_time():
    """Ten times the nodes take far less than a hundred times as long."""

    def seconds(count):
        nodes = [node(f"n{number}", str(ip_network((number << 8, 24)))) for number in range(count)]
        start = time.perf_counter()
        assert not list(find_conflicts(nodes))
        return time.perf_counter() - start

    assert min(seconds(5000) for _ in range(3)) < 80 * max(seconds(500) for _ in range(3))
