"""The source of a node's pod networks: the podCIDRs of its Node object, or its blocks of a pool.

A source decides whether the agent knows enough to change the kernel, and describes what is wrong. This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from agent.node import Node


class NetworksSource(Protocol):
    """A source of networks. `are_fixed`: a node keeps them when its object lacks them. `noun`: for messages."""

    are_fixed: bool
    noun: str

    def is_known(self, node: Node) -> bool:
        """Returns whether the networks of this node are known, so that the agent may change the kernel."""

    def problem(self, name: str, node: Node | None, conflicts: Iterable[str]) -> str:
        """Returns why the node `name` has no certain network, "" if it has one; `conflicts` are of its networks."""


class PodCidrs:
    """The podCIDRs of the Node object; without them the agent changes nothing."""

    are_fixed = True
    noun = "podCIDRs"

    def is_known(self, node: Node) -> bool:
        """Returns whether the Node has podCIDRs."""
        return bool(node.pod_cidrs)

    def problem(self, name: str, node: Node | None, conflicts: Iterable[str]) -> str:
        """Returns the problem of the Node."""
        if node is None:
            return f"the API server has no Node {name}: set --node-name to the name that `kubectl get nodes` prints"
        if node.problems:
            return f"node {name}: {'; '.join(node.problems)}; nothing is changed until the object is correct"
        if not node.pod_cidrs:
            return (
                f"node {name} has no podCIDR: run kube-controller-manager with --allocate-node-cidrs and "
                "--cluster-cidr (kubeadm: podSubnet)"
            )
        return "; ".join(conflicts)


class PoolBlocks:
    """The node's blocks, as its entry in the store lists them; there may be none."""

    are_fixed = False
    noun = "blocks"

    def is_known(self, node: Node) -> bool:
        """Returns True, because only this node's agent writes the entry."""
        return True

    def problem(self, name: str, node: Node | None, conflicts: Iterable[str]) -> str:
        """Returns the problem of the entry."""
        if node is None:
            return f"the store has no entry of node {name} yet"
        return "; ".join(conflicts)
