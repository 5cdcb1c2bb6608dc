"""A model of the protocol between ADD, DEL and podwire-agent for network policies, and a search of all its states.

One node, two addresses, two pods: P is in a namespace that may get a policy, Q in one that never has any. A policy, the
agent, the machine and the plugins act in any order; an address is allocated again as soon as it is free, which is the
worst case. What ADD waits for and which answer counts is decided by the product's code (attachment.policy.gate).

A search without a rule of RULES must find a harm: that is how each rule is shown to matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from attachment.policy import gate
from attachment.policy.gate import Namespaces

RULES = {
    "record-always": "ADD leaves a record in every namespace: the agent finds it when a policy comes",
    "file-first": "the agent writes the file of namespaces before it looks at the records",
    "file-of-boot": "the file counts only in the boot that it was written in; without one every pod waits",
    "wait": "ADD of a pod whose namespace is in the file returns only after the agent's answer",
    "answer-last": "the agent answers after its transaction",
    "generation": "an answer that follows an older file than ADD has read does not count",
    "lock": "the agent's look at a record and its transaction are one step for DEL",
    "filter-first": "DEL takes the pod's address out of the filter before the address is free",
}
_NAMES = "PQ"
_ADDRESSES = (0, 1)
_NAMESPACES = {"P": "shop", "Q": "other"}


class File(NamedTuple):
    """The agent's file: its generation, and whether P's namespace is in it."""

    generation: int
    lists_p: bool

    def parsed(self) -> Namespaces:
        """Returns the file as ADD reads it."""
        return Namespaces(self.generation, False, frozenset({"shop"} if self.lists_p else ()))


class Pod(NamedTuple):
    """A pod: `awaited` is the generation that ADD waits for, None if it does not; `answered` that of the answer."""

    phase: str = "desired"
    address: int = -1
    has_record: bool = False
    awaited: int | None = None
    answered: int | None = None
    must_be_isolated: bool = False  # ADD has read that its namespace has a policy
    must_be_seen: bool = False  # ADD has read no file of this boot


class Read(NamedTuple):
    """What the agent has read of a record and not committed yet; only without the lock."""

    pod: str
    address: int
    file: File


class State(NamedTuple):
    """All parts; `filter` has the pod behind whose chain each address is, "" for none."""

    has_policy: bool = False
    agent_runs: bool = False
    known_policy: bool | None = None  # to the agent
    file: File | None = None
    is_of_boot: bool = True
    read: Read | None = None
    filter: tuple[str, str] = ("", "")
    P: Pod = Pod()
    Q: Pod = Pod()

    def pod(self, name: str) -> Pod:
        """Returns a pod by its name."""
        return self.P if name == "P" else self.Q

    def with_pod(self, name: str, pod: Pod) -> State:
        """Returns the state with another pod of that name."""
        return self._replace(P=pod) if name == "P" else self._replace(Q=pod)

    def with_filter(self, address: int, owner: str) -> State:
        """Returns the state with another owner of the chain behind an address."""
        first, second = self.filter
        return self._replace(filter=(owner, second) if address == 0 else (first, owner))


class Model:
    """The protocol without one rule, or whole."""

    def __init__(self, without: str = "") -> None:
        self._without = without

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yields each possible step and the state after it."""
        policy = "the policy is deleted" if state.has_policy else "a policy is created"
        yield policy, state._replace(has_policy=not state.has_policy)
        yield "reboot", State(has_policy=state.has_policy, file=state.file, is_of_boot=False)
        if state.agent_runs:
            yield "the agent is killed", state._replace(agent_runs=False, known_policy=None, read=None)
            yield from self.agent_steps(state)
        else:
            yield "the agent starts", state._replace(agent_runs=True)
        for name in _NAMES:
            yield from self._plugin_steps(state, name)

    def agent_steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yields what a running agent does; nothing when all its work is done."""
        if state.known_policy != state.has_policy:
            yield "the agent sees the policies", state._replace(known_policy=state.has_policy)
        if state.known_policy is None:
            return
        is_current = state.is_of_boot and state.file is not None and state.file.lists_p == state.known_policy
        if not is_current:
            generation = state.file.generation + 1 if state.file and state.is_of_boot else 1
            file = File(generation, state.known_policy)
            yield "the agent writes the file", state._replace(file=file, is_of_boot=True)
        file = state.file if is_current and state.file else File(0, state.known_policy)
        if state.read:
            yield f"the agent commits {state.read.pod}", self._commit(state, state.read)
        elif is_current or self._without == "file-first":
            for name in _NAMES:
                yield from self._pod_steps(state, name, file)
            for address in _ADDRESSES:
                owner = state.filter[address]
                if owner and not (state.pod(owner).has_record and state.pod(owner).address == address):
                    yield f"the agent sweeps address {address}", state.with_filter(address, "")

    def _pod_steps(self, state: State, name: str, file: File) -> Iterator[tuple[str, State]]:
        pod = state.pod(name)
        is_closed = name == "P" and file.lists_p
        is_answered = pod.answered == (0 if pod.phase == "running" else file.generation)
        if not pod.has_record or ((state.filter[pod.address] == name) == is_closed and is_answered):
            return
        read = Read(name, pod.address, file)
        if self._without == "lock":
            yield f"the agent reads {name}", state._replace(read=read)
        elif self._without == "answer-last":
            answered = state.with_pod(name, pod._replace(answered=file.generation))
            yield f"the agent answers {name}", answered._replace(read=read)
        else:
            yield f"the agent commits {name}", self._commit(state, read)

    @staticmethod
    def _commit(state: State, read: Read) -> State:
        state = state._replace(read=None)
        if read.pod == "P" and read.file.lists_p:
            state = state.with_filter(read.address, read.pod)
        elif state.filter[read.address] == read.pod:
            state = state.with_filter(read.address, "")
        pod = state.pod(read.pod)
        if pod.has_record and pod.address == read.address:
            state = state.with_pod(read.pod, pod._replace(answered=read.file.generation))
        return state

    def _plugin_steps(self, state: State, name: str) -> Iterator[tuple[str, State]]:
        pod = state.pod(name)
        if pod.phase == "desired":
            for free in _ADDRESSES:
                if all(state.pod(other).address != free for other in _NAMES):
                    adding = pod._replace(phase="adding", address=free)
                    yield f"ADD of {name} gets address {free}", state.with_pod(name, adding)
        elif pod.phase == "adding":
            yield (
                f"ADD of {name} writes the record",
                state.with_pod(name, pod._replace(phase="recorded", has_record=True)),
            )
        elif pod.phase == "recorded":
            yield f"ADD of {name} reads the file", state.with_pod(name, self._after_file(state, name, pod))
        elif pod.phase == "waiting":
            if self._has_answer(pod):
                yield f"{name} runs", state.with_pod(name, pod._replace(phase="running"))
            yield f"ADD of {name} is undone", self._removed(state, name)
        elif pod.phase == "running":
            yield f"DEL of {name} begins", state.with_pod(name, pod._replace(phase="deleting", has_record=False))
        else:
            yield f"DEL of {name} ends", self._removed(state, name, is_del=True)

    def _after_file(self, state: State, name: str, pod: Pod) -> Pod:
        is_valid = state.file is not None and (state.is_of_boot or self._without == "file-of-boot")
        known = state.file.parsed() if state.file and is_valid else None
        awaited = gate.awaited_generation(known, _NAMESPACES[name])
        return pod._replace(
            phase="waiting",
            awaited=None if self._without == "wait" else awaited,
            has_record=self._without != "record-always" or awaited is not None,
            must_be_isolated=known is not None and awaited is not None,
            must_be_seen=known is None,
        )

    def _has_answer(self, pod: Pod) -> bool:
        if pod.awaited is None:
            return True
        if pod.answered is None:
            return False
        return self._without == "generation" or gate.is_accepted(pod.answered, pod.awaited)

    def _removed(self, state: State, name: str, *, is_del: bool = False) -> State:
        pod = state.pod(name)
        cleans = not is_del or self._without != "filter-first"
        if cleans and state.filter[pod.address] == name:
            state = state.with_filter(pod.address, "")
        return state.with_pod(name, Pod())


class Result(NamedTuple):
    """The number of states that were visited, the first harm, and the steps to it."""

    states: int
    harm: str = ""
    trace: tuple[str, ...] = ()


def search(model: Model) -> Result:
    """Visits all states, breadth first, until one has a harm; then checks that each can reach the desired state."""
    start = State()
    before: dict[State, tuple[State, str] | None] = {start: None}
    after: dict[State, list[State]] = {}
    queue = deque([start])
    canonical = cache(_canonical)  # most states are reached in several ways
    while queue:
        state = queue.popleft()
        if harm := _harm(model, state):
            return Result(len(before), harm, _trace(before, state))
        for step, raw in model.steps(state):
            following = canonical(raw)
            after.setdefault(following, []).append(state)
            if following not in before:
                before[following] = state, step
                queue.append(following)
    good = {state for state in before if _is_desired(state)}
    queue.extend(good)
    while queue:
        for state in after.get(queue.popleft(), ()):
            if state not in good:
                good.add(state)
                queue.append(state)
    dead_end = next((state for state in before if state not in good), None)
    if dead_end:
        return Result(len(before), "a dead end", _trace(before, dead_end))
    return Result(len(before))


def _harm(model: Model, state: State) -> str:
    pod = state.P
    if pod.phase == "running":
        is_open = state.filter[pod.address] != "P"
        if is_open and pod.must_be_isolated and state.known_policy is not False:
            return "P runs open, though ADD has read that its namespace has a policy"
        if is_open and state.has_policy and state.agent_runs and not any(model.agent_steps(state)):
            return "P runs open, and the agent has nothing to do"
        if pod.answered is None and (pod.must_be_seen or not state.is_of_boot):
            return "P runs, though the agent has not seen it since the boot"
    for name in _NAMES:
        pod = state.pod(name)
        if pod.phase == "running" and state.filter[pod.address] not in ("", name):
            return f"{name} runs behind another pod's chain"
    return ""


def _is_desired(state: State) -> bool:
    both_run = state.P.phase == state.Q.phase == "running"
    return both_run and (not state.has_policy or state.filter[state.P.address] == "P")


def _canonical(state: State) -> State:
    """Returns the state with small generations of the same order, and without what decides nothing any more."""
    if state.P.address == 1 or (state.P.address < 0 and state.Q.address == 1):  # the addresses differ by nothing else
        state = _exchanged(state)
    pods = [_reduced(state, state.pod(name)) for name in _NAMES]
    used = {one for pod in pods for one in (pod.awaited, pod.answered) if one}
    used |= {one.generation for one in (state.file, state.read and state.read.file) if one}
    rank = dict(zip([None, 0, *sorted(used)], [None, *range(len(used) + 1)], strict=True))

    def file(of: File) -> File:
        return File(rank[of.generation] or 0, of.lists_p)

    pods = [
        pod._replace(awaited=rank[pod.awaited], answered=rank[pod.answered]) if pod.awaited or pod.answered else pod
        for pod in pods
    ]
    read = state.read and state.read._replace(file=file(state.read.file))
    return state._replace(file=state.file and file(state.file), read=read, P=pods[0], Q=pods[1])


def _exchanged(state: State) -> State:
    """Returns the state with each address in the place of the other."""
    pods = [pod if pod.address < 0 else pod._replace(address=1 - pod.address) for pod in (state.P, state.Q)]
    read = state.read and state.read._replace(address=1 - state.read.address)
    return state._replace(filter=state.filter[::-1], read=read, P=pods[0], Q=pods[1])


def _reduced(state: State, pod: Pod) -> Pod:
    """Returns a pod without what decides nothing any more: generations after ADD, isolation without a policy."""
    if pod.must_be_isolated and state.file is not None and not state.file.lists_p:
        pod = pod._replace(must_be_isolated=False)
    if pod.phase not in ("running", "deleting"):
        return pod
    return pod._replace(awaited=None, answered=None if pod.answered is None else 0)


def _trace(before: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps = []
    while origin := before[state]:
        state, step = origin
        steps.append(step)
    return tuple(reversed(steps))
