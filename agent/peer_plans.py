"""The other nodes, and the plan for each of them.

Plans are computed when they are needed, not stored: 5,000 nodes take 2 MB without them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from agent import route_plan
from agent.holders import Holders
from agent.node import Node
from agent.route_plan import ObjectKind, Peer, Plan, Situation
from kernel.protocol_route import Prefix


class PeerPlans:
    """The nodes of the cluster by name, and the problems of their plans. `this_node` has no plan."""

    def __init__(self) -> None:
        self._peers: dict[str, Peer] = {}
        self._holders = Holders()
        self.this_node = ""
        self.problems: dict[str, tuple[str, ...]] = {}

    def replace(self, nodes: Mapping[str, Node]) -> None:
        """Replaces all nodes."""
        self._peers = {name: self.with_former_addresses(node) for name, node in nodes.items()}
        self._holders = Holders()
        for peer in self._peers.values():
            for network in peer.networks:
                self._holders.add(network, peer.name)

    def get(self, name: str) -> Peer | None:
        """Returns a node, None without one."""
        return self._peers.get(name)

    def with_former_addresses(self, node: Node) -> Peer:
        """Returns a new or changed node, with the addresses that its object had before and lacks now."""
        return route_plan.keep_addresses(route_plan.peer_of(node), self._peers.get(node.name))

    def names(self) -> Collection[str]:
        """Returns the names of all nodes."""
        return self._peers.keys()

    def holder_of(self, network: Prefix) -> str:
        """Returns the name of the node that has a network (agent.holders: the first that named it), "" without one."""
        return self._holders.holder_of(network) or ""

    def holders_of(self, networks: Iterable[Prefix]) -> set[str]:
        """Returns the names of the nodes that have one of the networks."""
        return {name for network in networks if (name := self._holders.holder_of(network))}

    def change(self, name: str, after: Peer | None) -> None:
        """Adds, replaces or removes (None) a node."""
        before = self._peers.get(name)
        networks = after.networks if after else ()
        for network in before.networks if before else ():
            if network not in networks:
                self._holders.remove(network, name)
        for network in networks:
            self._holders.add(network, name)
        if after:
            self._peers[name] = after
        else:
            self._peers.pop(name, None)

    def plan(self, name: str, situation: Situation) -> Plan:
        """Returns the plan for one node."""
        peer = self._peers.get(name)
        if peer is None or name == self.this_node:
            return Plan(route_plan.new_objects())
        networks = tuple(each for each in peer.networks if self._holders.holder_of(each) == name)
        return route_plan.plan_peer(peer, networks, situation)

    def plan_and_store_problems(self, name: str, situation: Situation) -> Plan:
        """Returns the plan for one node, and stores its problems."""
        plan = self.plan(name, situation)
        if plan.problems:
            self.problems[name] = plan.problems
        else:
            self.problems.pop(name, None)
        return plan

    def list_keys(self, names: Iterable[str], situation: Situation) -> tuple[set[bytes], ...]:
        """Returns the keys of the objects in the plans of some nodes, by kind."""
        keys = tuple(set[bytes]() for _ in ObjectKind)
        for name in names:
            for kind, table in zip(ObjectKind, self.plan(name, situation).objects, strict=True):
                keys[kind].update(table)
        return keys

    def needs_tunnel(self, situation: Situation) -> bool:
        """Returns whether a node is reached by VXLAN."""
        others = (peer for name, peer in self._peers.items() if name != self.this_node)
        return any(route_plan.needs_tunnel(peer, situation) for peer in others)

    def any_address(self, size: int) -> bytes:
        """Returns an address of `size` bytes of any other node, b"" without one."""
        others = (peer for name, peer in self._peers.items() if name != self.this_node)
        return next((packed for peer in others for packed in peer.addresses if len(packed) == size), b"")
