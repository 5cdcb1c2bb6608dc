"""Nodes that lie or are gone, and agents that are killed: the routes stay, and packets keep flowing."""

import contextlib
import re
import signal
import subprocess

import pytest

from tests.support.cluster_agent import run_once
from tests.support.cluster_world import pod_cidrs, world
from tests.support.kubernetes_double import EVENTS, NODES
from tests.support.machine import eventually

pytestmark = pytest.mark.timeout(1000)


@pytest.fixture
def running(tmp_path):
    """Three nodes on one link, each with an agent and a pod."""
    with world(tmp_path, count=3) as created:
        yield created


def has_routes(node, number, target):
    """Returns whether the routes to the podCIDRs of a number have a node's addresses as gateways."""
    gateways = zip(pod_cidrs(number), target.addresses, strict=True)
    return all(f"via {address} " in node.route(cidr) for cidr, address in gateways)


@contextlib.contextmanager
def no_packet_lost(running, source=0, target=1):
    """Asserts that no packet between the pods of two nodes is lost during the block, and of twenty after it."""
    pod, destination = running.pods[source].namespace, running.pods[target].addresses[4]
    log = running.nodes[source].disk / "ping"

    def answers():
        return [int(number) for number in re.findall(r"icmp_seq=(\d+) ttl", log.read_text())]

    with log.open("w") as file:
        line = ["nsenter", f"--net={pod.path}", "ping", "-n", "-i", "0.01", destination]
        pinging = subprocess.Popen(line, stdout=file)
    try:
        yield
        before = len(answers())
        assert eventually(lambda: len(answers()) > before + 20)
    finally:
        pinging.kill()
        pinging.wait()
    assert answers() == list(range(1, len(answers()) + 1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_packet_is_lost_while_an_agent_is_replaced(running, number):
    """Routes and pods stay while the agent is stopped or killed, and while the next one starts."""
    before = running.nodes[0].routes()
    with no_packet_lost(running):
        assert running.agents[0].stop(number) == (0 if number == signal.SIGTERM else -number)
        assert running.nodes[0].routes() == before
        running.restart(0).wait_ready()
    assert running.nodes[0].routes() == before


def test_podcidr_of_two_nodes_changes_nothing(running):
    """A podCIDR of a second node changes no route; readiness, metric and an Event of those two name it."""
    first, second, third = running.nodes
    before = first.routes()
    with no_packet_lost(running):
        running.register(third, 2)
        running.agents[0].wait_for("nodes node-2 and node-3 both have podCIDR")
        assert running.agents[0].metric("podwire_agent_pod_cidr_conflicts") == 2
        after = first.routes()
    kept = [line for line in before.splitlines() if "10.244.3" not in line and "fd00:244:3" not in line]
    assert [line for line in after.splitlines() if line not in kept] == []
    assert has_routes(first, 2, second)
    assert eventually(lambda: any(path.startswith(EVENTS) for path in running.server.store.objects))
    running.register(third)
    running.agents[0].wait_ready()
    assert has_routes(first, 3, third)


@pytest.mark.long
@pytest.mark.parametrize("missing", ["all objects", "its object"])
def test_node_without_an_object_keeps_its_routes(running, missing):
    """The agent of a node whose object was deleted, or is in an empty API server, keeps routes, network and pods."""
    first = running.nodes[0]
    before = first.routes()
    if missing == "its object":
        running.remove(first)
    else:
        running.server.store.restore((5, {}))
        running.server.cut_watches()
    running.agents[0].wait_for("has no Node node-1")
    assert first.routes() == before
    first.add("second")
    for node in running.nodes:
        running.register(node)
    running.agents[0].wait_ready()


def test_restored_backup_removes_no_routes(running):
    """An API server that was restored from a backup lacks younger nodes: the routes to them stay."""
    first, second, third = running.nodes
    backup = running.server.store.backup()
    backup[1].pop(f"{NODES}/node-3")
    for _ in range(100):  # the restored server's versions stay below those that the agents know
        running.register(second, 8)
    assert eventually(lambda: has_routes(first, 8, second))
    running.server.store.restore(backup)
    running.server.cut_watches()
    assert eventually(lambda: any("restored from a backup" in line["msg"] for line in running.agents[0].log))
    assert eventually(lambda: has_routes(first, 2, second))
    assert has_routes(first, 3, third)


def test_changed_podcidr_waits_for_a_drained_node(running):
    """Another podCIDR of this node is not written while pods run on the bridge; it is once they are gone."""
    first = running.nodes[0]
    running.register(first, 9)
    running.agents[0].wait_for("1 pod runs in network")
    assert "10.244.1.0/24" in first.run("cat", "/etc/cni/net.d/10-podwire.conflist")
    first.delete()
    running.agents[0].wait_ready()
    assert "10.244.9.0/24" in first.run("cat", "/etc/cni/net.d/10-podwire.conflist")
    assert first.add("new").addresses[4].startswith("10.244.9.")


@pytest.mark.long
def test_dry_run_and_once(running):
    """--dry-run logs what it would change and changes nothing; --once changes it and ends."""
    first = running.nodes[0]
    assert run_once(first, *running.options, "--dry-run").returncode == 0  # beside the agent
    running.agents[0].stop()
    first.run("ip", "route", "delete", pod_cidrs(2)[0])
    before = first.routes()
    done = run_once(first, *running.options, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert pod_cidrs(2)[0] in done.stderr
    assert first.routes() == before
    assert run_once(first, *running.options, "--once").returncode == 0
    assert has_routes(first, 2, running.nodes[1])
