"""Five nodes with agents and plugins: pods reach the pods of other nodes, direct and through VXLAN."""

import itertools

import pytest

from tests.support.agent_nodes import SERVER
from tests.support.attaching import reaches
from tests.support.cluster_world import world
from tests.support.sockets import call, service

pytestmark = pytest.mark.timeout(1000)
PAIRS = list(itertools.permutations(range(3), 2))


@pytest.fixture(scope="module", params=["direct", "vxlan"])
def running(request, tmp_path_factory):
    """A cluster on one link, or on a link for each node behind a router."""
    with world(tmp_path_factory.mktemp(request.param), routed=request.param == "vxlan") as created:
        yield created


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_pods_reach_each_other_with_their_addresses(running, protocol, version):
    """Each pod reaches the others over TCP and UDP, IPv4 and IPv6; the receiver sees the sender's address."""
    for source, target in PAIRS:
        reached = running.call(source, target, protocol, version)
        assert reached is not None, (source, target)
        assert reached.source == running.pods[source].addresses[version]


@pytest.mark.parametrize("version", [4, 6])
def test_largest_packets_pass_unfragmented(running, version):
    """A packet of the pod's MTU passes without fragmentation; a larger one is refused in the pod itself."""
    headers, tunnel = 28 if version == 4 else 48, 50 if running.is_routed else 0  # the nodes' link is IPv4
    size = 1500 - tunnel - headers
    options = ("-M", "do", "-s")
    pod, destination = running.pods[0].namespace, running.pods[1].addresses[version]
    assert reaches(pod, destination, options=(*options, str(size)))
    assert not reaches(pod, destination, within_s=1, options=(*options, str(size + 1)))


@pytest.mark.parametrize("version", [4, 6])
def test_node_reaches_the_pods_of_other_nodes_with_strict_reverse_path_filters(running, version):
    """A process on the node reaches a pod of another node, also with rp_filter 1 on both."""
    for node in running.nodes[:2]:
        node.network.set_sysctl("net/ipv4/conf/all/rp_filter", "1")
    assert reaches(running.nodes[0].network, running.pods[1].addresses[version])


def test_packets_to_other_networks_are_masqueraded(running):
    """A pod's packets to an address that is not the cluster's have the node's address."""
    pod = running.pods[0].namespace
    with service(running.fabric, "tcp", SERVER, 8080) as server:
        reached = call([server], pod, "tcp", SERVER, 8080)
    assert reached is not None
    assert reached.source == running.nodes[0].addresses[0]


def test_host_port_of_another_node_is_reached(running):
    """A pod reaches a host port of another node, and of its own (hairpin), by the node's address."""
    mapping = '{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}'
    target = running.nodes[1]
    pod = target.add("web", "--capability-args", mapping)
    try:
        with service(pod.namespace, "tcp", pod.addresses[4]) as server:
            for caller in (running.pods[0].namespace, running.pods[1].namespace, pod.namespace):
                assert call([server], caller, "tcp", target.addresses[0], 8080) is not None
    finally:
        target.delete("web")


def test_addresses_without_a_pod_are_unreachable(running):
    """A packet to an address of this node's podCIDR that no pod has does not leave the node."""
    node = running.nodes[0]
    node.run("ip", "link", "set", "cni0", "down")
    try:
        answer = node.run("ip", "route", "get", "10.244.1.200", check=False)
        assert answer == ""
    finally:
        node.run("ip", "link", "set", "cni0", "up")


def test_metrics_count_nodes_and_routes(running):
    """The metrics count five nodes, and a route to each of four for two IP versions."""
    agent = running.agents[0]
    assert agent.metric("podwire_agent_nodes") == 5
    assert agent.metric("podwire_agent_ready") == 1
    assert agent.metric("podwire_agent_routes") == 8
    assert agent.get("/healthz") == (200, "ok\n")
    assert agent.get("/nothing")[0] == 404
