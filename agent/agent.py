"""The agent: passes each event to its parts. This table has the events, and the parts in the order of their work.

list of nodes                   nodes; routes and masquerading of all; files; status
node new, changed or deleted    nodes; routes and masquerading of it and of those it conflicts with; files; status
request to the API that failed  status
notification of the kernel      routes, which are repaired; masquerading of all if links or addresses changed; status
state of this node's pools      files, when there are blocks; status
end of `podwire install`        status; files again after a failure
every 5 minutes                 routes and files, which are compared
every minute                    routes that the kernel refused; masquerading, which is repaired
ready, then every hour          `podwire gc`

Nothing in the kernel changes before the nodes are certain (agent.listed_nodes). Failed work is repeated.
Everything here runs in the main thread. The watch has a thread, which puts its events into the inbox; the HTTP server
has threads, which only read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from agent.api_contact import ApiContact
from agent.cluster import Cluster
from agent.events import EventRecorder, Subject
from agent.garbage import Collection, GarbageCollector
from agent.listed_nodes import ListedNodes
from agent.log import ChangeLog, Log
from agent.masquerade_updates import MasqueradeUpdates
from agent.metrics import Metrics
from agent.networks_source import NetworksSource, PodCidrs, PoolBlocks
from agent.node import Node
from agent.node_files import NodeFiles
from agent.object_watch import Changed, Deleted, Failed, ObjectEvent, Synced
from agent.pools.reports import BlockLost, PoolEvent, PoolsDecided, PoolState
from agent.readiness import API, MASQUERADE, NETWORK, POLICIES, POOLS
from agent.retries import Retries
from agent.route_updates import RouteUpdates
from agent.routes import Routes
from agent.settings import Settings
from agent.status import AgentStatus
from attachment.masquerade.cluster import ClusterNetworks
from cni.address import Address
from process.loop import Loop, now

_COMPARE_S = 300.0  # routes and files: the kernel reports each change, so this is for what was overlooked


class Parts(NamedTuple):
    """The parts of the agent that use the kernel, the API server or the output."""

    log: Log
    metrics: Metrics
    routes: Routes
    masquerade: ClusterNetworks
    events: EventRecorder


class Agent:
    """The agent of one node. Call `handle` with each event of the watch."""

    def __init__(self, settings: Settings, loop: Loop, parts: Parts, api_addresses: Sequence[Address] = ()) -> None:
        self._settings, self._loop, self._api_addresses = settings, loop, api_addresses
        self._log, self._metrics, self._routes, masquerade, self._events = parts
        self._source: NetworksSource = PoolBlocks() if settings.pools.store else PodCidrs()
        self._cluster = Cluster(settings.node_name, api_addresses, fixed=self._source.are_fixed)  # podCIDRs are
        self._nodes = ListedNodes(self._cluster, self._source)
        self.status = AgentStatus(
            loop,
            self._log,
            self._metrics,
            self._events,
            self._cluster,
            self._routes,
            self._source,
            *([POLICIES] if settings.enforces_policies else []),
        )
        self.status.on_ready = self._collect
        changes = ChangeLog(self._log, lambda: len(self._cluster.nodes), dry_run=settings.dry_run)
        self._retries = Retries(loop)
        self._route_updates = RouteUpdates(
            self._cluster,
            self._routes,
            self._metrics,
            changes,
            self._retries,
            self._apply_all,
            self.status.set_routes,
        )
        self._masquerade_updates = MasqueradeUpdates(
            loop, self._cluster, self._routes, masquerade, changes, self._retries, self._on_masquerade
        )
        self._files = NodeFiles(settings, loop, self._on_installed)
        self._garbage = GarbageCollector(settings, loop, self._on_collected)
        self.contact = ApiContact(loop, self._on_contact_check)
        self.on_address_change: Callable[[], None] = lambda: None  # main.py sets it: the watch reconnects
        self._has_pod_addresses = not settings.pools.store  # a block of the store is reported later
        if not settings.install:
            self.status.set_condition(NETWORK)

    def start(self) -> None:
        """Starts the periodic work and listens to the kernel's notifications."""
        if not self._settings.dry_run:
            self._routes.delete_routes_to(self._api_addresses)  # they would cut the agent off
        self._loop.watch(self._routes.fileno(), self._on_notifications)
        self.status.start()
        self.contact.start()
        self._loop.call_at(now() + _COMPARE_S, self._compare)
        self._masquerade_updates.start()

    def handle(self, event: ObjectEvent[Node]) -> None:
        """Handles an event of the watch."""
        if isinstance(event, Failed):
            self._on_failure(event)
            return
        self.status.set_condition(API)
        if isinstance(event, Synced):
            self._replace(event)
        elif isinstance(event, Changed):
            self._update(event.item)
        elif isinstance(event, Deleted):
            self._remove(event.key)
        self.status.schedule_report()

    def _replace(self, event: Synced[Node]) -> None:
        if unlisted := self._nodes.replace(event):
            text = "the API server was restored from a backup: the routes to nodes that it lacks stay until a restart"
            self._log.write("warning", text, nodes=unlisted)
        self._apply_all()

    def _apply_all(self) -> None:
        this = self._cluster.this
        if this is None or not self._nodes.are_certain:
            return
        if not self._settings.pools.store:
            self._events.node_uid = this.uid  # an entry of a store has no UID of the Node object
        self._route_updates.replace_all()
        self._masquerade_updates.update_all()
        self._ensure_files()

    def _update(self, node: Node) -> None:
        were_certain = self._nodes.are_certain
        change = self._nodes.set(node)  # its `others` are the nodes whose usable addresses changed
        if not were_certain:
            self._apply_all()
            return
        self._route_updates.update(node.name, change.others)
        self._masquerade_updates.schedule(node.name, change.others)
        if change.networks_changed or node.name == self._cluster.name:
            self._ensure_files()

    def _remove(self, name: str) -> None:
        change = self._nodes.remove(name)
        if not self._nodes.are_certain:
            return  # routes, network and pods stay: a deleted Node object is no proof that this node's pods are gone
        self._route_updates.update(name, change.others)
        self._masquerade_updates.schedule(name, change.others)

    def _on_failure(self, event: Failed) -> None:
        self._metrics.api_failures.inc()
        self._log.write("warning", f"API server: {event.error}")
        self.contact.note_failure(str(event.error))
        if not self._nodes.is_synced:
            self.status.set_condition(API, str(event.error))

    def _on_contact_check(self, problem: str) -> None:
        if self._nodes.is_synced:
            self.status.set_condition(API, problem)

    def _on_notifications(self) -> None:
        if not self._nodes.is_synced:
            self._routes.handle_notifications()  # reads them only
        elif self._route_updates.handle_notifications():  # links, addresses or problems have changed
            self.on_address_change()
            self._masquerade_updates.schedule_all()  # a node on the same link may now be behind the tunnel

    def _on_masquerade(self, problem: str) -> None:
        self.status.set_condition(MASQUERADE, problem)

    def _compare(self) -> None:
        self._loop.call_at(now() + _COMPARE_S, self._compare)
        if self._nodes.is_synced:
            self._route_updates.reconcile()
            self._ensure_files()  # the network's file or the executable may have changed

    def handle_pools(self, event: PoolEvent) -> None:
        """Handles what the manager of this node's blocks reports."""
        if isinstance(event, BlockLost):
            self._log.write("error", event.text)
            self._events.report("PodAddressLost", event.text)
        elif isinstance(event, PoolsDecided):
            level, reason = ("warning", "PoolsRefused") if event.is_refused else ("info", "PoolsAccepted")
            self._log.write(level, f"IPSpace {event.name}: {event.text}")
            about = Subject.of_space(event.name, event.uid)
            self._events.report(reason, event.text, is_warning=event.is_refused, about=about)
        else:
            self._on_blocks(event)

    def _on_blocks(self, state: PoolState) -> None:
        self._metrics.set_pools(state.usage)
        had_pod_addresses, self._has_pod_addresses = self._has_pod_addresses, state.has_blocks
        self.status.set_condition(
            POOLS, "; ".join(state.problems) or ("" if state.has_blocks else "no block is granted yet")
        )
        if state.has_blocks and not had_pod_addresses and self._nodes.is_synced:
            self._ensure_files()

    def _ensure_files(self) -> None:
        """Installs plugins and network when this node's networks are certain."""
        this = self._cluster.this
        if not self._settings.install:
            return
        if this is not None and self._has_pod_addresses and not self.status.node_problem:
            self._files.ensure(this)
        elif not self._files.is_installed:
            self.status.set_condition(NETWORK, f"not installed: this node's {self._source.noun} are not certain")

    def _on_installed(self, problem: str, output: str) -> None:
        self._metrics.installs.labels("failed" if problem else "ok").inc()
        self._log.write("info", "podwire install", output=output.splitlines())
        self.status.set_condition(NETWORK, problem)
        if problem:
            self._retries.schedule(self._ensure_files)

    def _collect(self) -> None:
        if self._settings.gc_interval_s and not self._settings.dry_run:
            self._garbage.run()
            self._loop.call_at(now() + self._settings.gc_interval_s, self._collect)

    def _on_collected(self, collection: Collection) -> None:
        self._metrics.collections.labels(collection.result).inc()
        level = "info" if collection.result == "ok" else "warning"
        self._log.write(level, f"podwire gc: {collection.result}", output=collection.output.splitlines())

    @property
    def is_done(self) -> bool:
        """Whether the first list has been handled, and the installation that it started has ended."""
        if not self._nodes.is_synced:
            return self._nodes.has_list  # the first list lacks this node: nothing is installed
        return not (self._files.is_running or self.status.is_starting)
