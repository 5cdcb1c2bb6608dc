"""The record of a verb's changes and of the duration of its steps, for the log and the `podwire` tool.

Code that makes a change records it in the same place: `if allows_change("delete ..."): ...`. A change that may fail is
recorded after it has succeeded, by `note_change`. When recording is off this costs one comparison. In a dry run changes
are recorded and not carried out: this shows what DEL and GC would remove. ADD reads back what it has created, so it has
no dry run; it can only be tried in other namespaces.

The record is global to the process, like its signals: a process serves one verb, and passing the record through every
function down to the change would be noise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple


class Step(NamedTuple):
    """A part of a verb and its duration in milliseconds, nested steps included."""

    what: str
    ms: float


@dataclass
class VerbRecord:
    """The recorded changes in their order ('set "veth3f2a" up'), and steps in the order in which they ended."""

    dry_run: bool = False
    changes: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


_current: VerbRecord | None = None


@contextmanager
def recording(*, dry_run: bool = False) -> Iterator[VerbRecord]:
    """Records the changes of the block; in a dry run `allows_change` returns False, and nothing is changed."""
    global _current  # noqa: PLW0603 - the module docstring says why
    before = _current
    _current = VerbRecord(dry_run)
    try:
        yield _current
    finally:
        _current = before


def allows_change(*descriptions: str) -> bool:
    """Records changes that the caller is about to make; returns whether to make them: False in a dry run."""
    if _current is None:
        return True
    _current.changes += descriptions
    return not _current.dry_run


def note_change(*descriptions: str) -> None:
    """Records changes that the caller has made, or would make if this were no dry run."""
    if _current is not None:
        _current.changes += descriptions


def is_recording() -> bool:
    """Returns whether changes are recorded; call it before computing a costly description."""
    return _current is not None


def is_dry_run() -> bool:
    """Returns whether nothing may be changed."""
    return _current is not None and _current.dry_run


def timed_step(what: str) -> AbstractContextManager[None]:
    """Records how long the block takes."""
    return _NOT_TIMED if _current is None else _timed(what, _current)


_NOT_TIMED = nullcontext()


@contextmanager
def _timed(what: str, record: VerbRecord) -> Iterator[None]:
    start_ns = time.perf_counter_ns()
    try:
        yield
    finally:
        record.steps.append(Step(what, (time.perf_counter_ns() - start_ns) / 1e6))
