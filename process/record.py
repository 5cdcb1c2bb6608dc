"""What a verb changes, and how long its steps take, for who asked to be told: the log, and the operator's tool.

One rule: a change passes here, in words, where it is made: `if made("delete ..."): ...`; what may be refused is noted
when it was not. Without anybody who asked that costs a comparison. What is only planned is noted and not made: that is
how a tool tells what DEL and GC would take away. ADD reads back what it has made, so it cannot be planned, only tried
elsewhere.

The record is the process's, like its signals: a process serves one verb, and what makes a change should not have to be
handed the place where it is noted through every function above it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple


class Step(NamedTuple):
    """A part of a verb: what, and how many milliseconds it took, those of the steps inside it included."""

    what: str
    ms: float


@dataclass
class Record:
    """What has been noted: changes in their order ('set "veth3f2a" up'), steps in the order in which they ended."""

    dry_run: bool = False
    changes: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


_current: Record | None = None


@contextmanager
def recording(*, dry_run: bool = False) -> Iterator[Record]:
    """Notes what is changed inside the block; with `planned` nothing is changed, if all that would be asks `made`."""
    global _current  # noqa: PLW0603 - the module says why
    before = _current
    _current = Record(dry_run)
    try:
        yield _current
    finally:
        _current = before


def change(*what: str) -> bool:
    """Notes changes that are about to be made, or have been, and tells whether they are: not when they are planned."""
    if _current is None:
        return True
    _current.changes += what
    return not _current.dry_run


def is_recording() -> bool:
    """Tells whether anybody asked: where finding the words for a change takes time."""
    return _current is not None


def is_dry_run() -> bool:
    """Tells whether nothing is to be changed."""
    return _current is not None and _current.dry_run


def timed_step(what: str) -> AbstractContextManager[None]:
    """Notes how long the block takes."""
    return _NOT_TIMED if _current is None else _timed(what, _current)


_NOT_TIMED = nullcontext()


@contextmanager
def _timed(what: str, own: Record) -> Iterator[None]:
    start_ns = time.perf_counter_ns()
    try:
        yield
    finally:
        own.steps.append(Step(what, (time.perf_counter_ns() - start_ns) / 1e6))
