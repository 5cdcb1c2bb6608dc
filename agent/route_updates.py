"""Changes the routes when nodes of the cluster change: logs each change of the kernel, and repeats what failed."""

from __future__ import annotations

from collections.abc import Callable

from agent.cluster import Cluster
from agent.log import ChangeLog
from agent.metrics import Metrics
from agent.retries import Retries
from agent.routes import Routes
from cni.errors import CniError

_REFUSED_RETRY_S = 60.0  # for routes that the kernel refused


class RouteUpdates:
    """Passes nodes to the routes.

    `repeat_all` is called some time after a failure. `report` is called after each change with its failure, "" if it
    succeeded.
    """

    def __init__(
        self,
        cluster: Cluster,
        routes: Routes,
        metrics: Metrics,
        changes: ChangeLog,
        retries: Retries,
        repeat_all: Callable[[], None],
        report: Callable[[str], None],
    ) -> None:
        self._cluster, self._routes, self._metrics = cluster, routes, metrics
        self._changes, self._retries = changes, retries
        self._repeat_all, self._report = repeat_all, report

    def replace_all(self) -> None:
        """Sets the routes to all nodes, and deletes all others of the agent."""
        self._change("routes of all nodes", self._replace_all)

    def update(self, name: str, others: frozenset[str]) -> None:
        """Sets or deletes the routes to a node that changed, and to the `others` that its change concerns."""
        self._change(f"routes of node {name}", lambda: self._update(name, *others))

    def reconcile(self) -> None:
        """Compares all routes with the kernel."""
        self._change("objects that something else changed", self._routes.reconcile)

    def handle_notifications(self) -> bool:
        """Restores what other programs changed; returns whether links, addresses or problems have changed."""
        before = self._routes.counters.comparisons, self._routes.problems
        self._change("objects that something else changed", self._routes.handle_notifications)
        return (self._routes.counters.comparisons, self._routes.problems) != before

    def _replace_all(self) -> None:
        this = self._cluster.this
        assert this is not None  # the caller knows that the nodes are certain
        self._routes.set_node(this, self._cluster.conflicts.networks)
        self._routes.replace_peers(self._cluster.peers, self._cluster.conflicts.networks)

    def _update(self, *names: str) -> None:
        conflicting = self._cluster.conflicts.networks
        for name in names:
            if name not in self._cluster.nodes:
                self._routes.remove_peer(name, conflicting)
            elif name == self._cluster.name:
                self._routes.set_node(self._cluster.get_usable(name), conflicting)
            else:
                self._routes.update_peer(self._cluster.get_usable(name), conflicting)

    def _change(self, what: str, change: Callable[[], None]) -> None:
        failure = ""
        requests = self._routes.counters.requests
        with self._changes.recorded(what, lambda: self._routes.counters.requests):
            try:
                change()
            except CniError as error:
                failure = str(error)
        self._metrics.changes.inc(self._routes.counters.requests - requests)
        self._report(failure)
        if failure:
            self._retries.schedule(self._repeat_all)
        elif self._routes.has_refusals:
            self._retries.schedule(self.reconcile, _REFUSED_RETRY_S)
