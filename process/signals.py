"""Signals: SIGTERM and SIGINT interrupt a verb only while it waits.

Both signals are blocked from the first instruction to the last, except inside `unblocked()`, which encloses
each wait. So no signal comes between a change and its undo, during a fork, while another namespace is entered or in
the middle of the answer on stdout. Everything but waiting takes a few milliseconds, so a verb still ends at once.
"""

from __future__ import annotations

import signal

# The functions of `signal` without the conversion of each number to an enumeration member, for speed.
from _signal import pthread_sigmask  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

TERMINATION = (signal.SIGTERM, signal.SIGINT)


class Terminated(BaseException):
    """SIGTERM or SIGINT arrived; raised where the verb waits, so that its undo steps run."""


def block() -> None:
    """Blocks SIGTERM and SIGINT in this process; inside `unblocked()` they raise Terminated.

    Raises OSError when a seccomp filter forbids it: a signal could then interrupt a change halfway.
    """
    pthread_sigmask(signal.SIG_BLOCK, TERMINATION)
    for number in TERMINATION:
        set_handler(number, _raise)


def unblocked() -> AbstractContextManager[None]:
    """Delivers signals inside the block; a pending one is delivered at its beginning."""
    return _Masked(signal.SIG_UNBLOCK)


def blocked() -> AbstractContextManager[None]:
    """Blocks the signals inside the block."""
    return _Masked(signal.SIG_BLOCK)


@contextmanager
def ignored() -> Iterator[None]:
    """Ignores the signals inside the block, even while it waits, so that a rollback runs to its end."""
    before = [signal.signal(number, signal.SIG_IGN) for number in TERMINATION]
    try:
        yield
    finally:
        for number, handler in zip(TERMINATION, before, strict=True):
            signal.signal(number, handler)


class _Masked:
    """Changes the signal mask for a block, then restores it."""

    __slots__ = ("_before", "_how")

    def __init__(self, how: signal.Sigmasks) -> None:
        self._how = how

    def __enter__(self) -> None:
        self._before = pthread_sigmask(self._how, TERMINATION)

    def __exit__(self, *error: object) -> None:
        pthread_sigmask(signal.SIG_SETMASK, self._before)


def _raise(signum: int, frame: FrameType | None) -> None:
    """Raises Terminated for the first signal, so that the undo steps run; ignores further ones."""
    for number in TERMINATION:
        signal.signal(number, signal.SIG_IGN)
    raise Terminated
