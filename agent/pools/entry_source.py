"""The cluster's nodes from the entries of the store: the networks of a node are its blocks of the mode "routed".

One rule: a fenced node has no networks, and of two entries with one name the one that registered later counts.
A reinstalled machine has a new node ID and its old name; its old entry stays until it is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agent.api_errors import Expired
from agent.kubernetes import Listing
from agent.node import Node
from agent.object_source import ItemChange, ItemChanges
from agent.pools.identity import uid_of
from agent.pools.store import Changes, EntryChanged, NodeEntry, SpaceChanged, Store

OnEntry = Callable[[str, NodeEntry | None], None]


class EntryNodes:
    """The nodes of a store, listed again in each epoch: a restored store may have counted past the last revision.

    In the thread of the watch, `on_entry` is called with the ID of each changed node and its entry (None if it was
    deleted), and `on_space` when the space may have changed.
    """

    name = "store: watch of the entries of nodes"

    def __init__(
        self, store: Store, on_entry: OnEntry = lambda node, entry: None, on_space: Callable[[], None] = lambda: None
    ) -> None:
        self._store, self._on_entry, self._on_space = store, on_entry, on_space
        self._epoch: str | None = None  # of the last list
        self._entries: dict[str, NodeEntry] = {}
        self._ids: dict[str, set[str]] = {}  # of the entries with a name

    def key_of(self, item: Node) -> str:
        """Returns a node's name."""
        return item.name

    def list_all(self) -> Listing[Node]:
        """Returns all nodes."""
        self._epoch = self._read_epoch()
        entries = self._store.list_entries()
        self._entries.clear()
        self._ids.clear()
        for node, stored in entries.by_node.items():
            self._add(node, stored.value)
            self._on_entry(node, stored.value)
        self._on_space()  # it may have changed while no watch was open
        nodes = map(self._node_of, self._ids)
        return Listing([node for node in nodes if node is not None], entries.revision)

    def read_revision(self) -> str:
        """Returns "": the watch itself refuses a revision that the store does not have."""
        return ""

    def watch(self, revision: str, *, timeout_s: int) -> ItemChanges[Node]:
        """Opens a watch of the entries and the space; raises Expired in another epoch than that of the last list."""
        changes = self._store.watch(revision)
        if self._read_epoch() != self._epoch:
            changes.close()
            raise Expired(self.name, "another epoch has begun: the store was restored", status=410)
        return _EntryChanges(changes, self._apply)

    def _read_epoch(self) -> str:
        """Returns the epoch, "" without a valid space."""
        try:
            space = self._store.read_space().value
        except ValueError:
            return ""
        return space.epoch if space else ""

    def _apply(self, change: EntryChanged | SpaceChanged) -> Iterator[ItemChange[Node]]:
        """Yields the changes of nodes that follow from a change of the store: two if an entry has another name."""
        if isinstance(change, SpaceChanged):
            self._on_space()
            yield ItemChange("", None, change.revision)
            return
        self._on_entry(change.node, change.entry)
        before = self._entries.pop(change.node, None)
        if before is not None:
            self._ids[before.name].discard(change.node)
        if change.entry is not None:
            self._add(change.node, change.entry)
        for name in dict.fromkeys(entry.name for entry in (before, change.entry) if entry):
            yield ItemChange(name, self._node_of(name), change.revision)

    def count(self) -> int:
        """Returns the number of nodes that have registered; from any thread."""
        return len(self._entries)

    def id_of(self, uid: str) -> str | None:
        """Returns the ID of the node that has registered under a UID of a Node object; from any thread."""
        entries = tuple(self._entries.items())
        return next((node for node, entry in entries if uid_of(entry.record.instance) == uid), None)

    def _add(self, node: str, entry: NodeEntry) -> None:
        self._entries[node] = entry
        self._ids.setdefault(entry.name, set()).add(node)

    def _node_of(self, name: str) -> Node | None:
        """Returns the node of a name; None without an entry."""
        ids = self._ids.get(name)
        if not ids:
            return None
        node = max(ids, key=lambda one: (self._entries[one].registered, one))
        entry = self._entries[node]
        networks = () if entry.record.is_fenced else entry.networks
        return Node(name, node, networks, entry.addresses)


class _EntryChanges:
    """The changes of a store's watch, as changes of nodes."""

    def __init__(
        self, changes: Changes, apply: Callable[[EntryChanged | SpaceChanged], Iterator[ItemChange[Node]]]
    ) -> None:
        self._changes, self._apply = changes, apply

    def __iter__(self) -> Iterator[ItemChange[Node]]:
        for change in self._changes:
            yield from self._apply(change)

    def close(self) -> None:
        self._changes.close()
