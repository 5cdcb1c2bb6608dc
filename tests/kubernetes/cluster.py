"""A cluster: a control plane and nodes, with podwire installed as deploy/README.md says.

One rule: the caller is the first process of private namespaces (`python -m tests.kubernetes` creates them), with
which everything here ends.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from pack.release import agent_image
from tests.kubernetes import control_plane, images, modes, plan, pods
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.modes import Mode
from tests.kubernetes.node import Node
from tests.support import binaries, manifests
from tests.support.machine import eventually

GROUP_VARIABLE = "PODWIRE_CLUSTER_GROUP"  # the environment variable with the control group of a cluster
KEEP_VARIABLE = "PODWIRE_CLUSTER_KEEP"  # not empty: the cluster stays after its tests until it is interrupted
_READY_S = 300
_MOST_NODES = 4
_USAGE = """
In another terminal, as root, in the project's directory:

    build/cluster/kubectl get nodes,pods --all-namespaces --output=wide
    build/cluster/kubectl run box --image=docker.io/library/busybox:1.29 -- sleep 1000
    build/cluster/node node-1 /opt/cni/bin/podwire doctor

Ctrl-C ends the cluster."""


class Steps:
    """Prints a line for each step, with the time since the beginning."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, text: str) -> None:
        """Prints a line."""
        minutes, seconds = divmod(round(time.monotonic() - self._start), 60)
        print(f"{minutes:2}:{seconds:02} {text}", flush=True)


class Cluster:
    """A cluster in the mode of the environment, which runs inside `running()`."""

    def __init__(self, directory: Path) -> None:
        self.step = Steps()
        self.directory = directory
        self.mode = modes.current()
        self._archives: list[Path] = []
        self.nodes = [self._node(number, link) for number, link in enumerate(self.mode.links, 1)]
        names = [f"node-{number}" for number in range(1, _MOST_NODES + 1)]
        self.control = ControlPlane(directory, names, self.mode.families)

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Starts the cluster and installs podwire; all nodes are ready when the block begins."""
        with contextlib.ExitStack() as stack, ThreadPoolExecutor() as threads:
            writing = threads.submit(images.write_archives, self.directory)
            stack.enter_context(self.control.running())
            self.step("the control plane answers")
            for node in self.nodes:
                stack.enter_context(node.running())
                node.start_containerd()
            self._archives = writing.result()
            self.step("the nodes are booted, and the images written")
            list(threads.map(self.import_images, self.nodes))
            self.step("containerd has the images")
            for node in self.nodes:
                self.start_daemons(node)
            self.wait("nodes are registered", self._are_registered)
            self.control.route_to_pods()
            self.install()
            yield self

    @contextlib.contextmanager
    def added_node(self) -> Iterator[Node]:
        """Adds a node on the first link for the duration of the block; it is registered when the block begins."""
        with self._node(len(self.nodes) + 1, self.nodes[0].link).running() as node:
            self.nodes.append(node)
            try:
                node.start_containerd()
                self.import_images(node)
                self.start_daemons(node)
                self.wait("nodes are registered", self._are_registered)
                yield node
            finally:
                self.nodes.remove(node)
        self.control.kubectl("delete", "node", node.name)

    def import_images(self, node: Node) -> None:
        """Loads the images on a node whose containerd runs."""
        node.import_images(self._archives, images.aliases())

    def start_daemons(self, node: Node) -> None:
        """Starts kubelet and kube-proxy of a node."""
        self.start_kubelet(node)
        self.start_kube_proxy(node)

    def start_kubelet(self, node: Node) -> None:
        """Starts kubelet of a node."""
        node.start_kubelet(self.control.kubeconfig(control_plane.node_user(node.name)))

    def start_kube_proxy(self, node: Node) -> None:
        """Starts kube-proxy of a node."""
        node.start_kube_proxy(self.control.kubeconfig(f"system:{control_plane.PROXY}"))

    def install(self) -> None:
        """Installs podwire and waits until it runs on all nodes, which are then ready."""
        if self.mode == Mode():
            self.control.kubectl("apply", "--kustomize", str(manifests.INSTALL))
        else:
            self.control.apply(*self.mode.objects())
        if pools := self.mode.pools():
            self.control.kubectl("wait", "--for=condition=Established", "crd/ipspaces.podwire.io", "--timeout=60s")
            self.control.apply(pools)
        self.wait_for_rollout()
        self.step("podwire is installed")
        self.wait("nodes are ready", self.is_ready)
        for node in self.nodes:
            node.accept_errors()

    def wait_for_rollout(self) -> None:
        """Waits until podwire's agent is ready on all nodes, in the newest version."""
        status = ("--namespace=podwire", "rollout", "status", "daemonset/podwire")
        self.control.kubectl(*status, f"--timeout={_READY_S}s")

    def explain(self) -> None:
        """Prints how to use the cluster."""
        print(_USAGE, flush=True)

    def ready_nodes(self) -> list[str]:
        """Returns the names of the nodes that are ready."""
        return [node["metadata"]["name"] for node in self.control.objects("nodes") if pods.is_ready(node)]

    def is_ready(self) -> bool:
        """Returns whether all nodes are ready."""
        return len(self.ready_nodes()) == len(self.nodes)

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Waits for a condition and prints its line; AssertionError if it does not become true in time."""
        assert eventually(condition, within_s=_READY_S), f"{what}: not within {_READY_S} s"
        self.step(what)

    def _node(self, number: int, link: int) -> Node:
        disk = self.directory / f"node-{number}"
        return Node(number, link, self.mode.families, disk, os.environ[GROUP_VARIABLE])

    def _are_registered(self) -> bool:
        registered = self.control.objects("nodes")
        return len(registered) == len(self.nodes) and all("podCIDRs" in node["spec"] for node in registered)


def missing() -> str:
    """Returns what a cluster lacks, "" if it can start."""
    needed = {
        plan.PROGRAMS / "e2e.test": "kubernetes-cluster",
        plan.TEST_ROOT / "usr": "test-root",
        agent_image.BASES["amd64"]: "agent-base",
        binaries.directory() / "podwire": "binaries",
    }
    lacking = [f"no {path}: run `make {target}`" for path, target in needed.items() if not path.exists()]
    return "; ".join(lacking)
