"""Changes the networks that are not masqueraded when nodes change: only the networks of the changed nodes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from agent.cluster import Cluster
from agent.log import ChangeLog
from agent.retries import Retries
from agent.routes import Routes
from attachment.masquerade.cluster import ClusterNetworks
from cni.address import Address, Network
from cni.errors import CniError
from process.loop import Loop, now

_GATHER_S = 0.2  # changes of several nodes make one update
_REPAIR_S = 60.0  # the kernel does not report changes of sets and chains; without a change this is one request


class MasqueradeUpdates:
    """Passes the nodes' networks to ClusterNetworks. `report` is called after a change with its problem or ""."""

    def __init__(
        self,
        loop: Loop,
        cluster: Cluster,
        routes: Routes,
        networks: ClusterNetworks,
        changes: ChangeLog,
        retries: Retries,
        report: Callable[[str], None],
    ) -> None:
        self._loop, self._cluster, self._routes, self._networks = loop, cluster, routes, networks
        self._changes, self._retries, self._report = changes, retries, report
        self._by_node: dict[str, tuple[Network | Address, ...]] = {}
        self._marked: set[str] | None = None  # the nodes that have changed; None: all
        self._is_scheduled = False
        self._comparisons = 0  # of the routes, before the last update of all nodes
        self._changed_elements = 0

    def start(self) -> None:
        """Starts the periodic repair of what other programs changed."""
        self._loop.call_at(now() + _REPAIR_S, self._repair)

    def schedule(self, name: str, others: frozenset[str]) -> None:
        """Schedules an update for a node, and for other nodes that its change concerns."""
        if self._marked is not None:
            self._marked.update((name, *others))
        self._schedule()

    def schedule_all(self) -> None:
        """Schedules an update for all nodes."""
        self._marked = None
        self._schedule()

    def update_all(self) -> None:
        """Updates the networks of all nodes now."""
        self._marked = None
        self._update()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_at(now() + _GATHER_S, self._update)

    def _repair(self) -> None:
        self._loop.call_at(now() + _REPAIR_S, self._repair)
        self._change(self._networks.repair)

    def _update(self) -> None:
        self._is_scheduled = False
        if self._routes.counters.comparisons:  # before the first, no network has a route
            self._change(self._pass_networks)

    def _change(self, change: Callable[[], int]) -> None:
        with self._changes.recorded("networks that are not masqueraded", lambda: self._changed_elements):
            try:
                self._changed_elements += change()
                self._report("")
            except CniError as error:
                self._report(str(error))
                self._retries.schedule(self.schedule_all)

    def _pass_networks(self) -> int:
        """Passes the networks of the changed nodes; returns the number of changed elements and rules."""
        marked, self._marked = self._marked, set()
        comparisons = self._routes.counters.comparisons
        if marked is None or comparisons != self._comparisons:  # a comparison may have changed any route
            self._comparisons = comparisons
            self._by_node = {name: self._list(name) for name in self._cluster.nodes}
            return self._networks.set_networks(chain.from_iterable(self._by_node.values()))
        before = [self._by_node.pop(name, ()) for name in marked]
        after = {name: self._list(name) for name in marked if name in self._cluster.nodes}
        self._by_node.update(after)
        return self._networks.change_networks(chain.from_iterable(after.values()), chain.from_iterable(before))

    def _list(self, name: str) -> tuple[Network | Address, ...]:
        return tuple(self._cluster.list_unmasqueraded(name, self._routes.has_route, self._routes.is_behind_tunnel))
