"""Enforces network policies on one node: applies the API's objects and the node's pods to the packet filter.

One rule: after a change the agent works in this order. It writes the file `namespaces`, reads the changed records,
changes the packet filter in one transaction, and answers the ADDs that wait. It changes nothing before it knows pods,
namespaces and policies, so after a restart the last agent's filter remains in force until then.

Everything runs in the main thread, except the three watches: their threads parse, and put calls into the inbox.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from agent.inbox import Inbox
from agent.log import Log
from agent.metrics import PolicyMetrics
from agent.object_source import ObjectClient
from agent.policy import preconditions
from agent.policy.admin import FilterState, PolicyAdmin
from agent.policy.cluster_objects import ClusterObjects
from agent.policy.filter import PolicyFilter
from agent.policy.filter_table import EMPTY
from agent.policy.gate_server import GateRequest, GateServer
from agent.policy.local_pods import LocalPods
from agent.policy.namespaces_file import NamespacesFile
from agent.policy.newest import NewestPolicies
from agent.policy.plan import FilterPlan
from agent.policy.selection import PolicySelection
from agent.readiness import joined
from agent.settings import STRICT, Settings
from attachment.policy import table
from attachment.policy.records import PodRecord
from cni.errors import from_os_error
from kernel.errors import KernelError
from kernel.netfilter import nft
from process.loop import Loop, now

_COMPARE_S = 300.0  # compares the whole filter with the kernel's: another program may have changed it
_NODE_S = 10.0  # looks for what keeps policies from applying, and reads the counters
_BASE_CHAINS_S = 1.0  # counts the base rules: another program may have flushed the ruleset
_RETRY_S = 2.0
_POLL_S = 0.02  # an event of the policies' watch that changes no policy does not wake the main thread


class PolicyService:
    """The service of one node.

    It calls `report` with the problem that keeps it from enforcing policies, "" if there is none, and with a note about
    pods that no policy covers.
    """

    def __init__(
        self,
        settings: Settings,
        loop: Loop,
        client: ObjectClient,
        metrics: PolicyMetrics,
        report: Callable[[str, str], None],
        log: Log,
    ) -> None:
        self._check_established = settings.check_established
        is_strict, self._node = settings.network_policy == STRICT, settings.node_name
        self._conf = settings.conf if settings.install else ""
        self._loop, self._metrics, self._report, self._log = loop, metrics, report, log
        self._inbox: Inbox[Callable[[], None]] = Inbox(loop, lambda call: call())
        self._selection = PolicySelection()
        self._plan = FilterPlan(self._selection)
        warn = partial(log.write, "warning")
        self._objects = ClusterObjects(client, self._selection, self._inbox.put, self._schedule, warn)
        self._newest = NewestPolicies(client, self._inbox.put, warn) if is_strict else None
        self._file = NamespacesFile(is_strict=is_strict)
        self._local = LocalPods(loop, self._schedule)
        self._gate = GateServer(loop, self._on_request)
        self._filter: PolicyFilter | None = None
        self._table = EMPTY
        self._is_applied = False  # False: compares the whole filter next, as differences may have been lost
        self._is_scheduled = False
        self._pending_since_s = 0.0  # the time of the first change that is not applied; 0: all are
        self._drops: dict[str, int] = {}
        self._failure = self._other_engine = self._note = ""
        self._node_problems: list[str] = []
        self._unguarded: set[PodRecord] = set()
        self._problem = "starting"
        self.admin = PolicyAdmin(
            self._selection,
            self._node,
            self._inbox.put,
            lambda: FilterState(self._table, self._drops, self._problem),
        )
        metrics.lag.set_function(lambda: now() - self._pending_since_s if self._pending_since_s else 0.0)

    def start(self) -> None:
        """Starts the watches, and listens for requests of ADD; raises CniError(5)."""
        try:
            self._local.start()
            self._gate.start()
        except OSError as error:
            raise from_os_error(error).prefixed("cannot serve network policies: ") from error
        for watch in self._objects.watches:
            watch.start()
        self._repeat(_NODE_S, self._check_node)
        self._repeat(_COMPARE_S, self._compare)
        self._repeat(_BASE_CHAINS_S, self._check_base_chains)

    def stop(self) -> None:
        """Ends the threads. The packet filter stays in force; ADDs of pods with policies wait for the next agent."""
        for watch in self._objects.watches:
            watch.stop()

    def is_alive(self) -> bool:
        """Returns whether the threads run."""
        return all(watch.is_alive() for watch in self._objects.watches)

    def reconnect(self) -> None:
        """Opens the watches again."""
        for watch in self._objects.watches:
            watch.reconnect()

    def _schedule(self) -> None:
        """Schedules `_turn` unless it is scheduled: one turn applies all changes that have arrived."""
        self._pending_since_s = self._pending_since_s or now()
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_at(now(), self._turn)

    def _on_request(self, request: GateRequest) -> None:
        self._local.read(request.record)  # the directory's event may not have arrived
        pod = self._local.by_name.get(request.record)
        if self._newest and pod:
            self._newest.request_revision(pod.namespace, partial(self._on_newest, request))
        self._schedule()

    def _on_newest(self, request: GateRequest, revision: int) -> None:
        """Waits until the policies' watch has reached the revision; its events are in the inbox by then."""
        if self._objects.policies_revision >= revision:
            self._inbox.put(partial(self._on_current, request))
        elif request in self._gate.waiting():
            self._loop.call_at(now() + _POLL_S, partial(self._on_newest, request, revision))

    def _on_current(self, request: GateRequest) -> None:
        request.is_current = True
        self._schedule()

    def _turn(self) -> None:
        self._is_scheduled = False
        if self._objects.are_synced and self._filter and not self._other_engine:
            try:
                file_problem = self._write_file()
                self._local.read_changes()
                self._apply(self._filter)
            except (KernelError, OSError) as error:
                self._fail(str(error))
                return
            self._failure, self._pending_since_s = file_problem, 0.0
            if file_problem:
                self._loop.call_at(now() + _RETRY_S, self._schedule)
            self._answer()
            self._set_metrics()
            if not gc.get_freeze_count():  # once: a full collection would take 0.1 s for each 30,000 pods
                gc.collect()
                gc.freeze()
        self._report_problems()

    def _write_file(self) -> str:
        """Writes the file `namespaces`; returns a problem, despite which the filter changes and ADDs are answered."""
        try:
            self._file.write(self._selection.policies)
        except OSError as error:
            problem = f"cannot write {table.NAMESPACES_FILE}: {error.strerror}"
            return f"{problem}: pods of namespaces that it does not list may start before their policies are in force"
        return ""

    def _apply(self, policy_filter: PolicyFilter) -> None:
        """Applies records and selection to the packet filter."""
        must_compare, self._is_applied = not self._is_applied, False
        self._take_records()
        table, changes = self._plan.update()
        is_unchanged = table is self._table and not changes
        if must_compare or not is_unchanged:
            with self._local.locked() as are_locked:
                if not are_locked:  # DEL has deleted or locked a record
                    self._take_records()
                    table, _ = self._plan.update()
                if are_locked and not must_compare:
                    policy_filter.apply(table, changes)
                elif policy_filter.repair(table) and are_locked and is_unchanged and table.verdicts:
                    text = "another program changed the packet filter of network policies: repaired"
                    self._log.write("warning", text)
        self._table, self._is_applied = table, True

    def _take_records(self) -> None:
        for name, pod in self._local.take_changes():
            if pod:
                self._selection.set_local(name, pod)
            else:
                self._selection.remove_local(name)

    def _fail(self, problem: str) -> None:
        self._failure = problem
        self._report_problems()
        self._loop.call_at(now() + _RETRY_S, self._schedule)

    def _answer(self) -> None:
        """Answers the ADDs whose pods have their policies in the packet filter."""
        for request in self._gate.waiting():
            pod = self._local.by_name.get(request.record)
            local = self._selection.local.get(request.record)
            # A pod whose object has been deleted stays isolated.
            is_known = pod and ((local and local.pod) or self._selection.is_deleted(pod.uid))
            is_decided = is_known or (pod and pod.namespace not in self._selection.policies)
            if is_decided and (request.is_current or not self._newest):
                self._gate.answer(request, self._file.generation)

    def _set_metrics(self) -> None:
        self._metrics.policies.set(sum(map(len, self._selection.policies.values())))
        pods = {(local.namespace, local.name) for local in self._selection.local.values() if local.policies}
        self._metrics.pods.set(len(pods))

    def _repeat(self, period_s: float, work: Callable[[], None]) -> None:
        self._loop.call_at(now() + period_s, partial(self._repeat, period_s, work))
        try:
            work()
        except (KernelError, OSError) as error:
            self._fail(str(error))

    def _check_node(self) -> None:
        """Looks for what keeps policies from applying, and reads the counters of dropped packets."""
        before = self._other_engine
        with nft.open_socket() as socket:
            self._other_engine = preconditions.find_other_engine(socket)
        self._filter = self._filter or PolicyFilter(check_established=self._check_established)
        if before and not self._other_engine:
            self._schedule()
        pods = self._local.by_name
        before_unguarded, self._unguarded = self._unguarded, preconditions.find_unguarded_ports(pods.values())
        self._node_problems = [
            self._ensure_gate(),
            preconditions.find_unfiltered_bridge(pods.values()),
            # ADD writes the record, then guards the port: only two looks find a fault.
            preconditions.describe_unguarded(before_unguarded & self._unguarded),
            preconditions.describe_damaged(self._local.damaged, pods),
        ]
        self._node_problems += [preconditions.find_missing_key(self._conf)] if self._conf else []
        self._note = self._find_unfiltered_pods()
        self._report_problems()
        self._read_drops(self._filter)

    def _ensure_gate(self) -> str:
        """Listens again if another program has deleted the socket; returns why that failed, or ""."""
        try:
            if not self._gate.is_reachable():
                self._gate.start()
        except OSError as error:
            return (
                f"cannot listen on {table.GATE_SOCKET}: {error.strerror}: pods of namespaces with policies do not start"
            )
        return ""

    def _check_base_chains(self) -> None:
        """Repairs the filter soon after another program has flushed the ruleset, such as firewalld when it restarts."""
        if self._is_applied and self._filter and not self._filter.is_complete():
            self._repair()

    def _compare(self) -> None:
        self._local.read_all()
        self._repair()

    def _repair(self) -> None:
        """Compares the whole filter with the kernel's, and replaces it if they differ."""
        self._is_applied = False
        self._turn()

    def _read_drops(self, policy_filter: PolicyFilter) -> None:
        before, self._drops = self._drops, policy_filter.list_drops() if self._is_applied else {}
        for chain, packets in self._drops.items():
            content = self._table.chains.get(chain)
            if content and (added := packets - before.get(chain, 0)) > 0:
                direction, namespace, policies = content.subject
                self._metrics.dropped.labels(namespace, direction, ", ".join(policies)).inc(added)

    def _report_problems(self) -> None:
        starting = "" if self._is_applied or self._other_engine else "starting"
        problems = (self._other_engine, self._failure, *self._node_problems, *self._objects.problems())
        self._problem = joined(problems) or starting
        self._report(self._problem, self._note)

    def _find_unfiltered_pods(self) -> str:
        """Returns a note about pods of this node without record in namespaces with policies, "" if there are none."""
        recorded = {(pod.namespace, pod.pod) for pod in self._local.by_name.values()}
        names = {
            f"{namespace}/{pod.name}"
            for namespace in self._selection.policies
            for pod in self._selection.pods_in(namespace)
            if pod.node == self._node and pod.can_have_policies and pod.addresses and pod.precedence  # not terminating
            if (namespace, pod.name) not in recorded
        }
        if not names:
            return ""
        pods = joined(sorted(names))
        return f"policies do not apply to pods without a record, as those that started without networkPolicy: {pods}"


def remove() -> None:
    """Deletes the packet filter, and the files for ADD; raises KernelError, OSError."""
    delete_filter()
    for path in (table.NAMESPACES_FILE, table.GATE_SOCKET):
        with suppress(FileNotFoundError):
            os.unlink(path)


def delete_filter() -> bool:
    """Deletes the packet filter; returns whether it was in force. Raises KernelError.

    The file of namespaces stays: if the network still has the key, ADDs of these namespaces fail, and say why.
    """
    if not os.path.isdir(table.DIRECTORY):
        return False  # neither an agent nor a pod of this boot had policies: nftables is not even opened
    try:
        policy_filter = PolicyFilter()
    except nft.UnavailableError:
        return False
    was_in_force = policy_filter.is_complete()
    policy_filter.delete()
    policy_filter.close()
    return was_in_force
