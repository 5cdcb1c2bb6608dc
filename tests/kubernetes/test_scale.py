"""Many pods come and go: what the network has of them on each node goes with them."""

from typing import Any

from tests.kubernetes import images
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node
from tests.support.machine import unchanged

NAME, PODS, TIMES = "many", 60, 2


def test_pods_leave_nothing(cluster: Cluster) -> None:
    """Links, routes, rules, addresses and files of each node equal the start after pods were created and deleted."""
    cluster.control.apply(_deployment())
    _scale(cluster, 9)  # the first pods leave what stays by design
    _scale(cluster, 0)
    errors = {node.name: _errors(node) for node in cluster.nodes}
    with unchanged(lambda: {node.name: _picture(node) for node in cluster.nodes}):
        for _ in range(TIMES):
            _scale(cluster, PODS)
            assert all(len(node.reserved_addresses()) > 10 for node in cluster.nodes)
            _scale(cluster, 0)
    assert {node.name: _errors(node) for node in cluster.nodes} == errors
    cluster.control.kubectl("delete", f"deployment/{NAME}")


def _scale(cluster: Cluster, pods: int) -> None:
    cluster.control.kubectl("scale", f"deployment/{NAME}", f"--replicas={pods}")

    def has_ended() -> bool:
        running = cluster.control.objects("pods", f"--selector=app={NAME}")
        if any("podIP" not in one["status"] for one in running):
            return False
        return len(running) == pods and (bool(pods) or not any(node.reserved_addresses() for node in cluster.nodes))

    cluster.wait(f"{pods} pods have addresses", has_ended)


def _picture(node: Node) -> dict[str, list[str]]:
    """Returns what the network has on a node."""
    rules = node.run("nft", "--stateless", "list", "ruleset").splitlines()
    return {
        "links": sorted(line.split()[0] for line in node.run("ip", "-brief", "link").splitlines()),
        "routes": [line.replace("linkdown", "").strip() for line in node.run("ip", "route").splitlines()],
        "rules": [line.strip() for line in rules],
        "namespaces": node.run("ls", "/run/netns").split(),
        "addresses": node.reserved_addresses(),
        "cache": node.run("ls", "/var/lib/cni/results").split(),
    }


def _errors(node: Node) -> list[str]:
    """Returns containerd's errors that name CNI; it has some while no network is installed."""
    lines = node.log("containerd").read_text().splitlines()
    return [line for line in lines if "level=error" in line and "cni" in line.lower()]


def _deployment() -> dict[str, Any]:
    container = {"name": "box", "image": images.BUSYBOX, "command": ["sleep", "1000"]}
    labels = {"app": NAME}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "terminationGracePeriodSeconds": 0}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": NAME}, "spec": spec}
