"""Packets between the pods of five nodes whose routes the agent keeps, in one segment and through a router."""

from ipaddress import ip_network

import pytest

from agent.route_plan import RouteOptions
from agent.routes import Routes
from tests.support.cluster import Cluster, TestNode, ask, cluster, mtu_of, transfer

FIVE = 5
OVERHEAD = {4: 50, 6: 70}


def check_packets(nodes: Cluster, versions: tuple[int, ...], mtu: int) -> None:
    """Checks UDP and TCP between pods, and from a node to the pod of another node, at full MTU."""
    first, last = nodes.nodes[0], nodes.nodes[-1]
    for node in nodes.nodes:
        node.set_pod_mtu(mtu)
    for version in versions:
        header = 28 if version == 4 else 48
        for source, target in ((first, last), (last, first), (nodes.nodes[1], nodes.nodes[2])):
            address = target.pod_address(version)
            assert ask(source.pod, target.pod, address, mtu - header) == source.pod_address(version)
            # The source is an address whose reply returns the same way: strict reverse path filtering drops others.
            assert ask(source.host, target.pod, address, mtu - header) == node_source(source, version)
        received, resent = transfer(first.pod, last.pod, last.pod_address(version), 10_000_000)
        assert received == 10_000_000
        assert resent < 700  # a tenth of the segments, on a busy machine


def node_source(node: TestNode, version: int) -> str:
    """Returns the source address of a node's packets: its InternalIP, or with VXLAN the first of its pod network."""
    if "podwire-vxlan" not in node.host.ip("link"):
        return node.address(version)
    return str(ip_network(node.network(version)).network_address)


def assert_no_problems(running: list[Routes]) -> None:
    assert [routes.problems for routes in running] == [[]] * len(running)


@pytest.mark.parametrize("versions", [(4,), (6,), (4, 6)])
def test_direct_routes_carry_packets(root, versions):
    """In one segment each node has one route per peer and IP version, no device, and the pods reach each other."""
    with cluster(FIVE, is_joined=True, versions=versions) as nodes, nodes.routed(RouteOptions()) as running:
        assert_no_problems(running)
        check_packets(nodes, versions, 1500)
        for node, routes in zip(nodes.nodes, running, strict=True):
            assert routes.counters.routes == (FIVE - 1) * len(versions)
            assert "podwire-vxlan" not in node.host.ip("link")


@pytest.mark.parametrize("mode", ["auto", "vxlan"])
@pytest.mark.parametrize("versions", [(4,), (6,), (4, 6)])
def test_vxlan_carries_packets(root, versions, mode):
    """Through a router, and in one segment with mode vxlan, the pods reach each other by VXLAN at its full MTU."""
    with (
        cluster(FIVE, is_joined=mode == "vxlan", versions=versions) as nodes,
        nodes.routed(RouteOptions(mode=mode)) as running,
    ):
        assert_no_problems(running)
        mtu = mtu_of(nodes.nodes[0].host, "podwire-vxlan")
        assert mtu == 1500 - OVERHEAD[versions[0]]
        check_packets(nodes, versions, mtu)


def test_without_routes_no_packet_arrives(root):
    """With mode none the nodes have no routes, and pods of different nodes do not reach each other."""
    with cluster(2, is_joined=True) as nodes, nodes.routed(RouteOptions(mode="none")):
        first, second = nodes.nodes
        assert ask(first.pod, second.pod, second.pod_address(4), within_s=1) == ""


def test_without_checksum_offload_packets_arrive(root):
    """With checksum offload off the device computes no checksums itself, and TCP works."""
    with cluster(3, is_joined=False) as nodes:
        options = RouteOptions(checksum_offload=False)
        for node in nodes.nodes:
            with node.host.entered(), node.routes(options) as routes:
                routes.set_node(node.node())
                routes.replace_peers(nodes.peers())
                assert any("checksum offload" in line for line in node.log)
        check_packets(nodes, (4, 6), 1450)
