"""Three nodes with agents and a real kube-apiserver: rights, changes, a stopped server, one restored from a backup."""

import signal

import pytest

from agent.kubernetes import ApiClient
from tests.support import certificates, manifests, stores
from tests.support.agent_nodes import SERVER, cluster
from tests.support.attaching import reaches
from tests.support.cluster_agent import agents
from tests.support.cluster_world import World, pod_cidrs
from tests.support.kube_apiserver import KubeApiServer
from tests.support.kubernetes_double import EVENTS, NODES
from tests.support.machine import eventually

pytestmark = [pytest.mark.timeout(1000), pytest.mark.long]


class RealWorld(World):
    """A cluster whose Node objects are in a real API server."""

    def ask(self, method, *arguments):
        """Sends a request as the administrator, from the network in which the server listens."""
        with self.fabric.entered():
            return method(self.server.client("admin"), *arguments)

    def register(self, node, number=None, **spec):
        """Creates a Node with its addresses."""
        document = self.node_document(node, number, **spec)
        created = self.ask(ApiClient.create, NODES, document)
        self.ask(stores.replace, f"{NODES}/{node.name}/status", {**created, "status": document["status"]})


@pytest.fixture
def running(tmp_path):
    """Three nodes on one link, with agents and pods."""
    certificates.create(tmp_path, SERVER)
    (tmp_path / "server").mkdir()
    (tmp_path / "token").write_text("agent")
    with cluster(tmp_path, 3) as (fabric, nodes), fabric.entered():
        server = KubeApiServer(tmp_path / "server", tmp_path, SERVER)
        options = (f"--server={server.url}", f"--ca-file={tmp_path / 'ca.crt'}", f"--token-file={tmp_path / 'token'}")
        world = RealWorld(fabric, nodes, server, options)
        with server.running():
            role = manifests.role(manifests.INSTALL)
            stores.apply(server.client("admin"), [role, stores.binding(role["metadata"]["name"])])
            for node in nodes:
                world.register(node)
            with agents(nodes, *options) as world.agents:
                world.pods = [node.add() for node in nodes]
                yield world


def test_cluster_with_a_real_api_server(running):
    """Routes follow the Nodes; a stopped server and one that was restored from a backup take no route away."""
    first, second, third = running.nodes
    assert eventually(lambda: reaches(running.pods[0].namespace, running.pods[1].addresses[4], within_s=1))

    running.ask(stores.delete, f"{NODES}/node-2")
    assert eventually(lambda: first.route(pod_cidrs(2)[0]) == "")
    running.register(second, 8)
    assert eventually(lambda: second.addresses[0] in first.route(pod_cidrs(8)[0]))
    problem = "1 pod runs in network"
    running.agents[1].wait_for(problem)  # a changed podCIDR waits for a drained node
    assert eventually(lambda: any(problem in one["message"] for one in running.ask(ApiClient.get, EVENTS)["items"]))

    running.server.send_signal(signal.SIGSTOP)
    first.add("second")
    first.run("ip", "route", "delete", pod_cidrs(3)[0])
    assert eventually(lambda: third.addresses[0] in first.route(pod_cidrs(3)[0]))
    running.server.send_signal(signal.SIGCONT)
    assert eventually(lambda: running.ask(ApiClient.get, f"{NODES}/node-3")["metadata"]["name"] == "node-3")

    restart(running, lambda etcd: etcd.backup("copy"))
    running.ask(stores.delete, f"{NODES}/node-3")
    assert eventually(lambda: first.route(pod_cidrs(3)[0]) == "", within_s=100)
    running.register(third, 9)
    assert eventually(lambda: third.addresses[0] in first.route(pod_cidrs(9)[0]))
    restart(running, lambda etcd: etcd.restore("copy"))
    assert eventually(lambda: third.addresses[0] in first.route(pod_cidrs(3)[0]), within_s=100)
    assert second.addresses[0] in first.route(pod_cidrs(8)[0])


def restart(running, change):
    """Stops the server, lets its etcd start again after a change, and starts it."""
    with running.fabric.entered():
        running.server.kill()
        change(running.server.etcd)
        running.server.start()
