"""podwire as the network of a real cluster: pods of all nodes, Services, host ports, the world outside."""

import itertools
from collections.abc import Iterator

import pytest

from tests.kubernetes import modes
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.plan import Family
from tests.kubernetes.pods import HOST_PORT, PORT, daemon_set, get, service, url

NAME = "web"
# A connection for each request.
_CURL = ("curl", "--silent", "--show-error", "--max-time", "10", "--header", "Connection: close", "--write-out", "\\n")


class Web:
    """The pods of a DaemonSet on all nodes, and its Service: their addresses of one IP version."""

    def __init__(self, cluster: Cluster, family: Family) -> None:
        self.control, self.family = cluster.control, family
        number = cluster.mode.families.index(family)
        self.nodes = {node.name: node.addresses[family] for node in cluster.nodes}
        self.pods = {pod["spec"]["nodeName"]: pod for pod in self.control.objects("pods", f"--selector=app={NAME}")}
        self.addresses = {node: pod["status"]["podIPs"][number]["ip"] for node, pod in self.pods.items()}
        self.names = {node: pod["metadata"]["name"] for node, pod in self.pods.items()}
        (self.service,) = self.control.objects("services", f"--field-selector=metadata.name={NAME}")
        self.address = self.service["spec"]["clusterIPs"][number]

    def get(self, node: str, host: str, port: int = 80, path: str = "hostname") -> str:
        """Returns what the pod of a node gets by HTTP from a host and port: a line for each number in the path."""
        words = (*_CURL, f"--{self.family.name.lower()}", url(host, port, path))
        return self.control.kubectl("exec", self.names[node], "--", *words).strip()

    def client(self, node: str, host: str, port: int = 80) -> str:
        """Returns the address of the pod of a node as a host sees it."""
        return self.get(node, host, port, "clientip").rpartition(":")[0].strip("[]")


@pytest.fixture(scope="module")
def running(cluster: Cluster) -> Iterator[None]:
    """A running DaemonSet with a host port, and its Service with a node port."""
    objects = (daemon_set(NAME, host_port=HOST_PORT), service(NAME, type="NodePort", ipFamilyPolicy="PreferDualStack"))
    cluster.control.apply(*objects)
    cluster.control.kubectl("rollout", "status", f"daemonset/{NAME}", "--timeout=120s")
    cluster.step("a pod runs on each node")
    yield
    cluster.control.kubectl("delete", f"daemonset/{NAME}", f"service/{NAME}")


@pytest.fixture(scope="module", params=modes.current().families, ids=lambda family: family.name)
def web(cluster: Cluster, running: None, request: pytest.FixtureRequest) -> Web:
    """The DaemonSet by each IP version of the mode."""
    return Web(cluster, request.param)


def test_nodes_are_ready(cluster: Cluster) -> None:
    """All nodes are ready, and podwire's agent runs on each."""
    assert sorted(cluster.ready_nodes()) == [node.name for node in cluster.nodes]
    pods = cluster.control.objects("pods", "--namespace=podwire")
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == [node.name for node in cluster.nodes]


def test_pods_reach_each_other(web: Web) -> None:
    """A pod of each node reaches the pods of all nodes, which see its address."""
    for source, target in itertools.product(web.names, repeat=2):
        assert web.get(source, web.addresses[target], PORT) == web.names[target]
        assert web.client(source, web.addresses[target], PORT) == web.addresses[source]


def test_service_answers(web: Web) -> None:
    """Pods reach a Service by its name and its address, and each of its pods answers."""
    for node in web.names:
        for host in (NAME, web.address):
            assert set(web.get(node, host, path="hostname?[1-30]").split()) == set(web.names.values())


def test_host_and_node_ports_answer(web: Web) -> None:
    """The host port of each node reaches the pod of that node, the node port any pod: from outside and from pods."""
    node_port = web.service["spec"]["ports"][0]["nodePort"]
    for node, address in web.nodes.items():
        assert get(url(address, HOST_PORT, "hostname")) == web.names[node]
        assert get(url(address, node_port, "hostname")) in web.names.values()
        for source in web.names:
            assert web.get(source, address, HOST_PORT) == web.names[node]


def test_world_sees_the_address_of_the_node(web: Web) -> None:
    """Pods reach a host outside the cluster, which sees the address of their node."""
    for node, address in web.nodes.items():
        assert web.client(node, web.family.gateway()) == address


def test_doctor_accepts_the_nodes(cluster: Cluster, running: None) -> None:
    """`podwire doctor` reports nothing on any node while pods run."""
    for node in cluster.nodes:
        node.assert_healthy()
