"""The agent's part for addresses from pools: the store, the manager of this node's blocks, the watch of the entries.

The manager and the watch have a thread each; the main thread handles their reports, which reach it through an inbox.
The threads of the HTTP server answer the operator's tool, from this node's files and the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

from agent.kubernetes import ApiClient
from agent.node import Node
from agent.object_source import kubernetes_nodes
from agent.object_watch import Changed, Failed, ObjectEvent, ObjectWatch, Synced
from agent.pools import configured, identity
from agent.pools.acceptance import Acceptance
from agent.pools.admin import Admin
from agent.pools.entry_source import EntryNodes
from agent.pools.kubernetes_store import KubernetesStore
from agent.pools.left_routes import LeftRoutes
from agent.pools.manager import Manager
from agent.pools.memory import NodeFacts
from agent.pools.node_report import LocalReport, read_report
from agent.pools.pods import PodKey, PodKeys, pods_of_node
from agent.pools.reclaimer import Reclaimer
from agent.pools.reports import BlockLost, PoolEvent, PoolState
from agent.pools.store import NodeEntry
from agent.pools.supply import PoolUsage
from agent.settings import Settings

_STOP_S = 1.0


class PoolService:
    """The service of one node.

    `put` receives the events of its pools, `put_node` those of all nodes, `on_uid` the UID of this node's Node object,
    all from any thread. `on_contact` is called for each answer to `watch`, that of the entries. `client` is None in a
    cluster without Kubernetes.
    """

    def __init__(
        self,
        settings: Settings,
        client: ApiClient | None,
        put: Callable[[PoolEvent], None],
        put_node: Callable[[ObjectEvent[Node]], None],
        on_contact: Callable[[], None],
        on_uid: Callable[[str], None],
        log: Callable[[str, str], None],
    ) -> None:
        options = settings.pools
        self._options, self._name = options, settings.node_name
        self._on_uid, self._log, self._is_read_only = on_uid, log, settings.dry_run
        self._identity = identity.read(options.state_dir, options.machine, options.machine_address)
        self._networks = configured.list_networks(settings)
        store = configured.open_store(options, client)
        self._entries = EntryNodes(store, self._on_entry, self._on_space)
        self.watch = ObjectWatch(self._entries, put_node, on_contact=on_contact)
        self._reporter = _Reporter(put)
        facts = NodeFacts("", self._name, options.addresses)
        self._manager = Manager(
            store, self._identity, self._networks, self._reporter, facts, delete_routes=LeftRoutes(log).delete
        )
        manager = self._manager
        self._pods = (
            ObjectWatch(pods_of_node(client, self._name), PodKeys(manager.set_pods, manager.pods_failed).handle)
            if client and options.is_sticky
            else None
        )
        self._reclaimer = Reclaimer(store, self._entries, client, options, log) if client else None
        self._nodes = ObjectWatch(kubernetes_nodes(client), self._on_node) if client else None
        self._acceptance = (
            Acceptance(store, self._read_report, self._entries.count, put, log)
            if isinstance(store, KubernetesStore)
            else None
        )
        self.admin = Admin(store, self._read_report)
        self._locks, self._stopped = ExitStack(), threading.Event()
        self._thread = threading.Thread(target=self._manager.run, args=(self._stopped,), name="blocks", daemon=True)

    def start(self) -> None:
        """Starts the watches and, except with --dry-run, the manager; raises CniError(11) beside another agent."""
        if not self._is_read_only:
            directories = {self._options.state_dir, *(f"{network.data_dir}.podwire" for network in self._networks)}
            self._locks.enter_context(identity.locked(directories))
            self._thread.start()
            for thread in (self._reclaimer, self._acceptance):
                if thread:
                    thread.start()
        if self._pods:
            self._pods.start()
        if self._nodes:
            self._nodes.start()
        self.watch.start()

    def stop(self) -> None:
        """Ends the threads: after their present request, or with the process."""
        self._stopped.set()
        self._manager.wake()
        for thread in (self._reclaimer, self._acceptance):
            if thread:
                thread.stop()
        for watch in self._watches():
            watch.stop()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        self._locks.close()

    def is_alive(self) -> bool:
        """Returns whether the threads run."""
        is_managing = self._thread.is_alive() or self._thread.ident is None
        return is_managing and all(watch.is_alive() for watch in self._watches())

    def reconnect(self) -> None:
        """Opens the watches again: after a change of this node's addresses answers may not arrive."""
        for watch in self._watches():
            watch.reconnect()

    def _watches(self) -> Iterator[ObjectWatch[Node] | ObjectWatch[PodKey]]:
        yield self.watch
        if self._nodes:
            yield self._nodes
        if self._pods:
            yield self._pods

    def _on_node(self, event: ObjectEvent[Node]) -> None:
        """Handles an event of the watch of Nodes: this node's UID and addresses, and evidence about other machines."""
        if isinstance(event, Failed):
            self._log("warning", f"API server: {event.error}")
        if self._reclaimer:
            self._reclaimer.handle(event)
        node: Node | None = None
        if isinstance(event, Synced):
            node = event.items.get(self._name)
        elif isinstance(event, Changed) and event.item.name == self._name:
            node = event.item
        if node:
            self._on_uid(node.uid)
            self._manager.set_facts(NodeFacts(node.uid, self._name, node.addresses))

    def _on_entry(self, node: str, entry: NodeEntry | None) -> None:
        """Notifies the manager of a change of an entry; of this node's only if another agent or the tool made it."""
        if node != self._identity.node:
            self._manager.others_changed()
        else:
            self._manager.entry_changed(entry)

    def _on_space(self) -> None:
        self._manager.space_changed()
        if self._acceptance:
            self._acceptance.wake()

    def _read_report(self) -> LocalReport:
        return read_report(self._identity, self._name, self._networks, self._manager.status())


class _Reporter:
    """Passes the manager's reports to the main thread."""

    def __init__(self, put: Callable[[PoolEvent], None]) -> None:
        self._put = put
        self.state = PoolState()

    def problems(self, texts: tuple[str, ...]) -> None:
        self._set(self.state._replace(problems=texts))

    def usage(self, pools: Mapping[str, PoolUsage]) -> None:
        self._set(self.state._replace(usage=dict(pools)))

    def event(self, text: str) -> None:
        self._put(BlockLost(text))

    def _set(self, state: PoolState) -> None:
        self.state = state
        self._put(state)
