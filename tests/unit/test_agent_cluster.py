"""The nodes of a cluster, and the networks and addresses of which more than one has them."""

import sys
from collections import Counter
from ipaddress import ip_address, ip_network
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cluster import Cluster, ClusterChange
from agent.node import Node


def node(name, *cidrs, addresses=()):
    return Node(name, f"uid-{name}", tuple(map(ip_network, cidrs)), tuple(map(ip_address, addresses)))


def cluster_of(*nodes, api=()):
    """Returns the cluster of some nodes, seen from the first one."""
    cluster = Cluster(nodes[0].name, tuple(map(ip_address, api)))
    cluster.replace({each.name: each for each in nodes})
    return cluster


def texts(*nodes):
    return list(cluster_of(node("-"), *nodes).conflicts.describe())


def networks(cluster):
    return {str(network) for network in cluster.conflicts.networks}


def get_usable(cluster, name):
    return [str(address) for address in cluster.get_usable(name).addresses]


@pytest.mark.parametrize(
    ("first", "second"), [("10.0.0.0/24", "10.0.0.0/24"), ("10.0.0.0/16", "10.0.7.0/24"), ("fd00::/48", "fd00::/64")]
)
def test_equal_and_nested_networks_are_a_conflict(first, second):
    """Two nodes with the same network, or one within the other's, are a conflict of both networks."""
    cluster = cluster_of(node("a", first), node("b", second))
    assert networks(cluster) == {first, second}
    same = f"nodes a and b both have podCIDR {first}"
    text = same if first == second else f"podCIDR {first} of node a overlaps {second} of node b"
    assert list(cluster.conflicts.describe()) == [text]
    for name in "ab":
        assert list(cluster.conflicts.describe_of(cluster.nodes[name])) == [text]


def test_a_network_of_many_nodes_is_one_text():
    """The text about a network of many nodes names three of them."""
    nodes = [node(f"n{number}", "10.0.0.0/24") for number in range(9)]
    assert texts(*nodes) == ["nodes n0, n1, n2 and 6 more all have podCIDR 10.0.0.0/24"]


def test_the_same_value_in_both_ip_versions_is_no_conflict():
    """0.0.0.0/0 and ::/0 do not overlap."""
    assert texts(node("a", "0.0.0.0/0"), node("b", "::/0")) == []


def test_an_address_of_several_nodes_is_reported_and_no_conflict():
    """An InternalIP of several nodes is named with them, while they have it; their networks do not conflict."""
    cluster = Cluster("a")
    nodes = [node(name, addresses=("192.0.2.1", "2001:db8::1")) for name in "cbde"]
    cluster.replace({each.name: each for each in nodes[:1]})
    assert not list(cluster.conflicts.describe_addresses())
    cluster.replace({each.name: each for each in nodes})
    shared = list(cluster.conflicts.describe_addresses())
    assert [text.partition(",")[0] for text in shared] == ["nodes c"] * 2
    assert "nodes c, b, d and 1 more have the same InternalIP 192.0.2.1, " in shared[0]
    assert "nodes c, b, d and 1 more have the same InternalIP 2001:db8::1, " in shared[1]
    assert not cluster.conflicts.networks
    for each in nodes[2:]:
        cluster.remove(each.name)
    cluster.set(node("b", addresses=("192.0.2.1", "192.0.2.1")))
    (text,) = cluster.conflicts.describe_addresses()
    assert text.startswith("nodes c, b have the same InternalIP 192.0.2.1, ")
    cluster.set(node("b", addresses=("192.0.2.2", "192.0.2.2")))
    assert not list(cluster.conflicts.describe_addresses())


def test_conflicting_networks_follow_the_nodes():
    """A network is conflicting while two nodes have it."""
    cluster = cluster_of(node("a", "10.0.0.0/24"), node("b", "10.0.1.0/24"))
    assert not cluster.conflicts.networks
    assert cluster.set(node("c", "10.0.1.0/24")) == ClusterChange(networks_changed=True)
    assert networks(cluster) == {"10.0.1.0/24"}
    assert list(cluster.conflicts.describe()) == ["nodes b and c both have podCIDR 10.0.1.0/24"]
    assert cluster.remove("b") == ClusterChange(networks_changed=True)
    assert not cluster.conflicts.networks


def test_a_change_without_networks_is_reported_as_such():
    """A change of addresses is no change of networks; this node is not among its peers."""
    cluster = cluster_of(node("a", "10.0.0.0/24"), node("b", "10.0.1.0/24"))
    assert cluster.set(node("b", "10.0.1.0/24", addresses=["192.0.2.2"])) == ClusterChange(networks_changed=False)
    assert list(cluster.peers) == ["b"]
    assert cluster.this == node("a", "10.0.0.0/24")
    direct = cluster.list_unmasqueraded("b", lambda network: True, lambda node: False)
    assert {str(network) for network in direct} == {"10.0.1.0/24", "192.0.2.2"}
    tunnelled = cluster.list_unmasqueraded("b", lambda network: True, lambda node: True)
    assert {str(network) for network in tunnelled} == {"10.0.1.0/24"}
    unrouted = cluster.list_unmasqueraded("b", lambda network: False, lambda node: False)
    assert {str(network) for network in unrouted} == {"192.0.2.2"}
    assert cluster.remove("nobody") == ClusterChange(networks_changed=False)


def test_a_known_node_with_wrong_podcidrs_keeps_its_networks():
    """A node with missing or wrong podCIDRs keeps the former ones, with the problem; a new node has none."""
    cluster = Cluster("a")
    cluster.set(node("b", "10.0.1.0/24"))
    assert not list(cluster.describe_wrong())
    cluster.set(node("b"))
    assert cluster.nodes["b"] == node("b", "10.0.1.0/24")._replace(problems=("its podCIDR is missing",))
    cluster.set(node("b")._replace(problems=("podCIDR 'x' is wrong",)))
    assert cluster.nodes["b"] == node("b", "10.0.1.0/24")._replace(problems=("podCIDR 'x' is wrong",))
    assert list(cluster.describe_wrong()) == ["node b: podCIDR 'x' is wrong"]
    cluster.replace({"b": node("b", "10.0.2.0/24")})
    assert cluster.nodes["b"] == node("b", "10.0.2.0/24")
    assert not list(cluster.describe_wrong())
    cluster.set(node("b")._replace(uid="other"))
    assert cluster.nodes["b"].pod_cidrs == ()


def test_an_address_in_another_nodes_podcidr_is_ignored():
    """An InternalIP in the podCIDR of another node is ignored: the text names its node, no network conflicts."""
    foreign = node("virtual", "10.244.77.0/24", addresses=["10.244.2.5"])
    cluster = cluster_of(
        node("a", "10.244.1.0/24", addresses=["192.0.2.1"]),
        node("b", "10.244.2.0/24", addresses=["192.0.2.2"]),
        foreign,
    )
    assert not cluster.conflicts.networks
    assert cluster.get_usable("virtual") == foreign._replace(addresses=(), has_only_ignored_addresses=True)
    (text,) = cluster.conflicts.describe_addresses()
    assert text.startswith("node virtual: InternalIP 10.244.2.5 is ignored, because it is in podCIDR 10.244.2.0/24 of")
    assert not list(cluster.conflicts.describe_of(cluster.nodes["b"]))
    listed = cluster.list_unmasqueraded("virtual", lambda network: True, lambda node: False)
    assert {str(network) for network in listed} == {"10.244.77.0/24"}
    cluster.set(node("virtual", addresses=["10.244.2.5", "192.0.2.9"]))
    assert get_usable(cluster, "virtual") == ["192.0.2.9"]
    assert not cluster.get_usable("virtual").has_only_ignored_addresses


def test_networks_of_the_nodes_and_of_the_api_server_are_no_podcidrs():
    """A podCIDR with an address of the API server, of this node or of its own node, or among the nodes' is wrong."""
    cluster = Cluster("a", [ip_address("203.0.113.9")])
    cluster.set(node("a", "10.0.0.0/24", addresses=["192.0.2.1"]))
    cluster.set(node("b", "192.0.2.0/24", "10.0.1.0/24", addresses=["192.0.3.2"]))
    cluster.set(node("c", "203.0.113.0/24", "192.0.2.1/32", addresses=["203.0.113.7"]))
    cluster.set(node("d", "192.0.4.0/24"))
    cluster.set(node("e", "10.0.5.0/24", addresses=["192.0.4.7", "10.0.5.1"]))
    assert sorted(cluster.conflicts.describe()) == [
        "podCIDR 10.0.5.0/24 of node e contains the InternalIP 10.0.5.1 of node e",
        "podCIDR 192.0.2.0/24 of node b contains the InternalIP 192.0.2.1 of node a",
        "podCIDR 192.0.2.0/24 of node b overlaps 192.0.2.1/32 of node c",
        "podCIDR 192.0.2.1/32 of node c contains the InternalIP 192.0.2.1 of node a",
        "podCIDR 192.0.4.0/24 of node d contains the InternalIP 192.0.4.7 of node e",
        "podCIDR 203.0.113.0/24 of node c contains 203.0.113.9, an address of the API server",
    ]
    assert networks(cluster) == {
        "10.0.5.0/24", "192.0.2.0/24", "192.0.2.1/32", "192.0.4.0/24", "203.0.113.0/24",
    }  # fmt: skip
    assert [get_usable(cluster, name) for name in "ace"] == [["192.0.2.1"], ["203.0.113.7"], ["192.0.4.7", "10.0.5.1"]]
    conflicts = [list(cluster.conflicts.describe_of(each)) for each in cluster.nodes.values()]
    assert [bool(each) for each in conflicts] == [False, True, True, True, True]
    cluster.set(node("a", "10.0.0.0/24", addresses=["192.0.9.1"]))
    cluster.remove("c")
    assert networks(cluster) == {"10.0.5.0/24", "192.0.4.0/24"}


PREFIXES = st.builds(
    lambda value, length: (value >> 8 - length << 8 - length, length), st.integers(0, 255), st.integers(4, 8)
)
NODES = st.tuples(
    st.sampled_from("abcde"),
    st.lists(PREFIXES, max_size=2, unique=True),
    st.lists(st.integers(0, 255), max_size=2, unique=True),
)
BASES = {4: 0x0A000000, 6: 0xFD00 << 112}


def drawn(version, name, prefixes, hosts):
    """Returns a node in the smallest part of the address space in which much overlaps."""
    base, width = BASES[version], 32 if version == 4 else 128
    cidrs = tuple(ip_network((base | first, width - 8 + length)) for first, length in prefixes)
    return Node(name, name, cidrs, tuple(ip_address(base | host) for host in hosts))


def expected(nodes, api, *, fixed):
    """Returns the conflicting networks and the ignored addresses by a comparison of everything with everything."""
    this = nodes.get("a")
    pairs = [(network, each) for each in nodes.values() for network in each.pod_cidrs]

    def common(one, other):
        differing = int(getattr(one, "network_address", one)) ^ int(getattr(other, "network_address", other))
        lengths = (getattr(each, "prefixlen", each.max_prefixlen) for each in (one, other))
        return min(one.max_prefixlen - differing.bit_length(), *lengths)

    def is_wrong(network):
        owners = {each.name for other, each in pairs if other == network}
        for holder in nodes.values():
            for address in holder.addresses:
                if address in network and (holder.name == "a" or holder.name in owners):
                    return True
                if address in network and fixed and this and this.pod_cidrs:
                    pods = max(common(network, each) for each in this.pod_cidrs)
                    if max((common(address, each) for each in this.addresses), default=0) > pods:
                        return True
        return any(address in network for address in api)

    wrong = {network for network, _ in pairs if is_wrong(network)}
    overlapping = {
        network for (network, one), (other, two) in product(pairs, pairs) if one != two and network.overlaps(other)
    }
    ignored = {
        address
        for each in nodes.values()
        for address in each.addresses
        if any(address in network and network not in wrong for network, _ in pairs)
    }
    return wrong | overlapping, ignored


@given(
    st.lists(st.one_of(NODES, st.sampled_from("abcde")), max_size=14),
    st.sampled_from([4, 6]),
    st.booleans(),
    st.sets(st.integers(0, 255), max_size=1),
)
def test_the_indexes_equal_a_full_computation(steps, version, fixed, api):
    """After each change, the conflicts and the ignored addresses are those that all nodes compared with all have."""
    api_addresses = [ip_address(BASES[version] | host) for host in api]
    cluster = Cluster("a", api_addresses, fixed=fixed)
    nodes: dict[str, Node] = {}
    before: dict[str, list[Any]] = {}
    cluster._is_fixed = False  # networks may change here
    for step in steps:
        name = step[0]
        if isinstance(step, str):
            nodes.pop(name, None)
            change = cluster.remove(name)
        else:
            nodes[name] = drawn(version, *step)
            change = cluster.set(nodes[name])
        conflicting, ignored = expected(nodes, api_addresses, fixed=fixed)
        assert cluster.conflicts.networks == conflicting
        assert len(cluster.conflicts) == len(conflicting)
        assert bool(list(cluster.conflicts.describe())) == bool(conflicting)
        after = {each.name: [one for one in each.addresses if one not in ignored] for each in nodes.values()}
        assert {each: list(cluster.get_usable(each).addresses) for each in nodes} == after
        assert change.others == {each for each in after if each != name and after[each] != before[each]}
        shared = Counter(one for each in nodes.values() for one in each.addresses)
        reported = len(ignored) + sum(number > 1 for number in shared.values())
        assert len(list(cluster.conflicts.describe_addresses())) == reported
        before = after


@pytest.mark.parametrize("blocks", [1, 8])
def test_a_change_costs_the_same_in_any_cluster(blocks):
    """A node that joins, or gets another block, costs about as many calls in a cluster of 100 and of 1,000 nodes."""

    def nth(number, count=blocks):
        cidrs = [ip_network(((16 * number + block) << 8, 24)) for block in range(count)]
        return Node(f"n{number}", "", tuple(cidrs), (ip_address(0xFD << 120 | number),))

    def count_calls(nodes):
        cluster = Cluster("n0", fixed=False)
        cluster.replace({f"n{number}": nth(number) for number in range(nodes)})
        changes = [nth(nodes), nth(nodes // 2, blocks + 1)]
        calls: list[str] = []
        sys.setprofile(lambda frame, event, argument: calls.append(event))
        for change in changes:
            cluster.set(change)
        sys.setprofile(None)
        return len(calls)

    assert count_calls(1000) < 2 * count_calls(100)
