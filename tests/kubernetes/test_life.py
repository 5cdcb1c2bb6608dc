"""The life of a cluster: packets are counted while its programs and nodes are replaced, killed, restarted and changed.

One rule: none is lost, but those of a node that has no power or no uplink.
"""

import contextlib
import shutil
import time
import urllib.error
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from tests.kubernetes import plan
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node
from tests.kubernetes.packets import Connection, Packets, Requests, Stream, added, dropped
from tests.kubernetes.pods import UDP_PORT, daemon_set, deployment, get, is_ready
from tests.support import machine
from tests.support.machine import eventually, unchanged
from tests.support.namespaces import Namespace

NAME, MOVED = "life", "moved"
_AWAY_S = 300
_GATEWAY = machine.unnamed_namespace("/proc/1/ns/net")  # the nodes' gateway
_AGENT = ("--full", "podwire-agent --listen")


class Traffic:
    """The pods of a DaemonSet, and streams between those of two nodes, to a Service and to a node port."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.control.apply(daemon_set(NAME))

    def pods(self) -> dict[str, dict[str, Any]]:
        """Returns the ready pod of each node."""
        pods = self.cluster.control.objects("pods", f"--selector=app={NAME}")
        names = [node.name for node in self.cluster.nodes]
        return {node: pod for pod in pods if (node := pod["spec"]["nodeName"]) in names and is_ready(pod)}

    def address(self, node: Node) -> str:
        """Returns the address of the ready pod of a node, "0.0.0.0" without one."""
        address: str = self.pods().get(node.name, {"status": {"podIP": "0.0.0.0"}})["status"]["podIP"]
        return address

    def wait(self) -> dict[str, dict[str, Any]]:
        """Waits until a pod is ready on each node, and returns the pods."""
        self.cluster.wait("a pod is ready on each node", lambda: len(self.pods()) == len(self.cluster.nodes))
        return self.pods()

    @contextlib.contextmanager
    def flows(self, source: Node, target: Node) -> Iterator[None]:
        """Asserts that streams to the pod of a node, which have begun before the block, lose nothing in it."""
        pods = self.wait()
        client, server = (node.network_of(pods[node.name]["status"]["podIP"]) for node in (source, target))
        places = (client, source.network, _GATEWAY, target.network, server)
        before = dropped(places)
        with contextlib.ExitStack() as stack:
            streams = self._streams(client, source, server, pods[target.name])
            for stream in streams.values():
                stack.enter_context(stream)
            yield
            time.sleep(1)
        full = added(before, dropped(places))
        for name, stream in streams.items():
            self.cluster.step(f"  {source.name} to {target.name}, {name}: {stream.describe()}")
        self.cluster.step(f"  {full} packets were dropped by full queues of this machine")
        lost = {name: stream.lost[:9] for name, stream in streams.items() if stream.lost}
        assert sum(len(stream.lost) for stream in streams.values()) <= full, lost

    def _streams(self, client: Namespace, node: Node, server: Namespace, pod: dict[str, Any]) -> dict[str, Stream]:
        """Returns the streams from the pod of a node, and from outside to its node port, to the pod of another one."""
        address, name = pod["status"]["podIP"], pod["metadata"]["name"]
        cluster_ip, node_port = self._publish(f"{NAME}-{pod['spec']['nodeName']}", address)
        return {
            "to a Service": Requests(client, cluster_ip, UDP_PORT, name),
            "to a node port": Requests(_GATEWAY, node.address, node_port, name),
            "TCP": Connection(client, server, address),
            "UDP": Packets(client, server, address),
        }

    def _publish(self, name: str, address: str) -> tuple[str, int]:
        """Creates or changes a Service for one pod; returns its address and node port."""
        control, port = self.cluster.control, {"port": UDP_PORT, "protocol": "UDP"}
        meta = {"name": name, "labels": {"app": NAME}}
        subsets = [{"addresses": [{"ip": address}], "ports": [port]}]
        control.apply(
            {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"type": "NodePort", "ports": [port]}},
            {"apiVersion": "v1", "kind": "Endpoints", "metadata": meta, "subsets": subsets},
        )
        (created,) = control.objects("services", f"--field-selector=metadata.name={name}")
        return created["spec"]["clusterIP"], created["spec"]["ports"][0]["nodePort"]


@pytest.fixture(scope="module")
def traffic(cluster: Cluster) -> Iterator[Traffic]:
    """A pod on each node."""
    yield Traffic(cluster)
    cluster.control.kubectl("delete", "daemonset,service", f"--selector=app={NAME}")


def test_rollout_and_rollback_lose_no_packet(cluster: Cluster, traffic: Traffic) -> None:
    """The agent is replaced on all nodes, and the replacement undone."""
    with traffic.flows(*cluster.nodes[:2]):
        for words in (("restart",), ("undo",)):
            cluster.control.kubectl("--namespace=podwire", "rollout", *words, "daemonset/podwire")
            cluster.wait_for_rollout()


def test_killed_programs_lose_no_packet(cluster: Cluster, traffic: Traffic) -> None:
    """The agent, kubelet, containerd and kube-proxy of a node are killed and started again."""
    node = cluster.nodes[0]
    with traffic.flows(*cluster.nodes[:2]):
        node.run("pkill", "--signal", "KILL", *_AGENT)
        time.sleep(5)
        cluster.wait_for_rollout()
        node.kill("kubelet")
        cluster.start_kubelet(node)
        node.kill("containerd")
        node.start_containerd()
        node.kill("kube-proxy")
        cluster.start_kube_proxy(node)
        time.sleep(10)  # of kubelet, for its first status
        cluster.wait("nodes are ready", cluster.is_ready)


def test_api_server_away_loses_no_packet(cluster: Cluster, traffic: Traffic) -> None:
    """The API server is away for five minutes: an agent that is killed meanwhile starts, and no packet is lost."""
    node = cluster.nodes[0]
    with traffic.flows(*cluster.nodes[:2]):
        cluster.control.server.kill()
        end = time.monotonic() + _AWAY_S
        node.run("pkill", "--signal", "KILL", *_AGENT)
        assert eventually(lambda: "[-]api: Kubernetes API" in _readyz(node), within_s=_AWAY_S), _readyz(node)
        cluster.step("the killed agent runs without an API server")
        time.sleep(max(0, end - time.monotonic()))
        cluster.control.server.start()
        cluster.wait("nodes are ready", cluster.is_ready)
        cluster.wait("the agent is ready", lambda: _is_satisfied(node))
        cluster.wait_for_rollout()


def test_drained_node_keeps_nothing_of_its_pods(cluster: Cluster, traffic: Traffic) -> None:
    """A node is drained: its pods appear on others, which lose no packet, and nothing of them remains."""
    *others, node = cluster.nodes

    def nodes_of_pods() -> list[str]:
        pods = cluster.control.objects("pods", f"--selector=app={MOVED}")
        return [pod["spec"]["nodeName"] for pod in pods if is_ready(pod)]

    cluster.control.apply(deployment(MOVED, 6))
    # The controllers must know the six: for pods that go before their watch is open again, they wait five minutes.
    cluster.control.kubectl("rollout", "status", f"deployment/{MOVED}")
    cluster.wait("six pods are ready", lambda: len(nodes_of_pods()) == 6)
    assert node.name in nodes_of_pods()
    with traffic.flows(*others):
        cluster.control.kubectl("drain", node.name, "--ignore-daemonsets")
        cluster.wait("six pods are ready again", lambda: len(nodes_of_pods()) == 6 and node.name not in nodes_of_pods())
        _assert_one_pod(node, traffic.address(node))
        cluster.control.kubectl("uncordon", node.name)
        cluster.control.kubectl("delete", f"deployment/{MOVED}")


def test_rebooted_node_has_its_pods_again(cluster: Cluster, traffic: Traffic) -> None:
    """A node loses its power: others lose no packet, then its new pod answers, and nothing of the old one remains."""
    *others, node = cluster.nodes
    before = traffic.wait()[node.name]["status"]["podIP"]
    with traffic.flows(*others):
        node.shut_down()
        node.boot()
        node.start_containerd()
        cluster.start_daemons(node)
        cluster.wait("the pod of the node is new", lambda: traffic.address(node) not in (before, "0.0.0.0"))
        cluster.wait("nodes are ready", cluster.is_ready)
        cluster.wait_for_rollout()
    with traffic.flows(others[0], node):
        pass
    _assert_one_pod(node, traffic.address(node))


def test_replaced_node_has_another_pod_cidr(cluster: Cluster, traffic: Traffic) -> None:
    """A new machine with a deleted node's name gets another podCIDR: others lose no packet, and reach its pod."""
    *others, node = cluster.nodes
    before = _pod_cidr(cluster, node)
    with traffic.flows(*others):
        node.shut_down()
        cluster.control.kubectl("delete", "node", node.name)
        shutil.rmtree(node.disk)
        node.boot()
        node.start_containerd()
        cluster.import_images(node)
        cluster.start_daemons(node)
        cluster.wait("the node is registered again", lambda: _pod_cidr(cluster, node) not in ("", before))
        pods = ip_network(_pod_cidr(cluster, node))
        cluster.wait("its pod is new", lambda: ip_address(traffic.address(node)) in pods)
        cluster.wait_for_rollout()
        node.accept_errors()
    with traffic.flows(others[0], node):
        pass


def test_added_node_is_reached(cluster: Cluster, traffic: Traffic) -> None:
    """A node is added, and deleted later: others lose no packet, reach its pod, and have its route only meanwhile."""
    first, second, _ = cluster.nodes
    unchanged_routes = unchanged(lambda: {node.name: _routes(node) for node in (first, second)})
    with unchanged_routes, traffic.flows(first, second), cluster.added_node() as node:
        cluster.wait("its pod is ready", lambda: node.name in traffic.pods())
        node.accept_errors()
        with traffic.flows(node, first), traffic.flows(second, node):
            assert any(_pod_cidr(cluster, node) in route for route in _routes(first))


def test_internal_ip_changes(cluster: Cluster, traffic: Traffic) -> None:
    """A node gets another InternalIP, then the first one again: others lose no packet, and reach its pod."""
    *others, node = cluster.nodes
    for address in (plan.IPV4.node(node.link, 99), node.address):
        with traffic.flows(*others):
            for program in ("kubelet", "kube-proxy"):  # kube-proxy would notice after half a minute
                node.kill(program)
            node.change_address(address)
            cluster.start_daemons(node)
            _assert_reached(cluster, traffic, node)


def test_uplink_is_replaced(cluster: Cluster, traffic: Traffic) -> None:
    """A node's uplink is replaced by one with another name and index: others lose no packet, and reach its pod."""
    *others, node = cluster.nodes
    for name in ("ens5", node.uplink):
        with traffic.flows(*others):
            node.replace_uplink(name)
            _assert_reached(cluster, traffic, node)


def _assert_reached(cluster: Cluster, traffic: Traffic, node: Node) -> None:
    """Asserts that a node's pod is soon reached without a loss, and leaves the cluster by the node's address."""
    with traffic.flows(cluster.nodes[0], node), traffic.flows(node, cluster.nodes[0]):
        with node.network_of(traffic.address(node)).entered():
            assert get(f"http://{plan.IPV4.gateway()}/clientip").rpartition(":")[0] == node.address
        cluster.wait("the agent is ready", lambda: _is_satisfied(node))
    node.assert_healthy()


def _assert_one_pod(node: Node, address: str) -> None:
    """Asserts that a node has one pod, with an address, and nothing of others."""
    assert eventually(lambda: (node.reserved_addresses(), len(node.namespaces_of_pods())) == ([address], 1))
    node.assert_healthy()


def _routes(node: Node) -> list[str]:
    return node.run("ip", "route").splitlines()


def _readyz(node: Node) -> str:
    """Returns what a node's agent answers about its state, "" if it does not answer."""
    with node.network.entered():
        try:
            return get("http://127.0.0.1:9794/readyz")
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError:
            return ""


def _is_satisfied(node: Node) -> bool:
    return "[+]" in (text := _readyz(node)) and "[-]" not in text


def _pod_cidr(cluster: Cluster, node: Node) -> str:
    """Returns the podCIDR of a node, "" while it has none."""
    nodes = cluster.control.objects("nodes", f"--field-selector=metadata.name={node.name}")
    return "".join(one["spec"].get("podCIDR", "") for one in nodes)
