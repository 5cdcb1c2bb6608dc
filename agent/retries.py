"""Work of the agent that failed and is done again."""

from __future__ import annotations

from collections.abc import Callable

from process.loop import Loop, now

_RETRY_S = 10.0


class Retries:
    """The failed work that waits: each work once, however often it failed meanwhile."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: set[Callable[[], None]] = set()

    def schedule(self, work: Callable[[], None], delay_s: float = _RETRY_S) -> None:
        """Schedules work, unless it waits already."""
        if work in self._waiting:
            return
        self._waiting.add(work)

        def repeat() -> None:
            self._waiting.discard(work)
            work()

        self._loop.call_at(now() + delay_s, repeat)
