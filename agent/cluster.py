"""The nodes of the cluster, and the podCIDRs and addresses that the agent uses of each.

This module is pure. If two nodes have the same InternalIP, the agent reports it and keeps the routes to both. Packets
to the pods of both are sent to this address, and reach the machine that has it. So a machine that takes over an
address, or is registered again under another name, is reached at once, although the old Node object still exists; and a
kubelet that reports another node's address, by mistake or on purpose, cannot stop that node's routes. An address in
another node's podCIDR cannot stop them either (agent.conflicts).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from agent.conflicts import Conflicts
from agent.node import Node
from cni.address import Address, Network


class ClusterChange(NamedTuple):
    """A change of a node: whether its networks changed, and the other nodes whose usable addresses changed."""

    networks_changed: bool
    others: frozenset[str] = frozenset()


class Cluster:
    """The nodes by name, seen from the node `name`, with the conflicts of their networks and addresses.

    No network may contain one of the `api_addresses`, those of the API server. Networks are `fixed` if they are
    podCIDRs, which Kubernetes does not change: a node whose object became wrong keeps them.
    """

    def __init__(self, name: str, api_addresses: Collection[Address] = (), *, fixed: bool = True) -> None:
        self.name = name
        self._is_fixed = fixed
        self._api_addresses = tuple(api_addresses)
        self.nodes: dict[str, Node] = {}
        self.conflicts = self._no_conflicts()
        self._wrong: dict[str, tuple[str, ...]] = {}  # the problems of nodes

    @property
    def this(self) -> Node | None:
        """The node `name`, None if the API server has no object for it."""
        return self.nodes.get(self.name)

    @property
    def peers(self) -> dict[str, Node]:
        """The other nodes by name, as `get_usable` returns them."""
        return {name: self.get_usable(name) for name in self.nodes if name != self.name}

    def get_usable(self, name: str) -> Node:
        """Returns a node without its ignored addresses (agent.conflicts)."""
        node = self.nodes[name]
        if not any(map(self.conflicts.is_ignored, node.addresses)):
            return node
        addresses = tuple(each for each in node.addresses if not self.conflicts.is_ignored(each))
        return node._replace(addresses=addresses, has_only_ignored_addresses=not addresses)

    def replace(self, nodes: Mapping[str, Node]) -> None:
        """Replaces all nodes; a node whose object became wrong keeps fixed networks."""
        self.nodes = {name: self._with_known_networks(node, self.nodes.get(name)) for name, node in nodes.items()}
        self._wrong = {name: node.problems for name, node in self.nodes.items() if node.problems}
        self.conflicts = self._no_conflicts()
        this = self.this
        self.conflicts.change(None, this)  # first, because the others are compared with it
        for node in self.nodes.values():
            if node is not this:
                self.conflicts.change(None, node)

    def set(self, node: Node) -> ClusterChange:
        """Adds or replaces a node as `replace` does."""
        before = self.nodes.get(node.name)
        node = self.nodes[node.name] = self._with_known_networks(node, before)
        return self._update_conflicts(node.name, before, node)

    def remove(self, name: str) -> ClusterChange:
        """Removes a node."""
        return self._update_conflicts(name, self.nodes.pop(name, None), None)

    def describe_wrong(self) -> Iterator[str]:
        """Yields what is wrong with the objects of nodes."""
        for name, problems in self._wrong.items():
            yield f"node {name}: {'; '.join(problems)}"

    def list_unmasqueraded(
        self, name: str, has_route: Callable[[Network], bool], is_behind_tunnel: Callable[[Node], bool]
    ) -> Iterator[Network | Address]:
        """Yields the destinations of one node that are not masqueraded: its networks with a route, and its addresses.

        The addresses of a node behind the tunnel are masqueraded: packets to them do not pass the tunnel. The network
        between may drop those from pods' addresses, and the node's reverse path filter does.
        """
        node = self.get_usable(name)
        yield from filter(has_route, node.pod_cidrs)
        if name == self.name or not is_behind_tunnel(node):
            yield from node.addresses

    def _with_known_networks(self, node: Node, before: Node | None) -> Node:
        """Returns a node whose fixed networks are missing or wrong with its former ones."""
        is_same = before is not None and before.uid == node.uid
        if not self._is_fixed or before is None or not is_same or not before.pod_cidrs:
            return node
        if node.pod_cidrs and not node.problems:
            return node
        return node._replace(pod_cidrs=before.pod_cidrs, problems=node.problems or ("its podCIDR is missing",))

    def _update_conflicts(self, name: str, before: Node | None, after: Node | None) -> ClusterChange:
        if after and after.problems:
            self._wrong[name] = after.problems
        else:
            self._wrong.pop(name, None)
        names = self.conflicts.change(before, after)
        networks_changed = (before.pod_cidrs if before else ()) != (after.pod_cidrs if after else ())
        return ClusterChange(networks_changed, names - {name})

    def _no_conflicts(self) -> Conflicts:
        return Conflicts(self.name, self._api_addresses, fixed=self._is_fixed)
