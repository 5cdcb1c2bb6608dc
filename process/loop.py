"""An event loop for a long-running program: one thread that waits for descriptors and times.

Callbacks do not block. An exception of a callback is logged, and the loop continues: a mistake in the work for one
object must not end the program. SIGTERM and SIGINT raise Terminated out of `run`, only while it waits.
"""

from __future__ import annotations

import heapq
import select
import sys
import time
from collections.abc import Callable

from process.signals import unblocked
from process.stderr import one_line

Callback = Callable[[], None]
# epoll_wait(2) does not count the time in which the machine sleeps: a lease that expired meanwhile is noticed then.
_MAX_WAIT_S = 30.0
_CLEAN_MIN = 64  # timers; when their number has doubled, the cancelled ones are removed


def now() -> float:
    """Returns CLOCK_BOOTTIME in seconds: the time since the boot, which includes the time that the machine slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Timer:
    """A callback at the time `when`; `cancel` prevents it."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callback) -> None:
        self.when = when
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Prevents the callback."""
        self.callback = None


class Loop:
    """Waits for descriptors (epoll) and times, and runs their callbacks.

    `failures` counts the descriptors that are no longer watched because their callback raised an exception.
    """

    def __init__(self) -> None:
        self.failures = 0
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = 0
        self._clean_at = _CLEAN_MIN

    def watch(self, descriptor: int, callback: Callback, *, writable: bool = False) -> None:
        """Runs `callback` whenever the descriptor is readable or, with `writable`, can be written; replaces another."""
        events = select.EPOLLIN | (select.EPOLLOUT if writable else 0)
        if descriptor in self._callbacks:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def unwatch(self, descriptor: int) -> None:
        """Stops watching; call it before the descriptor is closed."""
        if self._callbacks.pop(descriptor, None):
            self._epoll.unregister(descriptor)

    def call_at(self, when: float, callback: Callback) -> Timer:
        """Runs `callback` once at `when` (CLOCK_BOOTTIME), or soon after."""
        if len(self._timers) >= self._clean_at:  # those of the renewals of deleted pods would stay for half a lease
            self._timers = [item for item in self._timers if item[2].callback is not None]
            heapq.heapify(self._timers)
            self._clean_at = max(_CLEAN_MIN, 2 * len(self._timers))
        timer = Timer(when, callback)
        self._count += 1  # orders timers of the same time
        heapq.heappush(self._timers, (when, self._count, timer))
        return timer

    def run(self) -> None:
        """Runs callbacks until SIGTERM or SIGINT; raises Terminated then."""
        while True:
            self._run_timers()
            for descriptor, _ in self._wait():
                callback = self._callbacks.get(descriptor)  # an earlier callback may have closed it
                if callback is not None and not _run(callback):
                    self.unwatch(descriptor)  # it would be called again at once
                    self.failures += 1

    def _wait(self) -> list[tuple[int, int]]:
        timeout_s = min(_MAX_WAIT_S, max(0.0, self._timers[0][0] - now())) if self._timers else _MAX_WAIT_S
        with unblocked():
            return self._epoll.poll(timeout_s)

    def _run_timers(self) -> None:
        while self._timers and (self._timers[0][2].callback is None or self._timers[0][0] <= now()):
            timer = heapq.heappop(self._timers)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                _run(callback)


def _run(callback: Callback) -> bool:
    """Runs a callback and returns whether it raised no exception; logs an exception with its place."""
    try:
        callback()
    except Exception as error:
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        at = f" in {place.tb_frame.f_code.co_name}, line {place.tb_lineno}" if place else ""
        text = f"internal error, please report it: {type(error).__name__}: {error}{at}"
        print(one_line(text), file=sys.stderr, flush=True)
        return False
    return True
