"""Puts the pools that an IPSpace object requests into effect, or refuses them, as `podwire ipam pools --set` does.

One rule: admin_changes decides, for the command and for `kubectl apply` alike. The decision is in the object's status,
and an Event repeats it.

Every agent sees a change of the object; each waits a random time, and the first one decides. A refusal is checked again
now and then, by about one agent a minute: a node may have given back the blocks that were in the way.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from agent.api_errors import ApiError
from agent.http_server import Refusal
from agent.pools import admin_changes, space_object
from agent.pools.admin_changes import StoreLost
from agent.pools.block_protocol import SwapOutcome
from agent.pools.kubernetes_store import KubernetesStore
from agent.pools.node_report import LocalReport
from agent.pools.reports import PoolsDecided
from agent.pools.store import SwapReply
from cni.errors import CniError

# For each node of the cluster: a decision reads all blocks, and the others should see it before they begin.
_SPREAD_S, _RETRY_S = 0.5, 60.0
# A node without blocks cannot notice that the store has lost its content: the others decide about a first space.
_WITHOUT_BLOCKS_S = 2.0


class Acceptance:
    """The thread that decides. Call `wake` when the object may have changed, from any thread."""

    def __init__(
        self,
        store: KubernetesStore,
        report: Callable[[], LocalReport],
        count_nodes: Callable[[], int],
        put: Callable[[PoolsDecided], None],
        log: Callable[[str, str], None],
    ) -> None:
        self._store, self._report, self._count_nodes, self._put, self._log = store, report, count_nodes, put, log
        self._woken, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="pools", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after its present request, or with the process."""
        self._stopped.set()
        self._woken.set()

    def wake(self) -> None:
        """Notes that the object may have changed."""
        self._woken.set()

    def decide(self) -> bool:
        """Decides about the spec unless an agent has; returns whether it is in effect. Raises ApiError, ValueError."""
        stored = self._store.read_space()
        if not stored.raw:
            return True
        request = space_object.request_of(stored.raw)
        if stored.value and request.reason == space_object.ACCEPTED:
            return True
        report = self._report()
        if request.reason == space_object.STORE_LOST and not report.has_grants:
            return False  # only a node that has blocks knows whether that is still true
        try:
            after = admin_changes.check_pools(self._store, report, request.document, stored.value)
        except Refusal as refusal:
            reason = space_object.STORE_LOST if isinstance(refusal, StoreLost) else space_object.REFUSED
            message = space_object.plain(f"{refusal.msg}; {refusal.details}")
            if (reason, message) != (request.reason, request.message):
                change = self._store.refuse_pools(stored, reason, message)
                self._report_decision(change, request.uid, message, is_refused=True)
            return False
        change = self._store.swap_space(stored, after)
        names = ", ".join(pool.name for pool in after.pools) or "none"
        self._report_decision(change, request.uid, f"the pools are in effect: {names}", is_refused=False)
        return change.outcome is SwapOutcome.SUCCEEDED

    def _report_decision(self, change: SwapReply, uid: str, text: str, *, is_refused: bool) -> None:
        if change.outcome is SwapOutcome.SUCCEEDED:
            self._put(PoolsDecided(self._store.space, uid, text, is_refused))
        else:  # another agent was faster, or a right is missing
            self._log("info", f"the status of IPSpace {self._store.space} is not written: {change.problem}")

    def _run(self) -> None:
        wait_s: float | None = None
        while not self._stopped.is_set():
            is_news = self._woken.wait(wait_s)
            self._woken.clear()
            nodes = max(1, self._count_nodes())
            is_done = self._try(random.random() * _SPREAD_S * nodes if is_news else 0.0)
            wait_s = None if is_done else random.random() * 2 * _RETRY_S * nodes

    def _try(self, delay_s: float) -> bool:
        """Decides after a delay; returns whether to wait for the next change."""
        try:
            is_new = delay_s > 0 and not self._report().has_grants
            return self._stopped.wait(delay_s + _WITHOUT_BLOCKS_S * is_new) or self.decide()
        except (ApiError, ValueError, OSError, CniError) as error:
            self._log("warning", f"the pools of IPSpace {self._store.space} are not checked yet: {error}")
            return False
