"""Runs commands in parallel, each after those that it depends on.

One rule: when the runner ends, however that happens, so has every process that it started.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from process.signals import blocked, ignored

REPORT_OPTION = "--report="  # of a command that runs tests
_STOP_S = 10  # after SIGTERM; then SIGKILL
_SILENT_S = 3600  # a part without output for so long is killed: a test that passed may keep its process from ending
_TICK_S = 1.0


@dataclass(frozen=True)
class Part:
    """A command and the names of the parts that must succeed (`needs`) or end (`after`) before it starts.

    Names of parts outside this run are ignored. `root` is the root file system of an isolated part; `group` is a name
    for several parts.
    """

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    isolated: bool = True
    root: str = "build/root"
    group: str = ""

    @property
    def has_report(self) -> bool:
        """Whether it runs tests and writes their outcomes to a file."""
        return any(word.startswith(REPORT_OPTION) for word in self.command)


@dataclass(frozen=True)
class Result:
    """The outcome of a part: its exit status, None if a part that it needs failed; `log` has its output."""

    part: Part
    status: int | None
    seconds: float
    log: Path

    @property
    def succeeded(self) -> bool:
        """Whether the part ran and exited with 0."""
        return self.status == 0


@dataclass(frozen=True)
class _Running:
    part: Part
    process: subprocess.Popen[bytes]
    started: float
    pidfd: int
    log: Path


class Schedule:
    """The parts that wait, run and have ended; `start` starts a part's process with its output in a file."""

    def __init__(self, parts: Sequence[Part], at_once: int, start: Callable[[Part, Path], subprocess.Popen[bytes]]):
        self._waiting = list(parts)
        self._at_once = at_once
        self._start = start
        self._running: dict[int, _Running] = {}
        self._ended: dict[str, Result] = {}
        self._names = {part.name for part in parts}

    @property
    def running(self) -> list[str]:
        """The names of the parts that run."""
        return [one.part.name for one in self._running.values()]

    def results(self, logs: Path) -> Iterator[Result | None]:
        """Runs all parts and yields each one's result when it ends, and None once a second in between."""
        try:
            while self._waiting or self._running:
                yield from self._skipped(logs)
                self._start_ready(logs)
                yield from self._wait()
        finally:
            self._stop()

    def _skipped(self, logs: Path) -> Iterator[Result]:
        """Yields the parts that cannot run; one such part may be needed by another."""
        while part := next((part for part in self._waiting if self._cannot_run(part)), None):
            self._waiting.remove(part)
            yield self._end(Result(part, None, 0, logs / f"{part.name}.log"))

    def _start_ready(self, logs: Path) -> None:
        for part in [part for part in self._waiting if self._is_ready(part)][: self._at_once - len(self._running)]:
            self._waiting.remove(part)
            log = logs / f"{part.name}.log"
            with blocked():  # after a signal, _stop() must know the process
                process = self._start(part, log)
                self._running[process.pid] = _Running(part, process, time.monotonic(), os.pidfd_open(process.pid), log)

    def _wait(self) -> Iterator[Result | None]:
        ready = select.select([one.pidfd for one in self._running.values()], [], [], _TICK_S)[0]
        if not ready:
            yield None
        for one in self._running.values():
            if time.time() - one.log.stat().st_mtime > _SILENT_S:
                _kill(one, signal.SIGKILL)
        for one in [one for one in self._running.values() if one.pidfd in ready]:
            _kill(one, signal.SIGKILL)  # what it left in its process group
            status = one.process.wait()
            self._forget(one)
            yield self._end(Result(one.part, status, time.monotonic() - one.started, one.log))

    def _stop(self) -> None:
        """Ends the parts that still run, with all processes of their process groups."""
        with ignored():
            for one in self._running.values():
                _kill(one, signal.SIGTERM)
            end = time.monotonic() + _STOP_S
            for one in list(self._running.values()):
                select.select([one.pidfd], [], [], max(0, end - time.monotonic()))
                _kill(one, signal.SIGKILL)
                one.process.wait()
                self._forget(one)

    def _forget(self, one: _Running) -> None:
        os.close(one.pidfd)
        del self._running[one.process.pid]

    def _end(self, result: Result) -> Result:
        self._ended[result.part.name] = result
        return result

    def _cannot_run(self, part: Part) -> bool:
        return any(name in self._ended and not self._ended[name].succeeded for name in part.needs)

    def _is_ready(self, part: Part) -> bool:
        return all(name in self._ended for name in {*part.needs, *part.after} & self._names)


def _kill(one: _Running, number: signal.Signals) -> None:
    """Sends a signal to the process group of a part, which exists at least until the part is waited for."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(one.process.pid, number)
