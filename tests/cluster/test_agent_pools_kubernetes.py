"""Agents that share pools in custom resources: what happens to a machine's blocks when its Node object is deleted."""

from __future__ import annotations

import itertools
import signal

import pytest

from agent.api_server import Server
from agent.kubernetes import Client
from agent.pools.kubernetes_store import kubernetes_store
from tests.support.attaching import reaches
from tests.support.kubernetes_double import NODES
from tests.support.machine import eventually
from tests.support.pool_world import kubernetes_pool_world, without_cidrs

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def world(tmp_path):
    """Three nodes, whose agents reclaim the blocks of a Node that has been deleted for a second."""
    with kubernetes_pool_world(tmp_path, "--reclaim-delay=1") as created:
        yield created


@pytest.fixture
def store(world, tmp_path):
    """The store, for the administrator."""
    return kubernetes_store(Client(Server(world.server.url, tmp_path / "ca.crt"), tmp_path / "token"), "default")


def owned(store, name):
    """Returns the blocks whose owner has a name."""
    nodes = {node for node, entry in store.list_entries().by_node.items() if entry.value.name == name}
    return [block for block, stored in store.list_blocks().items() if stored.value.owner in nodes]


def test_pods_of_all_nodes_reach_each_other(world):
    """Pods have addresses of their node's blocks and reach each other, IPv4 and IPv6."""
    pods = [world.add_pod(node) for node in world.nodes]
    for one, other in itertools.permutations(pods, 2):
        for version in (4, 6):
            assert reaches(one.namespace, other.addresses[version])


def test_a_node_object_without_internal_ips_changes_no_route(world):
    """With pools, too, a Node object that loses its InternalIPs changes no route, and packets arrive."""
    pods = [world.add_pod(node) for node in world.nodes[:2]]
    first = world.nodes[0]
    before = [node.run("ip", "route") for node in world.nodes]
    document = without_cidrs(world, first)
    document["status"]["addresses"] = []
    world.server.store.put(f"{NODES}/{first.name}", document)
    assert eventually(lambda: f"the agent keeps {first.addresses[0]}" in world.agents[0].ready_text())
    assert [node.run("ip", "route") for node in world.nodes] == before
    for one, other in itertools.permutations(pods):
        assert reaches(one.namespace, other.addresses[4])


def test_the_blocks_of_a_deleted_node_become_free(world, store):
    """A machine is off and its Node is deleted: the other agents free its blocks and delete the routes to them."""
    dead, running = world.nodes[0], world.nodes[1]
    blocks = owned(store, dead.name)
    assert blocks
    world.agents[0].stop(signal.SIGKILL)
    dead.network.ip("link", "set", "eth0", "down")
    world.server.store.remove(f"{NODES}/{dead.name}")
    assert eventually(lambda: not owned(store, dead.name), within_s=30)
    assert eventually(lambda: str(blocks[0]) not in running.run("ip", "route"), within_s=10)


def test_the_blocks_of_a_silent_node_stay(world, store):
    """A machine that does not answer keeps its blocks: time proves nothing."""
    dead = world.nodes[0]
    blocks = owned(store, dead.name)
    world.agents[0].stop(signal.SIGKILL)
    dead.network.ip("link", "set", "eth0", "down")
    assert not eventually(lambda: owned(store, dead.name) != blocks, within_s=6)


def test_a_node_that_registers_again_keeps_its_blocks(world, store):
    """A Node is deleted and registered again under a running machine: its agent takes over its record in time."""
    node = world.nodes[0]
    pod = world.add_pod(node)
    blocks = owned(store, node.name)
    world.server.store.remove(f"{NODES}/{node.name}")
    world.server.store.put(f"{NODES}/{node.name}", without_cidrs(world, node))
    assert not eventually(lambda: owned(store, node.name) != blocks, within_s=6)
    world.agents[0].wait_ready()
    assert reaches(pod.namespace, world.add_pod(world.nodes[1]).addresses[4])


def test_the_taint_out_of_service_frees_the_blocks(world, store):
    """The taint out-of-service is the administrator's statement, too."""
    dead = world.nodes[0]
    world.agents[0].stop(signal.SIGKILL)
    dead.network.ip("link", "set", "eth0", "down")
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    world.server.store.put(f"{NODES}/{dead.name}", {**without_cidrs(world, dead), "spec": {"taints": [taint]}})
    assert eventually(lambda: not owned(store, dead.name), within_s=30)
