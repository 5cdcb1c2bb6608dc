"""Pools with sticky addresses in a real cluster: a pod that moves to another node."""

from typing import Any

import pytest

from tests.kubernetes import modes
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.pods import PORT, daemon_set, is_ready, url
from tests.support import manifests

NAME, CLIENT = "database", "client"
pytestmark = pytest.mark.skipif(modes.current().directory != manifests.POOLS_STICKY, reason="no sticky pool")


def test_moved_pod_keeps_its_address(cluster: Cluster) -> None:
    """A StatefulSet's pod moves: its addresses are on the new node only, and pods of all nodes reach it there."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": modes.STICKY}}
    cluster.control.apply(namespace, daemon_set(CLIENT), _stateful_set())
    cluster.control.kubectl("rollout", "status", f"daemonset/{CLIENT}", "--timeout=120s")
    cluster.wait("the pod is ready", lambda: _place(cluster)[0] != "")
    first, addresses = _place(cluster)
    assert len(addresses) == len(cluster.mode.families)
    _assert_reached(cluster, addresses)
    cluster.control.kubectl("cordon", first)
    cluster.control.kubectl("delete", "pod", f"{NAME}-0", f"--namespace={modes.STICKY}")
    cluster.wait("the pod is ready on another node", lambda: _place(cluster)[0] not in ("", first))
    cluster.control.kubectl("uncordon", first)
    assert _place(cluster)[1] == addresses
    for node in cluster.nodes:
        assert addresses & {*node.reserved_addresses()} == (addresses if node.name == _place(cluster)[0] else set())
    _assert_reached(cluster, addresses)
    for node in cluster.nodes:
        node.assert_healthy()
    cluster.control.kubectl("delete", f"namespace/{modes.STICKY}", f"daemonset/{CLIENT}")
    for node in cluster.nodes:
        node.accept_errors()  # the pod's ADD ends with code 11 until the address is free


def _stateful_set() -> dict[str, Any]:
    """Returns a StatefulSet of one pod, which is deleted from the API server before it ends on its node."""
    one = daemon_set(NAME)
    metadata = {"name": NAME, "namespace": modes.STICKY}
    return {**one, "kind": "StatefulSet", "metadata": metadata, "spec": {**one["spec"], "serviceName": NAME}}


def _place(cluster: Cluster) -> tuple[str, set[str]]:
    """Returns node and addresses of the pod, empty while it is not ready."""
    for pod in cluster.control.objects("pods", f"--namespace={modes.STICKY}"):
        if is_ready(pod):
            return pod["spec"]["nodeName"], {one["ip"] for one in pod["status"]["podIPs"]}
    return "", set()


def _assert_reached(cluster: Cluster, addresses: set[str]) -> None:
    """Asserts that the pod answers the pods of all nodes."""
    urls = [url(one, PORT, "hostname") for one in addresses]
    for pod in cluster.control.objects("pods", f"--selector=app={CLIENT}"):
        words = ("curl", "--silent", "--show-error", "--fail-early", "--max-time", "10", *urls)
        assert cluster.control.kubectl("exec", pod["metadata"]["name"], "--", *words) == f"{NAME}-0" * len(urls)
