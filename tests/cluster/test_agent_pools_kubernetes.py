"""Agents that share pools in custom resources: applied pools, blocks of a machine that is gone, addresses that move."""

import signal
from typing import Any

import pytest

from agent.api_server import Server
from agent.kubernetes import ApiClient
from agent.pools.kubernetes_store import KubernetesStore
from tests.support import stores
from tests.support.agent_nodes import Pod, error_of, pod_args
from tests.support.attaching import reaches
from tests.support.cluster_world import assert_reach
from tests.support.kubernetes_double import EVENTS, NODES
from tests.support.kubernetes_store import PODS, SPACES
from tests.support.machine import eventually
from tests.support.pool_world import POOLS, kubernetes_pool_world, without_cidrs

pytestmark = pytest.mark.timeout(1000)


@pytest.fixture
def world(tmp_path):
    """Three nodes, whose agents reclaim the blocks of a Node that has been deleted for a second."""
    with kubernetes_pool_world(tmp_path, "--reclaim-delay=1") as created:
        yield created


def admin_of(world, directory):
    """Returns the administrator's client of the API server."""
    return ApiClient(Server(world.server.url, directory / "ca.crt"), directory / "token")


@pytest.fixture
def store(world, tmp_path):
    """The store, for the administrator."""
    return KubernetesStore(admin_of(world, tmp_path), "default")


def owned(store, name):
    """Returns the blocks whose owner has a name."""
    nodes = {node for node, entry in store.list_entries().by_node.items() if entry.value.name == name}
    return [block for block, stored in store.list_blocks().items() if stored.value.owner in nodes]


def turn_off(world):
    """Ends the first machine; returns its node."""
    world.agents[0].stop(signal.SIGKILL)
    world.nodes[0].power_off()
    return world.nodes[0]


@pytest.mark.parametrize("statement", ["deleted", "out of service"])
def test_the_blocks_of_a_node_that_is_declared_off_become_free(world, store, statement):
    """The Node of a machine is deleted or tainted: the others free its blocks and delete the routes to them."""
    blocks = owned(store, world.nodes[0].name)
    dead = turn_off(world)
    if statement == "deleted":
        world.remove(dead)
    else:
        taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
        world.server.store.put(f"{NODES}/{dead.name}", {**without_cidrs(world, dead), "spec": {"taints": [taint]}})
    assert eventually(lambda: not owned(store, dead.name), within_s=100)
    assert eventually(lambda: str(blocks[0]) not in world.nodes[1].routes())


@pytest.mark.long
def test_the_blocks_of_a_silent_node_stay(world, store):
    """A machine that does not answer keeps its blocks: time proves nothing."""
    blocks = owned(store, world.nodes[0].name)
    dead = turn_off(world)
    assert not eventually(lambda: owned(store, dead.name) != blocks, within_s=6)


@pytest.mark.long
def test_a_node_that_registers_again_keeps_its_blocks(world, store):
    """A Node is deleted and registered again under a running machine: its agent takes over its record in time."""
    node = world.nodes[0]
    pod, blocks = node.add(), owned(store, node.name)
    world.remove(node)
    world.server.store.put(f"{NODES}/{node.name}", without_cidrs(world, node))
    assert not eventually(lambda: owned(store, node.name) != blocks, within_s=6)
    world.agents[0].wait_ready()
    assert reaches(pod.namespace, world.nodes[1].add().addresses[4])


def condition(admin):
    """Returns status and message of the condition of the IPSpace object."""
    conditions: Any = admin.get(f"{SPACES}/default")["status"].get("conditions", ())
    return next(((one["status"], one["message"]) for one in conditions), ("", ""))


@pytest.mark.long
def test_applied_pools_make_a_fresh_cluster_ready(tmp_path):
    """Agents wait for pools; applied ones make all nodes ready; refused ones change nothing; Events say so."""
    with kubernetes_pool_world(tmp_path, pools=()) as world:
        admin, first = admin_of(world, tmp_path), world.agents[0]
        first.wait_for("apply an IPSpace object")
        stores.apply_pools(admin, {"pools": [{**POOLS[0], "exclude": ["10.22.0.0/28"]}]})
        assert eventually(lambda: condition(admin)[0] == "False")
        assert "unknown key 'exclude'" in condition(admin)[1]
        first.wait_for("unknown key 'exclude'")

        stores.apply_pools(admin, {"pools": POOLS})
        assert eventually(lambda: condition(admin) == ("True", "the pools are in effect"))
        for agent in world.agents:
            agent.wait_ready()
        assert_reach(*(node.add() for node in world.nodes[:2]))

        stores.apply_pools(admin, {"pools": [{**POOLS[0], "blockPrefixLengths": {"ipv4": 28}}]})
        assert eventually(lambda: condition(admin)[0] == "False")
        assert all(agent.is_ready() for agent in world.agents)
        expected = [("Normal", "PoolsAccepted"), ("Warning", "PoolsRefused"), ("Warning", "PoolsRefused")]
        assert eventually(lambda: events(admin) == expected)


def events(admin):
    """Returns type and reason of the Events about the IPSpace object."""
    items: list[Any] = [*admin.list_objects(EVENTS, dict).items]
    return sorted((one["type"], one["reason"]) for one in items if one["involvedObject"]["kind"] == "IPSpace")


STICKY = {"name": "data", "cidrs": ["10.24.0.0/24", "fd00:24::/120"], "namespaces": ["team-a"], "sticky": True}


def schedule(world, name, node):
    """Creates a Pod object on a node, in place of one of the same name."""
    path = f"{PODS}/team-a.{name}"
    if path in world.server.store.objects:
        world.server.store.remove(path)
    metadata = {"namespace": "team-a", "name": name}
    world.server.store.put(path, {"metadata": metadata, "spec": {"nodeName": node.name}})


def try_add(node, name):
    """Runs ADD for a pod of the namespace team-a; returns the pod, or the error."""
    answer = node.try_add(name, *pod_args("team-a", name))
    return node.pod(name, answer) if "result" in answer else error_of(answer)


def add(node, name):
    """Runs ADD again and again, as kubelet does, until it succeeds."""
    answers = []

    def is_added():
        answers.append(try_add(node, name))
        assert isinstance(answers[-1], Pod) or answers[-1]["code"] == 11, answers[-1]
        return isinstance(answers[-1], Pod)

    assert eventually(is_added), answers[-1]
    return answers[-1]


@pytest.mark.parametrize("is_routed", [False, True], ids=["direct", "vxlan"])
def test_a_pod_moves_with_its_address(tmp_path, is_routed):
    """A pod of a StatefulSet, created again on another node, has its address, and all nodes' pods reach it there."""
    with kubernetes_pool_world(tmp_path, "--sticky", routed=is_routed, pools=[*POOLS, STICKY]) as world:
        first, second, third = world.nodes
        schedule(world, "db-0", first)
        schedule(world, "db-1", first)
        pod, other = add(first, "db-0"), add(first, "db-1")
        ordinary = [node.add() for node in (first, second, third)]
        assert_reach(pod, other, *ordinary)
        schedule(world, "db-0", second)
        assert eventually(lambda: "is still at node" in try_add(second, "db-0")["msg"])
        first.delete("db-0")
        moved = add(second, "db-0")
        assert moved.addresses == pod.addresses
        assert_reach(moved, other, *ordinary)
        assert not first.run("ip", "route", "show", pod.addresses[4], "dev", "cni0", check=False)
