"""The networks to which pods keep their addresses, by node, so that a change of a node costs this node's networks."""

from __future__ import annotations

from itertools import chain

from agent.cluster import Cluster
from agent.routes import Routes
from attachment.masquerade.cluster import ClusterNetworks
from cni.address import Address, Network


class MasqueradeUpdates:
    """Collects which nodes have changed, and passes their networks to the sets and chains."""

    def __init__(self, cluster: Cluster, routes: Routes, networks: ClusterNetworks) -> None:
        self._cluster, self._routes, self._networks = cluster, routes, networks
        self._by_node: dict[str, tuple[Network | Address, ...]] = {}
        self._changed: set[str] | None = None  # None: all
        self._comparisons = 0

    def mark(self, *names: str) -> None:
        """Marks nodes as changed."""
        if self._changed is not None:
            self._changed.update(names)

    def mark_all(self) -> None:
        """Marks all nodes as changed."""
        self._changed = None

    def apply(self) -> int:
        """Passes the changes; returns the number of changed elements and rules. Raises CniError."""
        changed, self._changed = self._changed, set()
        comparisons = self._routes.counters.comparisons
        if changed is None or comparisons != self._comparisons:  # a comparison may have changed any route
            self._comparisons = comparisons
            self._by_node = {name: self._list(name) for name in self._cluster.nodes}
            return self._networks.set_networks(chain.from_iterable(self._by_node.values()))
        before = [self._by_node.pop(name, ()) for name in changed]
        after = {name: self._list(name) for name in changed if name in self._cluster.nodes}
        self._by_node.update(after)
        return self._networks.change_networks(chain.from_iterable(after.values()), chain.from_iterable(before))

    def _list(self, name: str) -> tuple[Network | Address, ...]:
        return tuple(self._cluster.list_networks(name, self._routes.has_route, self._routes.is_behind_tunnel))
