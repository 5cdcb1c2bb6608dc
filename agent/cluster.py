"""The nodes of the cluster, and the networks of pods that more than one of them has.

This module is pure. A network of two nodes is a mistake of its allocator (kubernetes#127792). No node can decide which
of the two is right, so the agent changes nothing for such a network: it is contested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from agent.node import Node, format_networks
from cni.address import Network, as_network


class Conflict(NamedTuple):
    """A pair of nodes whose networks overlap."""

    network: Network
    node: str
    other_network: Network
    other_node: str

    def __str__(self) -> str:
        one, other = format_networks((self.network,)), format_networks((self.other_network,))
        if one == other:
            return f"nodes {self.node} and {self.other_node} both have podCIDR {one}"
        return f"podCIDR {one} of node {self.node} overlaps {other} of node {self.other_node}"


class Cluster:
    """The nodes by name, seen from the node `name`, with the conflicts between their networks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: dict[str, Node] = {}
        self.conflicts: tuple[Conflict, ...] = ()

    @property
    def this(self) -> Node | None:
        """The node `name`, None if the API server has no object for it."""
        return self.nodes.get(self.name)

    @property
    def peers(self) -> dict[str, Node]:
        """The other nodes by name."""
        return {name: node for name, node in self.nodes.items() if name != self.name}

    @property
    def contested(self) -> frozenset[Network]:
        """The networks that more than one node has."""
        return frozenset(network for one in self.conflicts for network in (one.network, one.other_network))

    def replace(self, nodes: Mapping[str, Node]) -> None:
        """Replaces all nodes; a node whose object became wrong keeps its networks."""
        self.nodes = {name: _with_known_networks(node, self.nodes.get(name)) for name, node in nodes.items()}
        self._update_conflicts()

    def set(self, node: Node) -> bool:
        """Adds or replaces a node as `replace` does; returns whether the networks of any node changed."""
        before = self.nodes.get(node.name)
        node = self.nodes[node.name] = _with_known_networks(node, before)
        return self._update_conflicts_after(before.pod_cidrs if before else (), node.pod_cidrs)

    def remove(self, name: str) -> bool:
        """Removes a node; returns whether it had networks."""
        before = self.nodes.pop(name, None)
        return self._update_conflicts_after(before.pod_cidrs if before else (), ())

    def list_networks(self, is_behind_tunnel: Callable[[Node], bool]) -> Iterator[Network]:
        """Yields the networks to which pods keep their addresses: those of all pods, and the addresses of the nodes.

        Packets to the address of a node behind the tunnel do not pass the tunnel. The network between may drop packets
        from pods' addresses, and the node's reverse path filter does: they are masqueraded.
        """
        for node in self.nodes.values():
            yield from node.pod_cidrs
            if node.name == self.name or not is_behind_tunnel(node):
                yield from map(as_network, node.addresses)

    def _update_conflicts_after(self, before: tuple[Network, ...], after: tuple[Network, ...]) -> bool:
        if before == after:
            return False
        self._update_conflicts()
        return True

    def _update_conflicts(self) -> None:
        self.conflicts = tuple(find_conflicts(self.nodes.values()))


def _with_known_networks(node: Node, before: Node | None) -> Node:
    """Returns a node whose podCIDRs are missing or wrong with its former ones; Kubernetes does not change them."""
    is_same = before is not None and before.uid == node.uid
    if before is None or not is_same or not before.pod_cidrs or (node.pod_cidrs and not node.problems):
        return node
    return node._replace(pod_cidrs=before.pod_cidrs, problems=node.problems or ("its podCIDR is missing",))


def find_conflicts(nodes: Iterable[Node]) -> Iterator[Conflict]:
    """Yields each pair of overlapping networks of two nodes.

    Two networks are either disjoint, or one contains the other. So in the order of their first addresses, the larger
    one first, a network overlaps exactly those before it that have not ended yet.
    """
    by_start = sorted(
        (network.version, int(network.network_address), network.prefixlen, node.name, network)
        for node in nodes
        for network in node.pod_cidrs
    )
    enclosing: list[tuple[Network, str]] = []
    for version, first, _, name, network in by_start:
        while enclosing and (enclosing[-1][0].version != version or int(enclosing[-1][0].broadcast_address) < first):
            enclosing.pop()
        for other_network, other_name in enclosing:
            if other_name != name:
                yield Conflict(other_network, other_name, network, name)
        enclosing.append((network, name))
