"""Signals: SIGTERM and SIGINT reach a verb where it waits, and nowhere else.

One rule: they are held back from the first instruction to the last, except inside `waiting()`. A change and its undo,
a fork, another namespace entered for a moment, the answer on stdout: none of it can be cut in half, and since all but
waiting takes a few milliseconds, a verb still ends at once.
"""

from __future__ import annotations

import signal

# The same as in signal, without making an enumeration's member of each number that comes back.
from _signal import pthread_sigmask  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

TERMINATION = (signal.SIGTERM, signal.SIGINT)


class Terminated(BaseException):
    """SIGTERM or SIGINT arrived; raised where the verb waits, so that its undo steps run."""


def block() -> None:
    """Holds the signals back in this process and makes them raise Terminated inside `waiting()`.

    Raises OSError when the process may not do that: a signal could then interrupt a change halfway.
    """
    pthread_sigmask(signal.SIG_BLOCK, TERMINATION)
    for number in TERMINATION:
        set_handler(number, _raise)


def unblocked() -> AbstractContextManager[None]:
    """Lets the signals arrive inside the block; one that came before arrives at its beginning."""
    return _Masked(signal.SIG_UNBLOCK)


def blocked() -> AbstractContextManager[None]:
    """Holds the signals back inside the block."""
    return _Masked(signal.SIG_BLOCK)


@contextmanager
def ignored() -> Iterator[None]:
    """Ignores the signals inside the block, also where it waits: what is being undone is undone to the end."""
    before = [signal.signal(number, signal.SIG_IGN) for number in TERMINATION]
    try:
        yield
    finally:
        for number, handler in zip(TERMINATION, before, strict=True):
            signal.signal(number, handler)


class _Masked:
    """Changes the signals held back for the time of a block, and then holds back those of before."""

    __slots__ = ("_before", "_how")

    def __init__(self, how: signal.Sigmasks) -> None:
        self._how = how

    def __enter__(self) -> None:
        self._before = pthread_sigmask(self._how, TERMINATION)

    def __exit__(self, *error: object) -> None:
        pthread_sigmask(signal.SIG_SETMASK, self._before)


def _raise(signum: int, frame: FrameType | None) -> None:
    """Makes the first signal unwind the undo steps; further ones are ignored."""
    for number in TERMINATION:
        signal.signal(number, signal.SIG_IGN)
    raise Terminated
