"""Frees the blocks of machines that the administrator declared off, by a deleted Node or the out-of-service taint.

One rule: only an observed deletion counts. A Node that a list lacks may have joined after the backup from which the API
server was restored, and its machine runs.

Every agent sees the deletion; each waits a random time, and the first one makes the requests. A few of the others
check later that it has finished. The Node must be missing for some minutes: a restarted kubelet registers a new Node,
and the agent of its machine then registers with the new UID.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from agent.api_errors import ApiError, NotFound
from agent.kubernetes import Client, object_path
from agent.node import Node, parse_node
from agent.node_source import NODES
from agent.node_watch import Changed, Deleted, NodeEvent, Synced
from agent.pools.block_protocol import Evidence
from agent.pools.entry_source import EntryNodes
from agent.pools.identity import uid_of
from agent.pools.options import DELETED, PoolOptions
from agent.pools.reclaim import free_blocks, read_suspect, reclaim
from agent.pools.store import Store

_SPREAD_S = 0.02  # for each node of the cluster
_CHECK_S, _CHECKERS = 600.0, 3.0  # about so many agents check again within so many seconds
_RETRY_S = 60.0


class _Due(NamedTuple):
    """A task for the blocks of a machine that the administrator stated to be off; `at_s` is of the monotonic clock."""

    at_s: float
    name: str
    uid: str
    evidence: Evidence
    is_check: bool = False


class Reclaimer:
    """The thread that frees blocks. `handle` gets the events of the watch of Nodes, in one thread."""

    def __init__(
        self, store: Store, entries: EntryNodes, client: Client, options: PoolOptions, log: Callable[[str, str], None]
    ) -> None:
        self._store, self._entries, self._client, self._log = store, entries, client, log
        self._reclaims_deleted = options.reclaim == DELETED
        self._delay_s = options.reclaim_delay_s
        self._nodes: dict[str, Node] = {}
        self._due: list[_Due] = []
        self._changed = threading.Condition()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="reclaim", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after its present request, or with the process."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()

    def handle(self, event: NodeEvent) -> None:
        """Handles an event of the watch of Nodes."""
        if isinstance(event, Synced):
            self._nodes = dict(event.nodes)
            for node in event.nodes.values():
                self._note_taint(node)
        elif isinstance(event, Changed):
            before = self._nodes.get(event.node.name)
            self._nodes[event.node.name] = event.node
            if before and before.uid != event.node.uid:
                self._note_deleted(before)
            self._note_taint(event.node)
        elif isinstance(event, Deleted) and event.name in self._nodes:
            self._note_deleted(self._nodes.pop(event.name))

    def _note_deleted(self, node: Node) -> None:
        if self._reclaims_deleted:
            self._schedule(_Due(self._delay_s, node.name, node.uid, Evidence.NODE_DELETED))

    def _note_taint(self, node: Node) -> None:
        if node.is_out_of_service:
            self._schedule(_Due(0.0, node.name, node.uid, Evidence.OUT_OF_SERVICE))

    def _schedule(self, due: _Due) -> None:
        """Schedules work after `due.at_s` seconds and a random time."""
        spread_s = 1.0 + _SPREAD_S * len(self._nodes)
        with self._changed:
            self._due.append(due._replace(at_s=time.monotonic() + due.at_s + random.random() * spread_s))
            self._changed.notify()

    def _run(self) -> None:
        while due := self._next():
            try:
                self._reclaim(due)
            except (ApiError, ValueError) as error:
                self._log("warning", f"the blocks of node {due.name} are not reclaimed yet: {error}")
                self._schedule(due._replace(at_s=_RETRY_S))

    def _next(self) -> _Due | None:
        """Waits for the next task and returns it; None at the end."""
        with self._changed:
            while not self._is_stopped:
                due = min(self._due, default=None)
                wait_s = due.at_s - time.monotonic() if due else None
                if due and wait_s is not None and wait_s <= 0:
                    self._due.remove(due)
                    return due
                self._changed.wait(wait_s)
        return None

    def _reclaim(self, due: _Due) -> None:
        """Declares the node dead and frees its blocks, unless another agent has done it."""
        node = self._entries.id_of(due.uid)
        if node is None:
            return  # it never registered, or has registered under another UID
        if due.is_check:
            free_blocks(self._store, node)
            return
        suspect = read_suspect(self._store, node)
        record = suspect.record
        if record is None or uid_of(record.instance) != due.uid:
            return
        if record.is_fenced:
            if random.random() * len(self._nodes) < _CHECKERS:
                self._schedule(due._replace(at_s=_CHECK_S * random.random(), is_check=True))
            return
        if not self._is_still_true(due):  # the evidence is read after the record and the epoch
            return
        done = reclaim(self._store, suspect, due.evidence, deleted_is_off=self._reclaims_deleted)
        blocks = ", ".join(map(str, done.blocks)) or "none"
        self._log(
            "warning", f"node {due.name} ({node}) is off: {due.evidence.value}; blocks that are free now: {blocks}"
        )
        if done.problem:
            self._log("warning", done.problem)
            self._schedule(due._replace(at_s=_RETRY_S, is_check=True))

    def _is_still_true(self, due: _Due) -> bool:
        """Returns whether the API server shows the evidence now; raises ApiError."""
        try:
            node = parse_node(self._client.get(object_path(NODES, due.name)))
        except NotFound:
            return due.evidence is Evidence.NODE_DELETED
        if due.evidence is Evidence.NODE_DELETED:
            return node.uid != due.uid
        return node.uid == due.uid and node.is_out_of_service
