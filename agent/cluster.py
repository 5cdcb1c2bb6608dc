"""The nodes of the cluster, and the networks of pods that conflict with another node's network or with an address.

This module is pure. A network of two nodes is a mistake of its allocator (kubernetes#127792). No node can decide which
of the two is right, so the agent changes nothing for such a network. Nor for one that contains the address of a node or
of the API server: the route would take the packets to that address.

An InternalIP of two nodes is reported, and stops no route. Packets to the pods of both are sent to this address, so
they reach the node that has it, whichever that is. So a machine that takes over an address, or is registered again
under another name, is reached at once, although the old Node object still exists. And a kubelet that reports another
node's address, by mistake or on purpose, cannot stop that node's routes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network
from itertools import chain
from typing import NamedTuple

from agent.node import INTERNAL_IP, Node, format_names, format_networks
from cni.address import Address, Network, as_network, format_ip


class Conflict(NamedTuple):
    """A network of a node that overlaps the network of another one, or contains an address of a node.

    The address is a network of one address here. `other_node` is "" for an address of the API server.
    """

    network: Network
    node: str
    other_network: Network
    other_node: str
    is_address: bool = False

    def __str__(self) -> str:
        one, other = format_networks((self.network,)), format_networks((self.other_network,))
        if self.is_address:
            address = format_ip(self.other_network.network_address)
            what = f"the {INTERNAL_IP} {address} of node {self.other_node}"
            api = f"{address}, an address of the API server"
            return f"podCIDR {one} of node {self.node} contains {what if self.other_node else api}"
        if one == other:
            return f"nodes {self.node} and {self.other_node} both have podCIDR {one}"
        return f"podCIDR {one} of node {self.node} overlaps {other} of node {self.other_node}"

    @property
    def networks(self) -> tuple[Network, ...]:
        """The conflicting networks of pods."""
        return (self.network,) if self.is_address else (self.network, self.other_network)

    def has_network_of(self, name: str) -> bool:
        """Returns whether a network of the node `name` is one of the conflicting ones."""
        return name == self.node or (name == self.other_node and not self.is_address)


class Cluster:
    """The nodes by name, seen from the node `name`, with the conflicts of their networks.

    No network may contain one of the `api_addresses`, those of the API server. Networks are `fixed` if they are
    podCIDRs, which Kubernetes does not change: a node whose object became wrong keeps them.
    """

    def __init__(self, name: str, api_addresses: Collection[Address] = (), *, fixed: bool = True) -> None:
        self.name = name
        self._is_fixed = fixed
        self._api_addresses = tuple(api_addresses)
        self.nodes: dict[str, Node] = {}
        self.conflicts: tuple[Conflict, ...] = ()
        self.shared_addresses: tuple[str, ...] = ()  # texts

    @property
    def this(self) -> Node | None:
        """The node `name`, None if the API server has no object for it."""
        return self.nodes.get(self.name)

    @property
    def peers(self) -> dict[str, Node]:
        """The other nodes by name."""
        return {name: node for name, node in self.nodes.items() if name != self.name}

    @property
    def conflicting(self) -> frozenset[Network]:
        """The networks that conflict with another node's network or with an address."""
        return frozenset(network for conflict in self.conflicts for network in conflict.networks)

    def replace(self, nodes: Mapping[str, Node]) -> None:
        """Replaces all nodes; a node whose object became wrong keeps fixed networks."""
        self.nodes = {name: self._with_known_networks(node, self.nodes.get(name)) for name, node in nodes.items()}
        self._update_conflicts()

    def set(self, node: Node) -> bool:
        """Adds or replaces a node as `replace` does; returns whether the networks of any node changed."""
        before = self.nodes.get(node.name)
        node = self.nodes[node.name] = self._with_known_networks(node, before)
        return self._update_conflicts_after(before, node)

    def remove(self, name: str) -> bool:
        """Removes a node; returns whether it had networks."""
        return self._update_conflicts_after(self.nodes.pop(name, None), None)

    def list_networks(
        self, has_route: Callable[[Network], bool], is_behind_tunnel: Callable[[Node], bool]
    ) -> Iterator[Network]:
        """Yields the networks to which pods keep their addresses: those of pods with a route, and the nodes' addresses.

        Packets to the address of a node behind the tunnel do not pass the tunnel. The network between may drop packets
        from pods' addresses, and the node's reverse path filter does: they are masqueraded.
        """
        for node in self.nodes.values():
            yield from filter(has_route, node.pod_cidrs)
            if node.name == self.name or not is_behind_tunnel(node):
                yield from map(as_network, node.addresses)

    def _with_known_networks(self, node: Node, before: Node | None) -> Node:
        """Returns a node whose fixed networks are missing or wrong with its former ones."""
        is_same = before is not None and before.uid == node.uid
        if not self._is_fixed or before is None or not is_same or not before.pod_cidrs:
            return node
        if node.pod_cidrs and not node.problems:
            return node
        return node._replace(pod_cidrs=before.pod_cidrs, problems=node.problems or ("its podCIDR is missing",))

    def _update_conflicts_after(self, before: Node | None, after: Node | None) -> bool:
        """Updates the conflicts after a change of a node; returns whether its networks changed."""
        networks, addresses = (before.pod_cidrs, before.addresses) if before else ((), ())
        new_networks, new_addresses = (after.pod_cidrs, after.addresses) if after else ((), ())
        if (networks, addresses) != (new_networks, new_addresses):
            self._update_conflicts()
        return networks != new_networks

    def _update_conflicts(self) -> None:
        self.conflicts = tuple(find_conflicts(self.nodes.values(), self._api_addresses))
        self.shared_addresses = tuple(describe_shared_addresses(self.nodes.values()))


def find_conflicts(nodes: Collection[Node], api_addresses: Collection[Address] = ()) -> Iterator[Conflict]:
    """Yields each pair of overlapping networks of two nodes, and each network with an address that it contains.

    Two networks are either disjoint, or one contains the other. So in the order of their first addresses, the larger
    one first, a network overlaps exactly those before it that have not ended yet.
    """
    networks = ((network, False, node.name) for node in nodes for network in node.pod_cidrs)
    addresses = ((address, True, node.name) for node in nodes for address in node.addresses)
    reserved = ((address, True, "") for address in api_addresses)
    items = sorted((*_key(item[0]), *item[1:], item[0]) for item in chain(networks, addresses, reserved))
    enclosing: list[tuple[Network, str]] = []
    for version, first, _, is_address, name, where in items:
        while enclosing and (enclosing[-1][0].version != version or int(enclosing[-1][0].broadcast_address) < first):
            enclosing.pop()
        for network, node in enclosing:
            if is_address or node != name:
                yield Conflict(network, node, as_network(where), name, is_address)
        if not is_address:
            enclosing.append((as_network(where), name))


def describe_shared_addresses(nodes: Collection[Node]) -> Iterator[str]:
    """Yields a text for each address that several nodes have."""
    first: dict[Address, str] = {}
    sharing: dict[Address, list[str]] = {}
    for node in nodes:
        for address in set(node.addresses):
            other = first.setdefault(address, node.name)
            if other != node.name:
                sharing.setdefault(address, [other]).append(node.name)
    for address, names in sharing.items():
        yield (
            f"{format_names(names)} have the same {INTERNAL_IP} {format_ip(address)}, to which packets to the pods of "
            "all of them are sent: delete the Node object that is out of date, or correct --node-ip of kubelet"
        )


def _key(where: Address | Network) -> tuple[int, int, int]:
    """Returns the IP version, the first address, and the length of the prefix."""
    if isinstance(where, (IPv4Network, IPv6Network)):
        return where.version, int(where.network_address), where.prefixlen
    return where.version, int(where), where.max_prefixlen
