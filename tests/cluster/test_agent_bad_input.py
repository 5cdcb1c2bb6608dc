"""Wrong Node objects and wrong answers of the API server: a clear state, and neither routes nor files change."""

import json
from ipaddress import ip_network

import pytest

from tests.support import certificates
from tests.support.agent_nodes import SERVER
from tests.support.attaching import reaches
from tests.support.cluster_agent import run_once
from tests.support.cluster_world import world
from tests.support.kubernetes_double import NODES, Fault
from tests.support.machine import eventually

pytestmark = pytest.mark.timeout(1000)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """Two nodes on one link, with agents and without pods."""
    with world(tmp_path_factory.mktemp("bad"), count=2, pods=False) as created:
        yield created


def state(node):
    """Returns the routes and the files of a node."""
    files = node.run("find", "/etc/cni/net.d", "/opt/cni/bin", "-type", "f", "-printf", "%p %i %T@\n")
    return node.routes(), sorted(files.splitlines())


@pytest.fixture
def unchanged(running):
    """Asserts that the first node's routes and files stay, and that the agent is ready before and after."""
    running.agents[0].wait_ready()
    before = state(running.nodes[0])
    yield
    assert state(running.nodes[0]) == before
    running.server.faults.clear()
    running.register(running.nodes[0])
    running.agents[0].wait_ready()


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"podCIDR": "", "podCIDRs": []}, "node node-1: its podCIDR is missing; nothing is changed"),
        ({"podCIDRs": ["10.244.1.7/24"]}, "podCIDR '10.244.1.7/24' is not a network such as 10.244.1.0/24"),
        ({"podCIDRs": ["10.244.1.0/24", "x"]}, "podCIDR 'x' is not a network"),
    ],
)
def test_wrong_podcidr_of_this_node(running, unchanged, spec, text):
    """A missing or wrong podCIDR is on /readyz and in the log; the network and the routes stay as they were."""
    running.register(running.nodes[0], **spec)
    running.agents[0].wait_for(text)
    assert any(text in line["msg"] for line in running.agents[0].log)


def test_podcidr_that_overlaps_the_nodes_network(running, unchanged):
    """Another node's podCIDR that contains this node's own link gets no route."""
    running.register(running.nodes[1], podCIDR="192.0.2.0/24", podCIDRs=["192.0.2.0/24"])
    try:
        running.agents[0].wait_for("192.0.2.0/24")
        assert "192.0.2.0/24 via" not in running.nodes[0].routes()
    finally:
        running.register(running.nodes[1])
        running.agents[0].wait_ready()


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault(status=401, body=b'{"kind":"Status","message":"Unauthorized"}', times=99), "401"),
        (Fault(status=403, body=b'{"kind":"Status","message":"nodes is forbidden"}', times=99), "nodes is forbidden"),
        (Fault(status=200, body=b"<html>login</html>", headers={"Content-Type": "text/html"}, times=99), "html"),
        (Fault(status=302, headers={"Location": "https://192.0.2.1/login"}, times=99), "redirects"),
        (Fault(status=200, body=b"[" * 20_000_000, headers={"Content-Type": "application/json"}, times=99), "GET"),
        (Fault(cut=True, times=99), "connection"),
    ],
    ids=["expired token", "forbidden", "HTML", "redirect", "20 MB", "cut"],
)
def test_wrong_answers_of_the_api_server(running, fault, text):
    """A new agent that gets only wrong answers is not ready, says why, and changes nothing."""
    node = running.nodes[0]
    running.agents[0].stop()
    before = state(node)
    running.server.faults.append(fault)
    agent = running.restart(0)
    agent.wait_for("[-]api", text)
    assert state(node) == before
    assert agent.get("/healthz")[0] == 200
    running.server.faults.clear()
    agent.wait_ready()
    assert state(node) == before


def test_certificate_of_another_authority(running, tmp_path):
    """A server whose certificate another authority signed gets no token; the error names the file."""
    other = certificates.create(tmp_path)
    running.restart(0, f"--ca-file={other / 'ca.crt'}").wait_for("is not trusted", str(other))
    running.restart(0).wait_ready()


@pytest.mark.parametrize("name", ["node 1", "../node", "Node-1", "näme", "a" * 300])
def test_names_that_no_node_has(running, name):
    """A name with odd letters is refused in one JSON line, or has no Node object."""
    options = (f"--node-name={name}", f"--run-dir={running.nodes[1].disk}", "--once")
    done = run_once(running.nodes[1], *running.options, *options)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert name[:20] in done.stderr or json.dumps(name)[1:10] in done.stderr


def cluster_set(node):
    """Returns the networks that pods of a node reach with their addresses, as nft prints them."""
    return node.run("nft", "list", "set", "inet", "cni_plugins_masquerade", "podwire_cluster_4")


def test_podcidr_with_the_address_of_a_node_or_of_the_api_server(tmp_path):
    """Such a podCIDR gets no route and is masqueraded; the network that the node had before stays."""
    with world(tmp_path, count=3, routed=True, pods=False) as running:
        (first, second, third), agent = running.nodes, running.agents[0]
        routes, networks = first.routes(), cluster_set(first)
        for address, text in (
            (SERVER, f"contains {SERVER}, an address of the API server"),
            (third.addresses[0], f"contains the InternalIP {third.addresses[0]} of node node-3"),
        ):
            network = str(ip_network(f"{address}/29", strict=False))
            running.register(second, podCIDR=network, podCIDRs=[network])
            agent.wait_for(text)
            assert network not in first.routes()
            assert network not in cluster_set(first)
        running.register(second)
        agent.wait_ready()
        assert eventually(lambda: (first.routes(), cluster_set(first)) == (routes, networks))


def test_route_to_the_api_server_of_an_earlier_agent(tmp_path):
    """A route of the agent that takes the packets to the API server is deleted before the first request."""
    with world(tmp_path, count=2, routed=True, pods=False) as running:
        first = running.nodes[0]
        running.agents[0].stop()
        first.run("ip", "route", "add", "unreachable", f"{SERVER}/32", "proto", "112", "metric", "1120")
        running.restart(0).wait_ready()
        assert "unreachable" not in first.route(SERVER)


def test_node_with_an_address_in_another_nodes_podcidr(tmp_path):
    """Such a node is named in a note: the other node's routes stay, a node without routes gets them, all are ready."""
    with world(tmp_path, count=2) as running:
        first, second = running.nodes
        pod, other = running.pods[0].namespace, running.pods[1].addresses
        document = running.node_document(second, 77)
        document["metadata"] = {"name": "virtual-kubelet"}
        document["status"]["addresses"] = [{"type": "InternalIP", "address": address} for address in other.values()]
        running.server.store.put(f"{NODES}/virtual-kubelet", document)
        for agent in running.agents:
            agent.wait_for(f"InternalIP {other[4]} is ignored, because it is in podCIDR 10.244.2.0/24 of node")
            assert agent.is_ready()
        running.agents[0].stop()
        for version in ("-4", "-6"):
            first.run("ip", version, "route", "flush", "proto", "112")
        running.restart(0).wait_ready()
        assert all(reaches(pod, address) for address in other.values())
        assert f"{other[4]} " not in cluster_set(first)
