"""Visits every state that a model can reach, breadth first, and reports the shortest trace to a broken invariant."""

import gc
import time
from collections.abc import Collection
from typing import NamedTuple

from tests.block_model.canonical import canonical, tokens_in
from tests.block_model.invariants import INVARIANTS, is_recoverable
from tests.block_model.state import Model, State
from tests.block_model.world import steps

# States between two looks at the clock, which costs a millisecond on some machines.
BATCH = 1000


class Limits(NamedTuple):
    """The limits of a search: seconds of processor time, and states."""

    seconds: float = 1e9
    states: int = 10**9


NO_LIMITS = Limits()


class Result(NamedTuple):
    """The result of a search: the broken invariant with its trace, or "" and an empty trace.

    `depth` is the number of steps to which all states were visited. `is_complete` says that there are no more states,
    and `cut` counts those that were not continued because of the distance of their generations.
    """

    model: Model
    broken: str
    trace: tuple[str, ...]
    states: int
    depth: int
    is_complete: bool
    cut: int
    seconds: float

    def __str__(self) -> str:
        size = f"{self.model.machines} machines x {self.model.blocks} blocks, {self.model.restores} restores"
        what = f"{self.states} states, depth {self.depth}, {self.seconds:.1f} s"
        if self.broken:
            return f"{size}: {self.broken} is broken after {len(self.trace)} steps ({what})" + "".join(
                f"\n  {number}. {step}" for number, step in enumerate(self.trace, 1)
            )
        end = "all states" if self.is_complete else "not to the end"
        cut = f", {self.cut} beyond the distance of {self.model.generations} generations" if self.cut else ""
        return f"{size}: nothing broken in {what}, {end}{cut}"


def search(
    model: Model, limits: Limits = NO_LIMITS, invariants: Collection[str] = tuple(INVARIANTS), *, recovers: bool = False
) -> Result:
    """Returns the result of a search; with `recovers` each state is also checked for lost blocks (I7)."""
    gc.disable()  # the states have no cycles, and their number makes each collection slow
    try:
        return _search(model, limits, invariants, recovers=recovers)
    finally:
        gc.enable()


def _search(model: Model, limits: Limits, invariants: Collection[str], *, recovers: bool) -> Result:
    started = time.process_time()
    predicates = [(name, INVARIANTS[name]) for name in invariants]
    first = canonical(model, model.first)
    parents: dict[State, State | None] = {first: None}
    level, depth, cut = [first], 0, 0
    shared: dict[object, object] = {}
    recovered: dict[State, bool] = {}

    def result(broken: str = "", trace: tuple[str, ...] = (), *, is_complete: bool = False) -> Result:
        seconds = time.process_time() - started
        return Result(model, broken, trace, len(parents), depth, is_complete, cut, seconds)

    while level:
        next_level: list[State] = []
        for number, state in enumerate(level):
            if number % BATCH == 0 and (time.process_time() - started > limits.seconds or len(parents) > limits.states):
                return result()
            if recovers and not _recovers(model, state, recovered):
                return result("I7", _trace(model, parents, state))
            for what, next_state in steps(model, state):
                for name, holds in predicates:
                    if not holds(model, state, what, next_state):
                        return result(name, _trace(model, parents, state, name))
                after = canonical(model, next_state)
                if after in parents:
                    continue
                if _is_beyond(model, after):
                    cut += 1
                    continue
                after = State._make(shared.setdefault(part, part) for part in after)  # equal parts once in memory
                parents[after] = state
                next_level.append(after)
        level = next_level
        depth += bool(level)
    return result(is_complete=True)


def _recovers(model: Model, state: State, recovered: dict[State, bool]) -> bool:
    """Returns whether nothing is lost; late requests, proofs and a backup do not change the answer."""
    key = state._replace(late=frozenset(), proofs=frozenset(), restores=0, raises=0, backup=None)
    if key not in recovered:
        recovered[key] = is_recoverable(model, state)
    return recovered[key]


def _is_beyond(model: Model, state: State) -> bool:
    return any(
        token.generation > model.generations for block in range(model.blocks) for token in tokens_in(state, block)
    )


def _trace(model: Model, parents: dict[State, State | None], last: State, broken: str = "") -> tuple[str, ...]:
    """Returns the descriptions of the steps to a state, and to the next, which breaks an invariant.

    A state in `parents` may have other names than the one before it, so the steps are repeated without renaming.
    """
    path = [last]
    while (before := parents[path[-1]]) is not None:
        path.append(before)
    path.reverse()
    state, trace = model.first, []
    for target in path[1:]:
        what, state = next((what, after) for what, after in steps(model, state) if canonical(model, after) == target)
        trace.append(what)
    if broken:
        holds = INVARIANTS[broken]
        trace.append(next(what for what, after in steps(model, state) if not holds(model, state, what, after)))
    return tuple(trace)
