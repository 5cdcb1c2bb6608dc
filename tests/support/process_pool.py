"""Many plugins at a time from one process: what each pod's runtime does is a generator, and the crowd runs them all.

One rule: a generator yields one invocation and is sent what came of it, so that the verbs of a pod are in order, and
those of different pods are not.
"""

from __future__ import annotations

import json
import os
import random
import select
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.invocation import Outcome, environment

LIMIT_S = 60.0  # a verb that takes longer hangs

_STDIO = (0, 1, 2)


@dataclass(frozen=True)
class Call:
    """One invocation: the plugin's file, its verb, its configuration, the CNI_* variables that it takes.

    With `killed_after_s` it gets SIGKILL so long after its start, unless it has ended by then.
    """

    program: Path
    command: str
    config: Mapping[str, Any]
    variables: Mapping[str, str | None]
    killed_after_s: float | None = None


Job = Generator[Call, Outcome, None]


@dataclass
class _Running:
    work: Job
    pid: int
    files: tuple[int, int, int]
    deadline: float
    killed: bool


class ProcessPool:
    """Runs up to `at_once` works side by side, each of which runs one process at a time.

    `processes` counts what was run. The processes start in the current namespaces, with an environment of their own.
    """

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.processes = 0
        self._running: dict[int, _Running] = {}
        self._poll = select.poll()

    def run(self, next_work: Callable[[], Job | None]) -> None:
        """Runs what `next_work` returns, to the end; None means that there is nothing for now, or no more."""
        while True:
            while len(self._running) < self.at_once and (work := next_work()) is not None:
                if (call := next(work, None)) is not None:
                    self._start(work, call)
                self._kill_due()
            if not self._running:
                return
            self._wait()

    def _start(self, work: Job, call: Call) -> None:
        files = tuple(os.memfd_create(name) for name in ("stdin", "stdout", "stderr"))
        os.pwrite(files[0], json.dumps(call.config).encode(), 0)
        pid = os.posix_spawn(
            call.program,
            [str(call.program)],
            environment(call.command, **call.variables),
            file_actions=[(os.POSIX_SPAWN_DUP2, file, number) for file, number in zip(files, _STDIO, strict=True)],
        )
        self.processes += 1
        descriptor = os.pidfd_open(pid)
        self._poll.register(descriptor, select.POLLIN)
        wait_s = LIMIT_S if call.killed_after_s is None else call.killed_after_s
        killed = call.killed_after_s is not None
        self._running[descriptor] = _Running(work, pid, files, time.monotonic() + wait_s, killed)

    def _wait(self) -> None:
        """Waits for the end of a process, or until one is to be killed."""
        first = min(running.deadline for running in self._running.values())
        ended = self._poll.poll(max(0.0, first - time.monotonic()) * 1000)
        for descriptor, _ in ended:
            self._ended(descriptor)
        self._kill_due()

    def _kill_due(self) -> None:
        now = time.monotonic()
        for running in self._running.values():
            if running.deadline <= now:
                os.kill(running.pid, 9)  # not reaped yet, so the number is its own
                assert running.killed, f"process {running.pid} hangs"
                running.deadline = now + LIMIT_S

    def _ended(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        os.close(descriptor)
        running = self._running.pop(descriptor)
        _, status = os.waitpid(running.pid, 0)
        stdout, stderr = (_content(file) for file in running.files[1:])
        for file in running.files:
            os.close(file)
        outcome = Outcome(os.waitstatus_to_exitcode(status), stdout, stderr.decode(errors="replace"))
        try:
            call = running.work.send(outcome)
        except StopIteration:
            return
        self._start(running.work, call)


def random_kill_delay_s(chance: random.Random) -> float:
    """Returns a random moment to kill at, 0.1 to 200 ms: a verb takes milliseconds, among many many times as long."""
    earliest_s, spread = 0.0001, 2000
    return float(earliest_s * spread ** chance.random())


def _content(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)
