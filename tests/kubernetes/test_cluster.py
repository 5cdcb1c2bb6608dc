"""podwire as the network of a real cluster: pods of all nodes, Services, host ports, the world outside."""

import itertools
import urllib.request
from collections.abc import Iterator

import pytest

from tests.kubernetes import plan
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.pods import HOST_PORT, PORT, daemon_set, service

NAME = "web"


class Web:
    """The pods of a DaemonSet on all nodes, and its Service."""

    def __init__(self, cluster: Cluster) -> None:
        self.control = cluster.control
        self.pods = {pod["spec"]["nodeName"]: pod for pod in self.control.objects("pods", f"--selector=app={NAME}")}
        self.addresses = {node: pod["status"]["podIP"] for node, pod in self.pods.items()}
        self.names = {node: pod["metadata"]["name"] for node, pod in self.pods.items()}
        (self.service,) = self.control.objects("services", f"--field-selector=metadata.name={NAME}")

    def get(self, node: str, host: str, path: str = "hostname") -> str:
        """Returns what the pod of a node gets by HTTP from a host and port."""
        words = ("curl", "--silent", "--show-error", "--max-time", "10", f"http://{host}/{path}")
        return self.control.kubectl("exec", self.names[node], "--", *words).strip()


@pytest.fixture(scope="module")
def web(cluster: Cluster) -> Iterator[Web]:
    """A running DaemonSet with a host port, and its Service with a node port."""
    objects = (daemon_set(NAME, host_port=HOST_PORT), service(NAME, type="NodePort"))
    cluster.control.apply(*objects)
    cluster.control.kubectl("rollout", "status", f"daemonset/{NAME}", "--timeout=120s")
    cluster.step("a pod runs on each node")
    yield Web(cluster)
    cluster.control.kubectl("delete", f"daemonset/{NAME}", f"service/{NAME}")


def test_nodes_are_ready(cluster: Cluster) -> None:
    """All nodes are ready, and podwire's agent runs on each."""
    assert sorted(cluster.ready_nodes()) == [node.name for node in cluster.nodes]
    pods = cluster.control.objects("pods", "--namespace=podwire")
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == [node.name for node in cluster.nodes]


def test_pods_reach_each_other(cluster: Cluster, web: Web) -> None:
    """A pod of each node reaches the pods of all nodes, which see its address."""
    for source, target in itertools.product(web.names, repeat=2):
        assert web.get(source, f"{web.addresses[target]}:{PORT}") == web.names[target]
        seen = web.get(source, f"{web.addresses[target]}:{PORT}", "clientip").rpartition(":")[0]
        assert seen == web.addresses[source]


def test_service_answers(cluster: Cluster, web: Web) -> None:
    """Pods reach a Service by its name and its address, and each of its pods answers."""
    for node in web.names:
        seen = {web.get(node, NAME) for _ in range(20)}
        seen |= {web.get(node, web.service["spec"]["clusterIP"]) for _ in range(10)}
        assert seen == set(web.names.values())


def test_host_and_node_ports_answer(cluster: Cluster, web: Web) -> None:
    """The host port of each node reaches the pod of that node, the node port any pod: from outside and from pods."""
    node_port = web.service["spec"]["ports"][0]["nodePort"]
    for node in cluster.nodes:
        assert _get(f"http://{node.address}:{HOST_PORT}/hostname") == web.names[node.name]
        assert _get(f"http://{node.address}:{node_port}/hostname") in web.names.values()
        for source in web.names:
            assert web.get(source, f"{node.address}:{HOST_PORT}") == web.names[node.name]


def test_world_sees_the_address_of_the_node(cluster: Cluster, web: Web) -> None:
    """Pods reach a host outside the cluster, which sees the address of their node."""
    for node in cluster.nodes:
        assert web.get(node.name, plan.GATEWAY, "clientip").rpartition(":")[0] == node.address


def test_doctor_accepts_the_nodes(cluster: Cluster, web: Web) -> None:
    """`podwire doctor` reports nothing on any node while pods run."""
    for node in cluster.nodes:
        assert node.run("/opt/cni/bin/podwire", "doctor").splitlines()[-1] == "0 problems, 0 warnings, 0 notes"


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        body: bytes = answer.read()
        return body.decode()
