"""Runs programs beside the event loop: `podwire install` and `podwire gc`, which take from 0.1 s to minutes.

The agent imports no module of the tool, because its commands work on the whole process.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from process.loop import Loop, Timer, now

_OUTPUT_BYTES = 64 << 10


class Ended(NamedTuple):
    """A program that ended: its exit status, negative for a signal, and its output, stdout and stderr together."""

    status: int
    output: str


class Program:
    """A program that was started; calls `done` once it has ended. It is killed after `limit_s` seconds.

    `stdin` is its standard input, a file that it can also open again as /dev/stdin.
    """

    def __init__(
        self, loop: Loop, arguments: Sequence[str], done: Callable[[Ended], None], limit_s: float, stdin: str = ""
    ) -> None:
        self._loop, self._done = loop, done
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the program has ended
        descriptor = _memory_file(stdin)
        actions = [
            (os.POSIX_SPAWN_DUP2, descriptor, 0),
            (os.POSIX_SPAWN_DUP2, self._output.fileno(), 1),
            (os.POSIX_SPAWN_DUP2, self._output.fileno(), 2),
        ]
        try:
            # The agent blocks signals; the program must not inherit that.
            self._pid = os.posix_spawn(arguments[0], tuple(arguments), os.environ, file_actions=actions, setsigmask=())
        except OSError:
            self._output.close()
            raise
        finally:
            os.close(descriptor)
        self._pidfd = os.pidfd_open(self._pid)
        self._timer: Timer = loop.call_at(now() + limit_s, self._kill)
        loop.watch(self._pidfd, self._reap)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _reap(self) -> None:
        self._timer.cancel()
        self._loop.unwatch(self._pidfd)
        os.close(self._pidfd)
        _, status = os.waitpid(self._pid, 0)
        with self._output:
            self._output.seek(0)
            text = self._output.read(_OUTPUT_BYTES).decode("utf-8", "replace").strip()
        self._done(Ended(os.waitstatus_to_exitcode(status), text))


def _memory_file(text: str) -> int:
    """Returns the descriptor of a file in memory, at its beginning: a program that is killed leaves no file behind."""
    descriptor = os.memfd_create("stdin")
    os.pwrite(descriptor, text.encode(), 0)
    return descriptor
