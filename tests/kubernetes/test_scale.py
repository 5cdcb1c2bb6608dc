"""Hundreds of pods come and go: each has an address of its own, and the network leaves nothing of them on a node."""

import contextlib
import time
from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node
from tests.kubernetes.pods import daemon_set, idle_deployment
from tests.support.machine import unchanged

LABEL = "scale"
FULL = 250  # a podCIDR has 253 addresses
TIMES, NIGHTLY_TIMES = 2, 5
DEPLOYMENTS, REPLICAS = 30, 20
SAMPLE = 200  # two neighbors each in the table of this kernel, which has room for 1,024 of all nodes and pods
_EMPTY_S = 5
_LIMITS = dict.fromkeys(("kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"), "10M")


@pytest.fixture(scope="module", autouse=True)
def first_pods(cluster: Cluster) -> None:
    """Each node had a pod: the first one leaves what stays by design."""
    cluster.control.apply(daemon_set("first"))
    cluster.control.kubectl("rollout", "status", "daemonset/first", "--timeout=120s")
    cluster.control.kubectl("delete", "daemonset/first")
    _wait_until_none(cluster)


def test_full_node(cluster: Cluster, pytestconfig: pytest.Config) -> None:
    """A node has 250 pods, repeatedly."""
    with _deployments(cluster, 1, node=cluster.nodes[0]):
        for _ in range(NIGHTLY_TIMES if pytestconfig.getoption("--nightly") else TIMES):
            _scale(cluster, FULL)
            _assert_addresses(cluster, FULL)
            _scale(cluster, 0)


def test_pods_of_many_deployments(cluster: Cluster) -> None:
    """30 Deployments have 20 pods each, with limited bandwidth, at once."""
    with _deployments(cluster, DEPLOYMENTS, annotations=_LIMITS):
        _scale(cluster, REPLICAS)
        _assert_addresses(cluster, DEPLOYMENTS * REPLICAS)
        _scale(cluster, 0)


@contextlib.contextmanager
def _deployments(
    cluster: Cluster, number: int, *, node: Node | None = None, annotations: dict[str, str] | None = None
) -> Iterator[None]:
    """Creates Deployments without pods; asserts that nothing of their pods remains."""
    names = [f"{LABEL}-{one}" for one in range(number)]
    cluster.control.apply(
        *(idle_deployment(name, LABEL, node.name if node else None, annotations or {}) for name in names)
    )
    with unchanged(lambda: {one.name: _picture(one) for one in cluster.nodes}):
        yield
    cluster.control.kubectl("delete", "deployments", f"--selector=group={LABEL}")


def _scale(cluster: Cluster, replicas: int) -> None:
    """Scales all Deployments; returns when all pods run, or nothing runs and no address is reserved."""
    start = time.monotonic()
    cluster.control.kubectl("scale", "deployments", f"--selector=group={LABEL}", f"--replicas={replicas}")
    for name in cluster.control.kubectl("get", "deployments", f"--selector=group={LABEL}", "--output=name").split():
        cluster.control.kubectl("rollout", "status", name)
    if not replicas:
        _wait_until_none(cluster)
    cluster.step(f"{replicas} pods of each Deployment after {time.monotonic() - start:.0f} s")


def _wait_until_none(cluster: Cluster) -> None:
    """Waits until no pod and no address is left: kubelet may create a sandbox again for a pod that is deleted."""

    def is_empty() -> bool:
        return not (any(node.reserved_addresses() for node in cluster.nodes) or cluster.control.objects("pods"))

    def stays_empty() -> bool:
        if not is_empty():
            return False
        time.sleep(_EMPTY_S)
        return is_empty()

    cluster.wait("no pod and no address is left", stays_empty)


def _assert_addresses(cluster: Cluster, pods: int) -> None:
    """Asserts that all pods have different addresses, those that the nodes have reserved; a sample answers."""
    statuses = [pod["status"] for pod in cluster.control.objects("pods", f"--selector=group={LABEL}")]
    addresses = {status["podIP"] for status in statuses}
    assert len(addresses) == len(statuses) == pods
    for node in cluster.nodes:
        assert set(node.reserved_addresses()) == {one["podIP"] for one in statuses if one["hostIP"] == node.address}
    source = cluster.nodes[0].network_of(cluster.nodes[0].reserved_addresses()[0])
    for address in sorted(addresses)[:: pods // SAMPLE]:
        source.run("ping", "-c1", "-W10", address)


def _picture(node: Node) -> dict[str, list[str]]:
    """Returns what the network has on a node."""
    commands = {
        "links": "ip -brief link | cut -d ' ' -f 1",
        "addresses": "ip -oneline address",
        "neighbors": "ip neighbor show nud permanent",
        "policy": "ip rule; ip -6 rule",
        "routes": "{ ip route show table all; ip -6 route show table all; } | sed 's/ linkdown//; s/  */ /g; s/ $//'",
        "rules": "nft --stateless list ruleset",
        "files": "find /var/lib/cni /run/podwire /run/netns",
    }
    return {what: sorted(node.run("sh", "-c", command).splitlines()) for what, command in commands.items()}
