"""A fresh cluster whose pools come from `kubectl apply`: three agents, and an IPSpace object that a person writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.api_server import Server
from agent.kubernetes import Client
from tests.support.cluster_world import assert_reach
from tests.support.kubernetes_double import EVENTS
from tests.support.kubernetes_store import SPACES
from tests.support.machine import eventually
from tests.support.pool_world import POOLS, kubernetes_pool_world

pytestmark = pytest.mark.timeout(300)
PATH = f"{SPACES}/default"


class Kubectl:
    """The administrator's client of the API server."""

    def __init__(self, world, directory):
        self.client = Client(Server(world.server.url, directory / "ca.crt"), directory / "token")

    def apply(self, pools):
        """Creates the object, or replaces its spec."""
        document = {"apiVersion": "podwire.io/v1", "kind": "IPSpace", "metadata": {"name": "default"}}
        if self.client.list_objects(SPACES, dict).items:
            self.client.patch(PATH, [{"op": "replace", "path": "/spec", "value": {"pools": pools}}])
        else:
            self.client.create(SPACES, {**document, "spec": {"pools": pools}})

    def get(self) -> Any:
        """Returns the object."""
        return self.client.get(PATH)

    def condition(self):
        """Returns status and message of the object's condition."""
        status = self.get()["status"]
        return next(((one["status"], one["message"]) for one in status.get("conditions", ())), ("", ""))

    def events(self):
        """Returns type and reason of the Events about the object."""
        items: list[Any] = [*self.client.list_objects(EVENTS, dict).items]
        return [(one["type"], one["reason"]) for one in items if one["involvedObject"]["kind"] == "IPSpace"]


@pytest.fixture
def world(tmp_path):
    """Three nodes with agents, and no pools."""
    with kubernetes_pool_world(tmp_path, pools=()) as created:
        yield created


def test_applied_pools_make_a_fresh_cluster_ready(world, tmp_path):
    """Agents wait for pools; applied ones make all nodes ready; refused ones change nothing."""
    kubectl, first = Kubectl(world, tmp_path), world.agents[0]
    first.wait_for("apply an IPSpace object")
    kubectl.apply([{**POOLS[0], "exclude": ["10.22.0.0/28"]}])
    assert eventually(lambda: kubectl.condition()[0] == "False")
    assert "unknown key 'exclude'" in kubectl.condition()[1]
    first.wait_for("unknown key 'exclude'")

    kubectl.apply(POOLS)
    assert eventually(lambda: kubectl.condition() == ("True", "the pools are in effect"))
    for agent in world.agents:
        agent.wait_ready()
    assert_reach(*(node.add() for node in world.nodes[:2]))

    kubectl.apply([{**POOLS[0], "blockPrefixLengths": {"ipv4": 28}}])
    assert eventually(lambda: kubectl.condition()[0] == "False")
    assert all(agent.is_ready() for agent in world.agents)
    assert eventually(
        lambda: sorted(kubectl.events()) == [("Normal", "PoolsAccepted")] + [("Warning", "PoolsRefused")] * 2
    )


def test_the_command_changes_applied_pools(world, tmp_path):
    """`podwire ipam pools --set` on a node writes the object that `kubectl apply` has created, and no other."""
    kubectl, node = Kubectl(world, tmp_path), world.nodes[0]
    kubectl.apply(POOLS)
    for agent in world.agents:
        agent.wait_ready()
    more = [*POOLS, {"name": "more", "cidrs": ["10.23.0.0/20"]}]
    node.run(node.tool, "ipam", "pools", "--set", "/dev/stdin", "--yes", stdin=json.dumps({"pools": more}))
    assert len(kubectl.client.list_objects(SPACES, dict).items) == 1
    space = kubectl.get()
    assert [pool["name"] for pool in space["spec"]["pools"]] == ["default", "more"]
    assert [pool["name"] for pool in space["status"]["pools"]] == ["default", "more"]
    assert kubectl.condition()[0] == "True"
