"""Whether the API server, or the store of pools, answers.

One rule: the time since the last answer decides, because a server that is stopped causes no failure for long.
"""

from __future__ import annotations

from collections.abc import Callable

from process.loop import Loop, now

_GRACE_S = 60.0  # a server that restarts does not make the node unready
_SILENCE_S = 30.0  # then the watch is opened again: only an answer shows that a quiet server works
_CHECK_S = 5.0


class ApiContact:
    """The time of the last answer to a list or a watch. `report` gets the problem every few seconds, "" for none."""

    def __init__(self, loop: Loop, report: Callable[[str], None]) -> None:
        self._loop, self._report = loop, report
        self._last_s, self._error = now(), ""
        self.on_silence: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Starts the periodic checks."""
        self._loop.call_at(now() + _CHECK_S, self._check)

    def note_answer(self) -> None:
        """Stores that the server has answered; from any thread. A refusal is no answer."""
        self._last_s, self._error = now(), ""

    def note_failure(self, error: str) -> None:
        """Stores why the server has not answered."""
        self._error = error

    def _check(self) -> None:
        self._loop.call_at(now() + _CHECK_S, self._check)
        silence_s = now() - self._last_s
        if silence_s >= _SILENCE_S:
            self.on_silence()
        error = self._error or "the API server, or the store of pools, has not answered for a minute"
        self._report(error if silence_s >= _GRACE_S else "")
