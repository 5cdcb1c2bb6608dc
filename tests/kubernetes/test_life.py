"""The life of a cluster: packets between pods are counted while its programs are replaced, killed and restarted.

One rule: no packet is lost, but those of a node that is without power.
"""

import contextlib
import shutil
import time
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node
from tests.kubernetes.packets import Packets
from tests.kubernetes.pods import daemon_set
from tests.support.machine import eventually

NAME = "life"
_AWAY_S = 60


class Traffic:
    """The pods of a DaemonSet, and packets between those of two nodes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def addresses(self) -> dict[str, str]:
        """Returns the address of the ready pod of each node."""
        pods = self.cluster.control.objects("pods", f"--selector=app={NAME}")
        return {pod["spec"]["nodeName"]: pod["status"]["podIP"] for pod in pods if _is_ready(pod)}

    def wait(self) -> dict[str, str]:
        """Waits until a pod is ready on each node, and returns their addresses."""
        self.cluster.wait("a pod is ready on each node", lambda: len(self.addresses()) == len(self.cluster.nodes))
        return self.addresses()

    @contextlib.contextmanager
    def flows(self, source: Node, target: Node) -> Iterator[None]:
        """Asserts that no packet from the pod of a node to that of another one is lost in the block."""
        addresses = self.wait()
        source_pod, target_pod = (node.network_of(addresses[node.name]) for node in (source, target))
        with Packets(source_pod, target_pod, addresses[target.name]) as packets:
            yield
            time.sleep(1)
        self.cluster.step(f"{packets.sent} packets, {len(packets.lost)} lost")
        assert packets.lost == []


@pytest.fixture(scope="module")
def traffic(cluster: Cluster) -> Iterator[Traffic]:
    """A pod on each node."""
    cluster.control.apply(daemon_set(NAME))
    yield Traffic(cluster)
    cluster.control.kubectl("delete", f"daemonset/{NAME}")


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
        node.run("pkill", "--signal", "KILL", "--full", "podwire-agent")
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
    """The API server is killed, and started again after a minute."""
    with traffic.flows(*cluster.nodes[:2]):
        cluster.control.server.kill()
        time.sleep(_AWAY_S)
        cluster.control.server.start()
        cluster.wait("nodes are ready", cluster.is_ready)
        cluster.wait_for_rollout()


def test_rebooted_node_has_its_pods_again(cluster: Cluster, traffic: Traffic) -> None:
    """A node loses its power: others lose no packet, then its new pod answers, and nothing of the old one remains."""
    *others, node = cluster.nodes
    before = traffic.wait()[node.name]
    with traffic.flows(*others):
        node.shut_down()
        node.boot()
        node.start_containerd()
        cluster.start_daemons(node)
        cluster.wait("the pod of the node is new", lambda: traffic.addresses().get(node.name, before) != before)
        cluster.wait("nodes are ready", cluster.is_ready)
        cluster.wait_for_rollout()
    with traffic.flows(others[0], node):
        pass
    eventually(lambda: len(node.reserved_addresses()) == 1)
    assert node.reserved_addresses() == [traffic.addresses()[node.name]]
    assert node.run("/opt/cni/bin/podwire", "doctor").splitlines()[-1] == "0 problems, 0 warnings, 0 notes"


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
        cluster.wait("its pod is new", lambda: ip_address(traffic.addresses().get(node.name, "0.0.0.0")) in pods)
        cluster.wait_for_rollout()
    with traffic.flows(others[0], node):
        pass


def _pod_cidr(cluster: Cluster, node: Node) -> str:
    """Returns the podCIDR of a node, "" while it has none."""
    cidrs = (one["spec"].get("podCIDR", "") for one in cluster.control.objects("nodes") if _name(one) == node.name)
    return next(cidrs, "")


def _name(one: dict[str, Any]) -> str:
    name: str = one["metadata"]["name"]
    return name


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
