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
from agent.kubernetes import ApiClient, object_path
from agent.node import Node, parse_node
from agent.object_source import NODES
from agent.object_watch import Changed, Deleted, ObjectEvent, Synced
from agent.pools.block_protocol import Evidence
from agent.pools.entry_source import EntryNodes
from agent.pools.identity import uid_of
from agent.pools.options import DELETED, PoolOptions
from agent.pools.reclaim import free_blocks, read_suspect, reclaim
from agent.pools.store import Store

_SPREAD_S = 0.02  # for each node of the cluster
_CHECK_S, _CHECKERS = 600.0, 3.0  # about three agents check again, each within ten minutes
_RETRY_S = 60.0


class _Task(NamedTuple):
    """A task for the blocks of a machine that the administrator stated to be off; `at_s` is of the monotonic clock."""

    name: str
    uid: str
    evidence: Evidence
    is_check: bool = False
    at_s: float = 0.0


class Reclaimer:
    """The thread that frees blocks. `handle` gets the events of the watch of Nodes, in one thread."""

    def __init__(
        self,
        store: Store,
        entries: EntryNodes,
        client: ApiClient,
        options: PoolOptions,
        log: Callable[[str, str], None],
    ) -> None:
        self._store, self._entries, self._client, self._log = store, entries, client, log
        self._reclaims_deleted = options.reclaim == DELETED
        self._delay_s = options.reclaim_delay_s
        self._nodes: dict[str, Node] = {}
        self._tasks: list[_Task] = []
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

    def handle(self, event: ObjectEvent[Node]) -> None:
        """Handles an event of the watch of Nodes."""
        if isinstance(event, Synced):
            self._nodes = dict(event.items)
            for node in event.items.values():
                self._note_taint(node)
        elif isinstance(event, Changed):
            before = self._nodes.get(event.item.name)
            self._nodes[event.item.name] = event.item
            if before and before.uid != event.item.uid:
                self._note_deleted(before)
            self._note_taint(event.item)
        elif isinstance(event, Deleted) and event.key in self._nodes:
            self._note_deleted(self._nodes.pop(event.key))

    def _note_deleted(self, node: Node) -> None:
        if self._reclaims_deleted:
            self._schedule(_Task(node.name, node.uid, Evidence.NODE_DELETED), self._delay_s)

    def _note_taint(self, node: Node) -> None:
        if node.is_out_of_service:
            self._schedule(_Task(node.name, node.uid, Evidence.OUT_OF_SERVICE), 0.0)

    def _schedule(self, task: _Task, delay_s: float) -> None:
        """Schedules a task after `delay_s` and a random time."""
        spread_s = 1.0 + _SPREAD_S * len(self._nodes)
        with self._changed:
            self._tasks.append(task._replace(at_s=time.monotonic() + delay_s + random.random() * spread_s))
            self._changed.notify()

    def _run(self) -> None:
        while task := self._next():
            try:
                self._reclaim(task)
            except (ApiError, ValueError) as error:
                self._log("warning", f"the blocks of node {task.name} are not reclaimed yet: {error}")
                self._schedule(task, _RETRY_S)

    def _next(self) -> _Task | None:
        """Waits for the next task and returns it; None at the end."""
        with self._changed:
            while not self._is_stopped:
                task = min(self._tasks, key=lambda one: one.at_s, default=None)
                wait_s = task.at_s - time.monotonic() if task else None
                if task and wait_s is not None and wait_s <= 0:
                    self._tasks.remove(task)
                    return task
                self._changed.wait(wait_s)
        return None

    def _reclaim(self, task: _Task) -> None:
        """Declares the node dead and frees its blocks, unless another agent has done it."""
        node = self._entries.id_of(task.uid)
        if node is None:
            return  # it never registered, or has registered under another UID
        if task.is_check:
            free_blocks(self._store, node)
            return
        suspect = read_suspect(self._store, node)
        record = suspect.record
        if record is None or uid_of(record.instance) != task.uid:
            return
        if record.is_fenced:
            if random.random() * len(self._nodes) < _CHECKERS:
                self._schedule(task._replace(is_check=True), _CHECK_S * random.random())
            return
        if not self._is_still_true(task):  # the evidence is read after the record and the epoch
            return
        done = reclaim(self._store, suspect, task.evidence, deleted_is_off=self._reclaims_deleted)
        blocks = ", ".join(map(str, done.blocks)) or "none"
        self._log(
            "warning", f"node {task.name} ({node}) is off: {task.evidence.value}; blocks that are free now: {blocks}"
        )
        if done.problem:
            self._log("warning", done.problem)
            self._schedule(task._replace(is_check=True), _RETRY_S)

    def _is_still_true(self, task: _Task) -> bool:
        """Returns whether the API server shows the evidence now; raises ApiError."""
        try:
            node = parse_node(self._client.get(object_path(NODES, task.name)))
        except NotFound:
            return task.evidence is Evidence.NODE_DELETED
        if task.evidence is Evidence.NODE_DELETED:
            return node.uid != task.uid
        return node.uid == task.uid and node.is_out_of_service
