"""Three nodes with agents and a real kube-apiserver: rights, changes, a stopped server, one restored from a backup."""

from __future__ import annotations

import shutil

import pytest
import yaml

from tests.support import binaries, certificates, kube_apiserver
from tests.support.agent_nodes import SERVER, cluster
from tests.support.attaching import reaches
from tests.support.cluster_agent import agents
from tests.support.cluster_world import World, pod_cidrs
from tests.support.kube_apiserver import KubeApiServer
from tests.support.kubernetes_double import EVENTS, NODES
from tests.support.machine import eventually
from tests.support.manifests import INSTALL

pytestmark = pytest.mark.timeout(600)
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class RealWorld(World):
    """A cluster whose Node objects are in a real API server."""

    def ask(self, method, *arguments):
        """Sends a request as the administrator, from the network in which the server listens."""
        with self.fabric.entered():
            return getattr(self.server.client("admin"), method)(*arguments)

    def register(self, node, number=None, **spec):
        """Creates a Node with its addresses."""
        document = self.node_document(node, number, **spec)
        created = self.ask("create", NODES, document)
        self.ask("replace", f"{NODES}/{node.name}/status", {**created, "status": document["status"]})

    def grant(self):
        """Gives the users of the group "agents" the rights of deploy/install/rbac.yaml."""
        (role,) = (
            one for one in yaml.safe_load_all((INSTALL / "rbac.yaml").read_text()) if one["kind"] == "ClusterRole"
        )
        self.ask("create", f"{RBAC}/clusterroles", role)
        subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "agents"}]
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "podwire"}
        binding = {"metadata": {"name": "podwire"}, "roleRef": reference, "subjects": subjects}
        self.ask("create", f"{RBAC}/clusterrolebindings", binding)


def route(node, cidr):
    return node.run("ip", "route", "show", cidr)


@pytest.fixture
def running(tmp_path):
    """Three nodes on one link, with agents and pods."""
    if not kube_apiserver.is_built():
        binaries.skip_or_fail("no kube-apiserver in build/kubernetes: run `make kubernetes` (10 CPU minutes, once)")
    certificates.create(tmp_path, SERVER)
    (tmp_path / "server").mkdir()
    (tmp_path / "token").write_text("agent")
    with cluster(tmp_path, 3) as (fabric, nodes), fabric.entered():
        server = KubeApiServer(tmp_path / "server", tmp_path, SERVER)
        options = (f"--server={server.url}", f"--ca-file={tmp_path / 'ca.crt'}", f"--token-file={tmp_path / 'token'}")
        world = RealWorld(fabric, nodes, server, options)
        with server.running():
            world.grant()
            for node in nodes:
                world.register(node)
            with agents(nodes, *options) as world.agents:
                world.pods = [world.add_pod(node) for node in nodes]
                yield world


def test_cluster_with_a_real_api_server(running):
    """Routes follow the Nodes; a stopped server and one that was restored from a backup take no route away."""
    first, second, third = running.nodes
    assert eventually(lambda: reaches(running.pods[0].namespace, running.pods[1].addresses[4], within_s=1))

    running.ask("delete", f"{NODES}/node-2")
    assert eventually(lambda: route(first, pod_cidrs(2)[0]) == "")
    running.register(second, 8)
    assert eventually(lambda: second.addresses[0] in route(first, pod_cidrs(8)[0]))
    problem = "1 pod runs in network"
    assert eventually(lambda: problem in running.agents[1].ready_text()), "a changed podCIDR waits for a drained node"
    assert eventually(lambda: any(problem in one["message"] for one in running.ask("get", EVENTS)["items"]))

    running.server.pause("kube-apiserver")
    running.add_pod(first, "second")
    first.run("ip", "route", "delete", pod_cidrs(3)[0])
    assert eventually(lambda: third.addresses[0] in route(first, pod_cidrs(3)[0]))
    running.server.resume("kube-apiserver")
    assert eventually(lambda: running.ask("get", f"{NODES}/node-3")["metadata"]["name"] == "node-3")

    for name in ("kube-apiserver", "etcd"):
        running.server.kill(name)
    backup = running.server.directory / "backup"
    shutil.copytree(running.server.directory / "etcd", backup)
    restart(running)
    running.ask("delete", f"{NODES}/node-3")
    assert eventually(lambda: route(first, pod_cidrs(3)[0]) == "", within_s=100)
    running.register(third, 9)
    assert eventually(lambda: third.addresses[0] in route(first, pod_cidrs(9)[0]))
    for name in ("kube-apiserver", "etcd"):
        running.server.kill(name)
    shutil.rmtree(running.server.directory / "etcd")
    shutil.copytree(backup, running.server.directory / "etcd")
    restart(running)
    assert eventually(lambda: third.addresses[0] in route(first, pod_cidrs(3)[0]), within_s=100)
    assert second.addresses[0] in route(first, pod_cidrs(8)[0])


def restart(running):
    """Starts both programs of the server."""
    with running.fabric.entered():
        running.server.start_etcd()
        running.server.start()
