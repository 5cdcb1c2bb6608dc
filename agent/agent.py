"""The agent: joins the nodes that the API server lists with the kernel, the files and what it reports.

Everything here runs in the main thread. The watch has a thread, which puts its events into the inbox; the HTTP server
has threads, which only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import NamedTuple

from agent.api_contact import ApiContact
from agent.cluster import Cluster
from agent.events import EventRecorder, Subject
from agent.garbage import Collection, GarbageCollector
from agent.http_server import Page, Pages, metrics_page
from agent.log import Log
from agent.masquerade_updates import MasqueradeUpdates
from agent.metrics import Metrics
from agent.networks_source import NetworksSource, PodCidrs, PoolBlocks
from agent.node import Node
from agent.node_files import NodeFiles
from agent.node_watch import Changed, Deleted, Failed, NodeEvent, Synced
from agent.pools.reports import BlockLost, PoolEvent, PoolsDecided
from agent.readiness import Readiness, joined
from agent.retries import Retries
from agent.route_report import describe_problems
from agent.routes import Routes
from agent.settings import Settings
from attachment.masquerade.cluster import ClusterNetworks
from cni.address import Address
from cni.errors import CniError
from process import record
from process.loop import Loop, now
from process.record import Record

CONDITIONS = (API, NODE, NETWORK, ROUTES, MASQUERADE) = ("api", "node", "network", "routes", "masquerade")
POOLS = "pools"

_COMPARE_S = 300.0  # all routes: the kernel reports each change, so this is for what was overlooked
_REPAIR_S = 60.0  # the sets and chains, of which the kernel reports nothing: one request if nothing changed
_GATHER_S = 0.2  # changes of several nodes make one update of the masquerade set
_BEAT_S, _BEAT_MAX_S = 30.0, 120.0
_LOGGED_NODES = 500  # with more nodes the log has numbers instead of each change


class Parts(NamedTuple):
    """The parts that the agent joins."""

    log: Log
    metrics: Metrics
    routes: Routes
    masquerade: ClusterNetworks
    events: EventRecorder


class Agent:
    """The agent of one node. Call `handle` with each event of the watch."""

    def __init__(self, settings: Settings, loop: Loop, parts: Parts, api_addresses: Sequence[Address] = ()) -> None:
        self._settings, self._loop = settings, loop
        self._log, self._metrics, self._routes, self._networks, self._events = parts
        self._source: NetworksSource = PoolBlocks() if settings.pools.store else PodCidrs()
        self._cluster = Cluster(settings.node_name, api_addresses, fixed=self._source.are_fixed)
        self._masquerade = MasqueradeUpdates(self._cluster, self._routes, self._networks)
        self._api_addresses = api_addresses
        conditions = (*CONDITIONS, POOLS) if settings.pools.store else CONDITIONS
        self._readiness = Readiness(conditions, self._on_condition)
        self._files = NodeFiles(settings, loop, self._on_installed)
        self._garbage = GarbageCollector(settings, loop, self._on_collected)
        self._has_list = self._is_synced = self._was_ready = False
        self._update_is_due = self._report_is_due = False
        self._unlisted: dict[str, Node] = {}  # the nodes that a restored API server lacks
        self._retries = Retries(loop)
        self._failure: str | None = None  # of the last change of the kernel
        self._beat_s = now()
        self.contact = ApiContact(loop, self._on_contact_check)
        self.on_address_change: Callable[[], None] = lambda: None
        self.is_watching: Callable[[], bool] = lambda: True
        self._has_addresses = not settings.pools.store
        if not settings.install:
            self._readiness.set(NETWORK)

    def start(self) -> None:
        """Starts the periodic work and listens to the kernel's notifications."""
        if not self._settings.dry_run:
            self._routes.delete_routes_to(self._api_addresses)
        self._loop.watch(self._routes.fileno(), self._on_notifications)
        self._beat()
        self.contact.start()
        self._loop.call_at(now() + _COMPARE_S, self._compare)
        self._loop.call_at(now() + _REPAIR_S, self._repair_masquerade)

    # Nodes

    def handle(self, event: NodeEvent) -> None:
        """Handles an event of the watch."""
        if isinstance(event, Failed):
            self._on_failure(event)
            return
        self._readiness.set(API)
        if isinstance(event, Synced):
            self._replace(event)
        elif isinstance(event, Changed):
            self._update(event.node)
        elif isinstance(event, Deleted):
            self._remove(event.name)
        self._schedule_report()

    def _replace(self, event: Synced) -> None:
        self._has_list = True
        this_name = self._settings.node_name
        # The nodes that are younger than a restored backup run, and no later list names them: kubelet registers its
        # Node only when it starts.
        known = self._cluster.nodes if event.is_older else self._unlisted
        self._unlisted = {name: node for name, node in known.items() if name not in {this_name, *event.nodes}}
        if event.is_older:
            text = "the API server was restored from a backup: the routes to nodes that it lacks stay until a restart"
            self._log.write("warning", text, nodes=sorted(self._unlisted))
        if this_name not in event.nodes:
            # An API server without this node has lost its data, is another cluster's, or this node is not registered
            # yet: no reason to remove the routes to nodes that are running. The watch does not repeat the listed nodes.
            nodes = {**self._cluster.nodes, **event.nodes}
            nodes.pop(this_name, None)
            self._cluster.replace(nodes)
            return
        self._cluster.replace({**event.nodes, **self._unlisted})
        self._is_synced = True
        self._apply_all()

    def _apply_all(self) -> None:
        this = self._cluster.this
        if this is None or not self._is_synced or not self._source.is_known(this):
            return
        if self._source.are_fixed:
            self._events.node_uid = this.uid
        with self._changing("routes of all nodes"):
            self._routes.set_node(this, self._cluster.conflicts.networks)
            self._routes.replace_peers(self._cluster.peers, self._cluster.conflicts.networks)
        self._masquerade.mark_all()
        self._update_masquerade()
        self._ensure_files()

    def _update(self, node: Node) -> None:
        this = self._cluster.this
        self._unlisted.pop(node.name, None)
        change = self._cluster.set(node)
        if not self._is_synced or this is None or not self._source.is_known(this):
            self._apply_first()
            return
        with self._changing(f"routes of node {node.name}"):
            self._update_routes(node.name, *change.others)
        self._schedule_masquerade(node.name, *change.others)
        if change.has_networks or node.name == self._settings.node_name:
            self._ensure_files()

    def _update_routes(self, *names: str) -> None:
        for name in names:
            update = self._routes.set_node if name == self._settings.node_name else self._routes.update_peer
            update(self._cluster.usable(name), self._cluster.conflicts.networks)

    def _apply_first(self) -> None:
        """Starts the work when this node's object, or its podCIDR, was created after the first list."""
        if self._cluster.this is not None:
            self._is_synced = True
            self._apply_all()

    def _remove(self, name: str) -> None:
        change = self._cluster.remove(name)
        this = self._cluster.this
        if not self._is_synced or this is None or not self._source.is_known(this):
            return  # routes, network and pods stay: a deleted Node object is no proof that this node's pods are gone
        with self._changing(f"routes of node {name}"):
            self._routes.remove_peer(name, self._cluster.conflicts.networks)
            self._update_routes(*change.others)
        self._schedule_masquerade(name, *change.others)

    def _on_failure(self, event: Failed) -> None:
        self._metrics.api_failures.inc()
        self._log.write("warning", f"API server: {event.error}")
        self.contact.note_failure(str(event.error))
        if not self._is_synced:
            self._readiness.set(API, str(event.error))

    def _on_contact_check(self, problem: str) -> None:
        if self._is_synced:
            self._readiness.set(API, problem)

    # The kernel

    @contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        """Logs the block's changes of the kernel and its failure, after which everything is compared again."""
        requests = self._routes.counters.requests
        with self._recording() as recorded:
            try:
                yield
                self._failure = ""
            except CniError as error:
                self._failure = f"{error.msg}{f' ({error.details})' if error.details else ''}"
        number = self._routes.counters.requests - requests
        self._metrics.changes.inc(number)
        if recorded is not None:
            self._log.write_changes(what, recorded.changes)
        elif number:
            self._log.write("info", what, requests=number)
        self._schedule_report()
        if self._failure:
            self._retries.schedule(self._apply_all)
        elif self._routes.is_refused:
            self._retries.schedule(self._reconcile, _REPAIR_S)

    def _recording(self) -> AbstractContextManager[Record | None]:
        """Records changes for the log; not those of many nodes, whose texts would take megabytes."""
        dry_run = self._settings.dry_run
        is_small = len(self._cluster.nodes) <= _LOGGED_NODES
        return record.recording(dry_run=dry_run) if dry_run or is_small else nullcontext()

    def _on_notifications(self) -> None:
        if not self._is_synced:
            self._routes.handle_notifications()  # reads them only
            return
        before = self._routes.counters.comparisons, self._routes.problems
        with self._changing("objects that something else changed"):
            self._routes.handle_notifications()
        if (self._routes.counters.comparisons, self._routes.problems) != before:
            self.on_address_change()
            self._schedule_masquerade_of_all()  # a node on the same link may now be behind the tunnel

    def _compare(self) -> None:
        self._loop.call_at(now() + _COMPARE_S, self._compare)
        if self._is_synced:
            self._reconcile()
            self._ensure_files()  # the network's file or the executable may have changed

    def _reconcile(self) -> None:
        with self._changing("objects that something else changed"):
            self._routes.reconcile()

    def _repair_masquerade(self) -> None:
        self._loop.call_at(now() + _REPAIR_S, self._repair_masquerade)
        self._change_masquerade(self._networks.repair)

    def _schedule_masquerade(self, *names: str) -> None:
        """Schedules an update for some nodes."""
        self._masquerade.mark(*names)
        self._schedule_update()

    def _schedule_masquerade_of_all(self) -> None:
        self._masquerade.mark_all()
        self._schedule_update()

    def _schedule_update(self) -> None:
        if not self._update_is_due:
            self._update_is_due = True
            self._loop.call_at(now() + _GATHER_S, self._update_masquerade)

    def _update_masquerade(self) -> None:
        self._update_is_due = False
        if not (self._is_synced and self._routes.counters.comparisons):
            return
        self._change_masquerade(self._masquerade.apply)

    def _change_masquerade(self, change: Callable[[], int]) -> None:
        with self._recording() as recorded:
            try:
                change()
                self._readiness.set(MASQUERADE)
            except CniError as error:
                self._readiness.set(MASQUERADE, f"{error.msg}{f' ({error.details})' if error.details else ''}")
                self._retries.schedule(self._schedule_masquerade_of_all)
        if recorded is not None:
            self._log.write_changes("networks that are not masqueraded", recorded.changes)

    # Pools

    def handle_pools(self, event: PoolEvent) -> None:
        """Handles what the manager of this node's blocks reports."""
        if isinstance(event, BlockLost):
            self._log.write("error", event.text)
            self._events.report("PodAddressLost", event.text)
            return
        if isinstance(event, PoolsDecided):
            level, reason = ("warning", "PoolsRefused") if event.is_refused else ("info", "PoolsAccepted")
            self._log.write(level, f"IPSpace {event.name}: {event.text}")
            about = Subject.of_space(event.name, event.uid)
            self._events.report(reason, event.text, is_warning=event.is_refused, about=about)
            return
        self._metrics.set_pools(event.usage)
        had_addresses, self._has_addresses = self._has_addresses, event.has_blocks
        self._readiness.set(POOLS, "; ".join(event.problems) or ("" if event.has_blocks else "no block is granted yet"))
        if event.has_blocks and not had_addresses and self._is_synced:
            self._ensure_files()

    # Files and garbage

    def _ensure_files(self) -> None:
        """Installs plugins and network when this node's podCIDRs are certain."""
        this = self._cluster.this
        if not self._settings.install:
            return
        if this is not None and self._has_addresses and not self._node_problem():
            self._files.ensure(this)
        elif not self._files.is_installed:
            self._readiness.set(NETWORK, f"not installed: this node's {self._source.noun} are not certain")

    def _on_installed(self, problem: str, output: str) -> None:
        self._metrics.installs.labels("failed" if problem else "ok").inc()
        self._log.write("info", "podwire install", output=output.splitlines())
        self._readiness.set(NETWORK, problem)
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

    # Reports

    def _schedule_report(self) -> None:
        if not self._report_is_due:
            self._report_is_due = True
            self._loop.call_at(now(), self._report)

    def _report(self) -> None:
        """Reports the nodes, once for all events that have arrived: thousands of nodes may have a problem."""
        self._report_is_due = False
        problems, conflicts = self._routes.problems, self._cluster.conflicts
        unreachable = len({problem.node for problem in problems} - {""})
        self._metrics.set_nodes(len(self._cluster.nodes), len(conflicts), self._routes.counters.routes, unreachable)
        self._readiness.set(NODE, self._node_problem())
        if self._failure is not None:
            of_nodes = chain(describe_problems(problems), conflicts.describe(), self._cluster.describe_wrong())
            self._readiness.set(ROUTES, joined(chain([self._failure], of_nodes)))
        note = joined(chain([self._routes.note], conflicts.describe_addresses()))
        if self._readiness.set_note(ROUTES, note) and note:
            self._log.write("warning", note)

    def _node_problem(self) -> str:
        """Returns what keeps this node from a network, "" if nothing does."""
        this = self._cluster.this
        return self._source.problem(self._settings.node_name, this, self._cluster.conflicts.describe_of(this))

    def _on_condition(self, condition: str, problem: str) -> None:
        self._metrics.condition.labels(condition).set(not problem)
        is_ready = self._readiness.is_ready
        self._metrics.ready.set(is_ready)
        if problem:
            self._log.write("error", f"not ready: {condition}: {problem}")
            if condition in (NODE, NETWORK):
                self._events.report("PodNetworkNotReady", f"{condition}: {problem}")
        else:
            self._log.write("info", f"{condition} ok")
        if is_ready and not self._was_ready:
            self._was_ready = True
            self._collect()

    def _beat(self) -> None:
        self._beat_s = now()
        self._loop.call_at(self._beat_s + _BEAT_S, self._beat)

    @property
    def is_ready(self) -> bool:
        """Whether all conditions are met."""
        return self._readiness.is_ready

    @property
    def is_done(self) -> bool:
        """Whether the first list has been handled, and the installation that it started has ended."""
        if not self._is_synced:
            return self._has_list
        return not (self._files.is_running or self._readiness.is_starting)

    def pages(self) -> Pages:
        """Returns the pages of the HTTP server."""
        return {"/healthz": self._health, "/readyz": self._ready, "/metrics": self._metrics_page}

    def _health(self) -> Page:
        problem = ""
        if now() - self._beat_s >= _BEAT_MAX_S:
            problem = "the main thread has not run for two minutes"
        elif self._loop.failures or not self.is_watching():
            problem = "a part of the agent has ended after an internal error, which the log shows"
        return Page(not problem, f"{problem or 'ok'}\n".encode())

    def _ready(self) -> Page:
        return Page(self._readiness.is_ready, "".join(f"{line}\n" for line in self._readiness.describe()).encode())

    def _metrics_page(self) -> Page:
        return metrics_page(self._metrics.render())
