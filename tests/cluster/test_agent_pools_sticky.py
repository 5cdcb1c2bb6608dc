"""Pods that keep their addresses on another node: agents that watch their pods, real plugins and packets."""

from __future__ import annotations

import pytest

from tests.support.agent_nodes import Pod, error_of, pod_args
from tests.support.cluster_world import assert_reach
from tests.support.kubernetes_store import PODS
from tests.support.machine import eventually
from tests.support.pool_world import POOLS, kubernetes_pool_world

pytestmark = pytest.mark.timeout(1000)
STICKY = {"name": "data", "cidrs": ["10.24.0.0/24", "fd00:24::/120"], "namespaces": ["team-a"], "sticky": True}


@pytest.fixture(params=["direct", "vxlan"])
def world(request, tmp_path):
    """Four nodes on one link, or behind a router; the blocks of a deleted Node are free after a second."""
    options, is_routed = ("--sticky", "--reclaim-delay=1"), request.param == "vxlan"
    with kubernetes_pool_world(tmp_path, *options, count=4, routed=is_routed, pools=[*POOLS, STICKY]) as created:
        yield created


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


def test_a_pod_moves_with_its_address(world):
    """A pod of a StatefulSet, created again on another node, has its address, and all nodes' pods reach it there."""
    first, second, third, _ = world.nodes
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
