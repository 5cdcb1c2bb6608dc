"""Nodes that come, go, move and lie, and agents that are killed: the routes follow, and packets keep flowing."""

import contextlib
import re
import signal
import subprocess
import time
from functools import partial

import pytest

from tests.support.attaching import reaches
from tests.support.cluster_agent import Agent, run_once
from tests.support.cluster_world import pod_cidrs, world
from tests.support.kubernetes_double import EVENTS, NODES, Fault
from tests.support.machine import eventually

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def running(tmp_path):
    """Three nodes on one link, each with an agent and a pod."""
    with world(tmp_path, count=3) as created:
        yield created


def route(node, cidr):
    """Returns the main table's route to a network, "" if there is none."""
    family = "-6" if ":" in cidr else "-4"
    text = node.run("ip", family, "route", "show", cidr)
    return re.sub(r" +", " ", text).strip()


def has_routes(node, number, target):
    """Returns whether the routes to the podCIDRs of a number have a node's addresses as gateways."""
    gateways = zip(pod_cidrs(number), target.addresses, strict=True)
    return all(f"via {address} " in route(node, cidr) for cidr, address in gateways)


def has_text(agent, text):
    """Returns whether /readyz has a text."""
    return text in agent.ready_text()


@contextlib.contextmanager
def no_packet_lost(running, source=0, target=1):
    """Asserts that no packet between the pods of two nodes is lost during the block."""
    pod, destination = running.pods[source].namespace, running.pods[target].addresses[4]
    line = ["nsenter", f"--net={pod.path}", "ping", "-n", "-q", "-i", "0.01", destination]
    pinging = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        yield
        time.sleep(0.5)
    finally:
        pinging.send_signal(signal.SIGINT)
        text = pinging.communicate(timeout=10)[0]
    counts = re.search(r"(\d+) packets transmitted, (\d+) received", text)
    assert counts is not None, text
    sent, received = map(int, counts.groups())
    assert sent > 20, text
    assert sent == received, text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_packet_is_lost_while_an_agent_is_replaced(running, number):
    """Routes and pods stay while the agent is stopped or killed, and while the next one starts."""
    agent, node = running.agents[0], running.nodes[0]
    before = node.run("ip", "route"), node.run("ip", "-6", "route")
    with no_packet_lost(running):
        status = agent.stop(number)
        assert status == (0 if number == signal.SIGTERM else -number)
        assert (node.run("ip", "route"), node.run("ip", "-6", "route")) == before
        running.agents[0] = Agent(node, *running.options)
        running.agents[0].wait_ready()
    assert (node.run("ip", "route"), node.run("ip", "-6", "route")) == before
    running.agents[0].stop()


def test_changes_during_the_absence_of_an_agent_follow_at_its_start(running):
    """The agent catches up at its start with changes during its absence."""
    running.agents[0].stop(signal.SIGKILL)
    running.server.store.remove(f"{NODES}/node-2")
    running.register(running.nodes[2], 7)
    agent = Agent(running.nodes[0], *running.options)
    agent.wait_ready()
    assert route(running.nodes[0], pod_cidrs(2)[0]) == ""
    assert has_routes(running.nodes[0], 7, running.nodes[2])
    agent.stop()


def test_routes_follow_a_deleted_node_that_returns_with_other_networks(running):
    """A deleted node's routes go; a node that returns with another podCIDR gets routes to it."""
    first, second, _ = running.nodes
    running.server.store.remove(f"{NODES}/node-2")
    assert eventually(lambda: route(first, pod_cidrs(2)[0]) == route(first, pod_cidrs(2)[1]) == "")
    running.register(second, 8)
    assert eventually(lambda: has_routes(first, 8, second))


def test_podcidr_that_moves_to_another_node_gets_routes_there(running):
    """The podCIDR of a deleted node that another node gets has routes to that one, whichever news comes first."""
    first, second, third = running.nodes
    running.server.store.remove(f"{NODES}/node-2")
    running.register(third, 2)
    assert eventually(lambda: has_routes(first, 2, third))
    assert route(first, pod_cidrs(3)[0]) == ""
    # The other order: two nodes have it for a while, and nothing changes until one has it.
    running.register(second, 2)
    assert eventually(lambda: not running.agents[0].is_ready())
    assert has_routes(first, 2, third)
    running.server.store.remove(f"{NODES}/node-3")
    assert eventually(lambda: has_routes(first, 2, second))


def test_routes_follow_the_addresses_of_nodes(running):
    """Two nodes that exchange their addresses keep their podCIDRs: the routes are exchanged."""
    first, second, third = running.nodes
    for node, address in ((second, third.addresses[0]), (third, second.addresses[0])):
        node.network.ip("-4", "address", "flush", "dev", "eth0")
        node.network.ip("address", "add", f"{address}/24", "dev", "eth0")
    second.addresses, third.addresses = (
        (third.addresses[0], second.addresses[1]),
        (second.addresses[0], third.addresses[1]),
    )
    running.register(second)
    running.register(third)
    assert eventually(lambda: has_routes(first, 2, second) and has_routes(first, 3, third))
    first.network.ip("neighbour", "flush", "dev", "eth0")
    assert eventually(lambda: reaches(running.pods[0].namespace, running.pods[1].addresses[4]))


def test_podcidr_of_two_nodes_changes_nothing(running):
    """A podCIDR of a second node changes no route; readiness, metric and an Event of those two name it."""
    first, second, third = running.nodes
    before = first.run("ip", "route"), first.run("ip", "-6", "route")
    with no_packet_lost(running):
        running.register(third, 2)
        assert eventually(lambda: "nodes node-2 and node-3 both have podCIDR" in running.agents[0].ready_text())
        assert running.agents[0].metric("podwire_agent_pod_cidr_conflicts") == 2
        after = first.run("ip", "route"), first.run("ip", "-6", "route")
    kept = [line for line in "".join(before).splitlines() if "10.244.3" not in line and "fd00:244:3" not in line]
    assert [line for line in "".join(after).splitlines() if line not in kept] == []
    assert has_routes(first, 2, second)
    assert eventually(lambda: any(path.startswith(EVENTS) for path in running.server.store.objects))
    running.register(third)
    running.agents[0].wait_ready()
    assert has_routes(first, 3, third)


def test_node_object_without_internal_ips_changes_no_route(running):
    """A Node object that loses its InternalIPs changes no route of any node; its own /readyz says what is kept."""
    first, second, _ = running.nodes
    before = [node.run("ip", "route") + node.run("ip", "-6", "route") for node in running.nodes]
    document = running.node_document(first)
    with no_packet_lost(running), no_packet_lost(running, 1, 0):
        document["status"]["addresses"] = [{"type": "Hostname", "address": first.name}]
        running.server.store.put(f"{NODES}/{first.name}", document)
        kept = f"no InternalIP any more: the agent keeps {first.addresses[0]}, {first.addresses[1]}, and its routes"
        assert eventually(lambda: kept in running.agents[0].ready_text())
        assert [node.run("ip", "route") + node.run("ip", "-6", "route") for node in running.nodes] == before
        for number, node in enumerate((first, second)):
            running.agents[number].stop()
            running.agents[number] = Agent(node, *running.options)
            assert eventually(partial(has_text, running.agents[number], "routes: node"))
        assert [node.run("ip", "route") + node.run("ip", "-6", "route") for node in running.nodes] == before
    running.register(first)
    for agent in running.agents:
        agent.wait_ready()
    assert [node.run("ip", "route") + node.run("ip", "-6", "route") for node in running.nodes] == before


def test_link_that_goes_down_and_up_has_its_routes_again(running):
    """The kernel deletes routes when their link goes down; they return with it."""
    first, second, _ = running.nodes
    first.run("ip", "link", "set", "eth0", "down")
    assert eventually(lambda: route(first, pod_cidrs(2)[0]) == "")
    first.run("ip", "link", "set", "eth0", "up")
    first.network.ip("address", "add", f"{first.addresses[1]}/64", "dev", "eth0", "nodad")
    assert eventually(lambda: has_routes(first, 2, second))


def test_foreign_routes_stay(running):
    """Routes of other programs stay, between changes, restarts and --remove."""
    first = running.nodes[0]
    first.run("ip", "route", "add", "198.18.0.0/24", "via", running.nodes[1].addresses[0])
    first.run("ip", "route", "add", "blackhole", "10.244.99.0/24", "proto", "static")
    running.server.store.remove(f"{NODES}/node-2")
    assert eventually(lambda: route(first, pod_cidrs(2)[0]) == "")
    running.agents[0].stop()
    assert run_once(first, *running.options, "--remove").returncode == 0
    assert [line.split()[0] for line in first.run("ip", "route", "show", "proto", "112").splitlines()] == []
    assert route(first, "198.18.0.0/24") != ""
    assert "10.244.99.0/24" in first.run("ip", "route")


def test_api_server_that_lost_this_node_changes_nothing(running):
    """A list without this node, as of an empty or another cluster's API server, is no reason to remove routes."""
    first = running.nodes[0]
    before = first.run("ip", "route")
    running.server.store.restore((5, {}))
    running.server.cut_watches()
    assert eventually(lambda: "has no Node node-1" in running.agents[0].ready_text())
    assert first.run("ip", "route") == before
    for node in running.nodes:
        running.register(node)
    running.agents[0].wait_ready()


def test_restored_backup_removes_no_routes(running):
    """An API server that was restored from a backup lacks younger nodes: the routes to them stay."""
    first = running.nodes[0]
    backup = running.server.store.backup()
    backup[1].pop(f"{NODES}/node-3")
    for _ in range(100):  # the restored server's versions stay below those that the agents know
        running.register(running.nodes[1], 8)
    assert eventually(lambda: has_routes(first, 8, running.nodes[1]))
    running.server.store.restore(backup)
    running.server.cut_watches()
    assert eventually(lambda: any("restored from a backup" in line["msg"] for line in running.agents[0].log))
    assert eventually(lambda: has_routes(first, 2, running.nodes[1]))
    assert has_routes(first, 3, running.nodes[2])


def test_deleted_node_object_of_a_running_node_changes_nothing_on_it(running):
    """The node whose own object was deleted keeps its routes, its network and its pods."""
    first = running.nodes[0]
    before = first.run("ip", "route")
    running.server.store.remove(f"{NODES}/node-1")
    assert eventually(lambda: "has no Node node-1" in running.agents[0].ready_text())
    assert first.run("ip", "route") == before
    running.add_pod(first, "second")


def test_changed_podcidr_waits_for_a_drained_node(running):
    """Another podCIDR of this node is not written while pods run on the bridge; it is once they are gone."""
    first = running.nodes[0]
    running.register(first, 9)
    assert eventually(lambda: "1 pod runs in network" in running.agents[0].ready_text())
    assert "10.244.1.0/24" in first.run("cat", "/etc/cni/net.d/10-podwire.conflist")
    running.delete_pod(first)
    running.agents[0].wait_ready(within_s=40)
    assert "10.244.9.0/24" in first.run("cat", "/etc/cni/net.d/10-podwire.conflist")
    pod = running.add_pod(first, "new")
    assert pod.addresses[4].startswith("10.244.9.")


def test_second_agent_refuses(running):
    """A second agent on a node ends with an error that names the first."""
    done = run_once(running.nodes[0], *running.options)
    assert done.returncode == 1
    assert "another podwire-agent maintains this node: process" in done.stderr


def test_dry_run_and_once(running):
    """--dry-run logs what it would change and changes nothing; --once changes it and ends."""
    first = running.nodes[0]
    assert run_once(first, *running.options, "--dry-run").returncode == 0  # beside the agent
    running.agents[0].stop()
    first.run("ip", "route", "delete", pod_cidrs(2)[0])
    before = first.run("ip", "route")
    done = run_once(first, *running.options, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert pod_cidrs(2)[0] in done.stderr
    assert first.run("ip", "route") == before
    assert run_once(first, *running.options, "--once").returncode == 0
    assert has_routes(first, 2, running.nodes[1])


def test_node_works_while_the_api_server_is_gone(running):
    """Without the API server pods are added and deleted, routes stay, and repaired routes return."""
    first = running.nodes[0]
    running.server.faults.append(Fault(cut=True, times=1_000_000))
    running.server.cut_watches()
    assert eventually(lambda: running.agents[0].metric("podwire_agent_api_failures_total") > 0)
    running.add_pod(first, "second")
    first.run("ip", "route", "delete", pod_cidrs(2)[0])
    assert eventually(lambda: has_routes(first, 2, running.nodes[1]))
    running.delete_pod(first, "second")
