"""The manager of this node's blocks: claims them from the store and writes them into the networks' grants files.

It runs in a thread of its own and makes one request at a time. No pod waits for it, and it makes no request for a pod.

One rule: it may crash, stop or lose an answer at any moment. So after every failure whose effect is unknown it reads
the files and the store again, and block_protocol makes every decision.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from agent.api_errors import ApiError
from agent.pools.block_requests import RequestFailed
from agent.pools.identity import NodeIdentity
from agent.pools.membership import Membership
from agent.pools.memory import Busy, Memory, NodeFacts
from agent.pools.network_blocks import NetworkBlocks, NetworkOptions, list_networks
from agent.pools.node_report import ManagerStatus
from agent.pools.ownership import Ownership
from agent.pools.planning import Planning
from agent.pools.sticky import StickyPlanning
from agent.pools.store import NodeEntry, Store
from agent.pools.supply import PoolUsage
from cni.address import Network
from cni.errors import CniError

POLL_S = 0.5  # three stat calls for each network: a burst of pods is answered within this time
_BUSY_S = 0.01  # an ADD holds the lock for a millisecond
_FIRST_WAIT_S, _LAST_WAIT_S = 0.5, 60.0
_OUTAGE_S = 30.0  # after so long without contact the grants are compared with the store again
_RESTORE_S = 120.0  # after so long without contact the store may have been restored: its position is compared
_SPACE_S = 600.0  # between reads of the space, in case its watch missed a change
_PROBLEM_S = 60.0  # between two changes of `problem` in the grants files, which only people read

Value = TypeVar("Value")


class Reporter(Protocol):
    """Receives the manager's reports, in the manager's thread; each only when its value has changed."""

    def problems(self, texts: tuple[str, ...]) -> None:
        """Gets the problems that keep this node from claiming blocks."""

    def usage(self, pools: Mapping[str, PoolUsage]) -> None:
        """Gets the numbers of each pool on this node."""

    def event(self, text: str) -> None:
        """Gets a message for the administrator: a lost block, with the pods that have its addresses."""


class Clocks(NamedTuple):
    """The clocks and the random number of a manager. `wall` is for texts only."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    random: Callable[[], float] = random.random


_CLOCKS = Clocks()


class Manager:
    """Manages the blocks of a node. Call `run` in a thread, or `step` again and again.

    The other public methods may be called from any thread.
    """

    def __init__(
        self,
        store: Store,
        identity: NodeIdentity,
        networks: tuple[NetworkOptions, ...],
        report: Reporter,
        facts: NodeFacts,
        clocks: Clocks = _CLOCKS,
        delete_routes: Callable[[Network], None] = lambda block: None,
    ) -> None:
        self._store, self._identity, self._options, self._report = store, identity, networks, report
        self._clocks, self._delete_routes = clocks, delete_routes
        self._pods: Mapping[str, str] | None = None
        self._pods_problem = ""
        self._facts = facts
        self._wake = threading.Event()
        self._news: set[str] = set()
        self._failures, self._not_before_s = 0, 0.0
        self._contact_s = self._space_s = self._written_s = clocks.monotonic()
        self._written_problem = ""
        self._reported: dict[str, object] = {}
        self._is_loaded = False  # whether `_load` has created the memory and the steps

    # From any thread.

    def set_facts(self, facts: NodeFacts) -> None:
        """Changes the facts for this node's entry, and the UID of its Node object."""
        self._facts = facts
        self.wake()

    def set_pods(self, pods: Mapping[str, str]) -> None:
        """Changes which pods this node has, by name, each with the key of its sticky address, "" for an invalid one."""
        self._pods = dict(pods)
        self.wake()

    def pods_failed(self, problem: str) -> None:
        """Stores why the pods of this node are not known, "" if they are."""
        self._pods_problem = problem
        self.wake()

    def space_changed(self) -> None:
        """Notes that the space may have changed."""
        self._news.add("space")
        self.wake()

    def entry_changed(self, entry: NodeEntry | None = None) -> None:
        """Notes that this node's entry was changed: if not by this agent, the node may have been declared dead."""
        known = self._memory.node_entry if self._is_loaded else None
        if known is None or entry is None or known.value != entry:
            self._news.add("entry")
            self.wake()

    def others_changed(self) -> None:
        """Notes that another node, for which this one may wait, has registered or was fenced."""
        self._news.add("others")
        self.wake()

    def status(self) -> ManagerStatus:
        """Returns the last contact with the store, the problems, and whether a restore was noticed, for the tool."""
        problems = self._reported.get("problems", ())
        memory = self._memory if self._is_loaded else None
        contact = memory.contact if memory else 0  # seconds since 1970
        return ManagerStatus(
            contact_s=max(0.0, self._clocks.wall() - contact) if contact else None,
            problems=tuple(map(str, problems)) if isinstance(problems, tuple) else (),
            is_restored=memory.is_restored if memory else False,
        )

    def wake(self) -> None:
        """Lets the next step begin now."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Makes steps until `stop` is set; call `wake` after setting it."""
        while not stop.is_set():
            self._wake.clear()
            self._wake.wait(self.step())

    # The loop.

    def step(self) -> float:
        """Makes at most one request; returns how many seconds to wait before the next step."""
        try:
            if not self._is_loaded or any(network.is_changed_elsewhere() for network in self._memory.networks):
                self._load()
            self._note_news()
            wait_s = self._not_before_s - self._clocks.monotonic()
            if wait_s > 0:
                return min(wait_s, POLL_S)
            has_worked = self._work()
            if not has_worked:  # a series of failures ends when no step is due, not with the first success
                self._failures, self._memory.problem = 0, ""
            self._write_problem()
            self._report_all()
            return 0.0 if has_worked else POLL_S
        except Busy:
            return _BUSY_S
        except (ApiError, RequestFailed) as error:
            return self._on_failure(str(error))
        except (OSError, CniError) as error:
            # The file may have the old or the new content.
            self._is_loaded = False
            return self._on_failure(f"cannot use the grants files: {error}")

    def _load(self) -> None:
        networks = [NetworkBlocks(options, self._identity) for options in list_networks(self._options)]
        self._memory = Memory(self._store, self._identity, networks, self._facts, self._clocks.wall)
        monotonic = self._clocks.monotonic
        self._membership = Membership(self._memory, monotonic)
        self._memory.pods = self._pods
        is_published, event = self._membership.is_published, self._report.event
        self._ownership = Ownership(self._memory, is_published, event, monotonic, self._delete_routes)
        self._planning, self._sticky = Planning(self._memory, monotonic), StickyPlanning(self._memory, monotonic)
        membership, ownership = self._membership, self._ownership
        # The steps in the protocol's order: a later step depends on the results of the earlier ones. A store that was
        # restored from a backup is only read. The flag of a step: whether its work counts as contact with the store.
        self._reading_steps = (
            (membership.read_space, True),  # the epoch and the pools
            (self._planning.refresh, False),
            (membership.read_entry, True),
        )
        self._changing_steps = (
            (ownership.verify, True),  # each grant is as in the store, or is reasserted in a new epoch
            (ownership.list_blocks_of_node, True),
            (membership.register, True),  # after all grants are those of this epoch
            (membership.read_entries, True),  # no claim before all nodes are of this epoch
            (ownership.claim, True),
            (ownership.recheck_epoch, False),  # after a claim: no grant before the epoch was read again
            (membership.publish, True),  # other nodes have a route before a block is granted, none after its return
            (ownership.grant, False),
            (ownership.give_back, True),
            (self._sticky.release, False),
            (self._planning.revoke, False),
            (self._planning.write_intents, False),
            (self._sticky.write_intents, True),
        )
        self._identity = self._identity._replace(is_new=False)  # from now on the store may know the node ID
        self._is_loaded = True

    def _work(self) -> bool:
        """Makes the first step that is due, in the protocol's order; returns whether one was."""
        memory = self._memory
        space = memory.space
        steps = self._reading_steps if memory.is_restored else (*self._reading_steps, *self._changing_steps)
        for step, is_contact in steps:
            if step():
                if memory.space != space:
                    self._planning.forget()
                    self._sticky.forget()
                if is_contact:
                    self._on_contact()
                return True
        return False

    def _note_news(self) -> None:
        """Handles the notes of other threads."""
        memory, now_s = self._memory, self._clocks.monotonic()
        memory.pods = self._pods
        facts = self._facts
        if facts != memory.facts:
            memory.facts = facts
            instance = self._identity.instance(facts.uid)
            if instance != memory.agent.instance:
                memory.agent = memory.agent._replace(instance=instance, may_claim=False)
        news = {self._news.pop() for _ in range(len(self._news))}
        if "space" in news or now_s - self._space_s > _SPACE_S * (1 + self._clocks.random()):
            memory.space_is_due = True
            self._space_s = now_s
        if "space" in news and memory.space is None:
            self._not_before_s = 0.0  # reads the first pools at once, not after the delay of the last failure
        if "entry" in news:
            memory.node_entry = None
        if "others" in news:
            self._membership.read_entries_again()

    def _on_contact(self) -> None:
        """Notes that the store answered; after an outage lets everything be read again that others may have changed."""
        memory, now_s = self._memory, self._clocks.monotonic()
        outage_s = now_s - self._contact_s if self._failures else 0.0
        if outage_s > _OUTAGE_S:
            memory.space_is_due = True
            memory.node_entry = None
            memory.position_is_checked = memory.position_is_checked and outage_s < _RESTORE_S
            memory.mark_unverified()
        self._contact_s = now_s
        memory.contact = int(self._clocks.wall())

    def _on_failure(self, problem: str) -> float:
        wait_s = min(_LAST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(self._failures, 10))
        wait_s *= 0.5 + self._clocks.random()
        self._failures += 1
        self._not_before_s = self._clocks.monotonic() + wait_s
        if self._is_loaded:
            self._memory.problem = problem
            try:
                self._write_problem()
            except (OSError, CniError) as error:
                self._is_loaded = False
                problem = f"{problem}; cannot use the grants files: {error}"
        self._report_all(problem)
        return min(wait_s, POLL_S)

    def _write_problem(self) -> None:
        """Writes into the files why the store is not reached, or that it is again; rarely, as only people read it."""
        memory, now_s = self._memory, self._clocks.monotonic()
        if memory.problem == self._written_problem or now_s - self._written_s < _PROBLEM_S:
            return
        self._written_problem, self._written_s = memory.problem, now_s
        for network in memory.networks:
            if network.is_of_this_boot:
                network.save(network.grants._replace(problem=memory.problem, contact=memory.contact))

    def _report_all(self, failure: str = "") -> None:
        if not self._is_loaded:  # else the memory has the failure
            self._report_change("problems", (failure,), self._report.problems)
            return
        memory = self._memory
        problems = {**self._membership.problems, **self._ownership.problems, **self._planning.problems}
        problems["pods"] = self._pods_problem
        texts = tuple(filter(None, (memory.problem, *(problems[key] for key in sorted(problems)))))
        self._report_change("problems", texts, self._report.problems)
        self._report_change("usage", self._planning.usage(), self._report.usage)

    def _report_change(self, name: str, value: Value, report: Callable[[Value], None]) -> None:
        if name not in self._reported or self._reported[name] != value:
            self._reported[name] = value
            report(value)
