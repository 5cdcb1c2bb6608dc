"""What a verb changes, and how long its steps take, for who asked to be told: the log, and the operator's tool.

One rule: a change passes here, in words, right before it is made: `if made("delete ..."): ...`. Without anybody who
asked that costs a comparison. What is only planned is noted and not made: that is how a tool tells what DEL and GC
would take away. ADD reads back what it has made, so it cannot be planned, only tried elsewhere.

The record is the process's, like its signals: a process serves one verb, and what makes a change should not have to be
handed the place where it is noted through every function above it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple


class Step(NamedTuple):
    """A part of a verb: what, and how many milliseconds it took, those of the steps inside it included."""

    what: str
    ms: float


@dataclass
class Record:
    """What has been noted: changes in their order ('set "veth3f2a" up'), steps in the order in which they ended."""

    planned: bool = False
    changes: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


_current: Record | None = None


@contextmanager
def recorded(*, planned: bool = False) -> Iterator[Record]:
    """Notes what is changed inside the block; with `planned` nothing is changed, if all that would be asks `made`."""
    global _current  # noqa: PLW0603 - the module says why
    before = _current
    _current = Record(planned)
    try:
        yield _current
    finally:
        _current = before


def made(what: str) -> bool:
    """Notes a change that is about to be made, and tells whether it is to be: not when it is only planned."""
    if _current is None:
        return True
    _current.changes.append(what)
    return not _current.planned


def is_planned() -> bool:
    """Tells whether nothing is to be changed."""
    return _current is not None and _current.planned


@contextmanager
def step(what: str) -> Iterator[None]:
    """Notes how long the block takes."""
    if _current is None:
        yield
        return
    start_ns = time.perf_counter_ns()
    try:
        yield
    finally:
        _current.steps.append(Step(what, (time.perf_counter_ns() - start_ns) / 1e6))
