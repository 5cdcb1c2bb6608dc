"""Agents that share pools in etcd: real plugins, real packets between the blocks of nodes."""

import itertools
import json
import signal
from ipaddress import ip_address, ip_network

import pytest

from tests.support.agent_nodes import error_of
from tests.support.attaching import reaches
from tests.support.cluster_world import assert_reach
from tests.support.machine import eventually
from tests.support.pool_world import POOLS, pool_world

pytestmark = pytest.mark.timeout(1000)
PODS = 70  # more than a block of 61 addresses has


@pytest.fixture(scope="module", params=["direct", "vxlan"])
def world(request, tmp_path_factory):
    """A cluster on one link, or on a link for each node behind a router."""
    with pool_world(tmp_path_factory.mktemp(request.param), routed=request.param == "vxlan") as created:
        yield created


def test_pods_reach_pods_of_all_blocks(world):
    """Pods of a node's first and second block reach pods of other nodes, with their addresses, IPv4 and IPv6."""
    first = world.nodes[0]
    pods = [node.add() for node in world.nodes]
    crowd = [f"crowd{number}" for number in range(PODS)]
    last = [first.add(name) for name in crowd][-1]
    assert ip_address(last.addresses[4]) not in ip_network(world.blocks(first)[0])
    assert_reach(*pods, last)
    for name in crowd:
        first.delete(name)
    for node in world.nodes:
        node.delete()


def test_pods_start_while_the_store_and_the_agent_are_down(world):
    """ADD and DEL go on without the store and without the agent; a full node says so with numbers and the cause."""
    node = world.nodes[1]
    world.etcd.kill(0)
    try:
        assert reaches(node.add("alone").namespace, node.add("beside").addresses[4])
        world.agents[node.name].stop(signal.SIGKILL)
        node.add("orphan")
        answers = (node.try_add(f"full{number}") for number in itertools.count())
        error = next(error for answer in answers if (error := error_of(answer)))
        assert error["code"] == 11
        assert "pool default has no free address on this node" in error["msg"]
    finally:
        world.etcd.start(0)
        world.etcd.wait()
    world.start(node).wait_ready()
    assert eventually(lambda: "result" in node.try_add("again"))


@pytest.mark.long
def test_pods_of_a_segment_are_on_one_link(tmp_path):
    """Macvlan pods of three nodes have addresses of one pool on the nodes' link, with its prefix and gateway."""
    pools = [
        *POOLS,
        {"name": "lan", "mode": "segment", "cidrs": ["203.0.113.0/24"], "blockPrefixLengths": {"ipv4": 28}},
    ]
    conf = {
        "cniVersion": "1.0.0",
        "name": "lan",
        "plugins": [{"type": "macvlan", "master": "eth0", "ipam": {"type": "host-local", "pool": "lan"}}],
    }
    with pool_world(tmp_path, "--pool-network=lan=lan", count=3, pools=pools) as world:
        world.fabric.ip("address", "add", "203.0.113.1/24", "dev", "lan")
        pods = []
        for node in world.nodes:
            node.run("sh", "-c", "cat >/etc/cni/net.d/20-lan.conflist", stdin=json.dumps(conf))
            assert eventually(lambda: world.blocks(node, network="lan") != [])  # noqa: B023
            pods.append(node.add(network="lan"))
        for one, other in itertools.permutations(pods, 2):
            assert reaches(one.namespace, other.addresses[4])
        assert all(reaches(one.namespace, "203.0.113.1") for one in pods)
        assert not world.nodes[0].run("ip", "route", "show", "root", "203.0.113.0/24", "proto", "112")
