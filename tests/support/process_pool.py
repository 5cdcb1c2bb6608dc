"""Runs many plugins in parallel from one process: each pod's runtime is a generator, and the pool runs all of them.

One rule: a generator yields one invocation and receives its outcome, so that the verbs of one pod are sequential and
the verbs of different pods are not.
"""

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

LIMIT_S = 60.0  # a verb that takes longer has hung

_STDIO = (0, 1, 2)


@dataclass(frozen=True)
class Call:
    """One invocation: the plugin's file, verb, configuration and CNI_* variables.

    `killed_after_s`: when to send SIGKILL, if the process still runs then.
    """

    program: Path
    command: str
    config: Mapping[str, Any]
    variables: Mapping[str, str | None]
    killed_after_s: float | None = None


Job = Generator[Call, Outcome, None]


@dataclass
class _Running:
    job: Job
    pid: int
    files: tuple[int, int, int]
    deadline: float
    killed: bool


class ProcessPool:
    """Runs up to `at_once` jobs in parallel; each job runs one process after another.

    `processes` counts the processes. They start in the current namespaces.
    """

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.processes = 0
        self._running: dict[int, _Running] = {}
        self._poll = select.poll()

    def run(self, next_job: Callable[[], Job | None]) -> None:
        """Runs the jobs that `next_job` returns until none runs; None: there is no job now."""
        while True:
            while len(self._running) < self.at_once and (job := next_job()) is not None:
                if (call := next(job, None)) is not None:
                    self._start(job, call)
                self._kill_due()
            if not self._running:
                return
            self._wait()

    def _start(self, job: Job, call: Call) -> None:
        files = os.memfd_create("stdin"), os.memfd_create("stdout"), os.memfd_create("stderr")
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
        self._running[descriptor] = _Running(job, pid, files, time.monotonic() + wait_s, killed)

    def _wait(self) -> None:
        """Waits until a process ends or must be killed."""
        first = min(running.deadline for running in self._running.values())
        ended = self._poll.poll(max(0.0, first - time.monotonic()) * 1000)
        for descriptor, _ in ended:
            self._ended(descriptor)
        self._kill_due()

    def _kill_due(self) -> None:
        now = time.monotonic()
        for running in self._running.values():
            if running.deadline <= now:
                os.kill(running.pid, 9)  # not reaped yet, so the PID is still this process's
                assert running.killed, f"process {running.pid} hangs"
                running.deadline = now + LIMIT_S

    def _ended(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        os.close(descriptor)
        running = self._running.pop(descriptor)
        _, status = os.waitpid(running.pid, 0)
        stdout, stderr = (os.pread(file, os.fstat(file).st_size, 0) for file in running.files[1:])
        for file in running.files:
            os.close(file)
        outcome = Outcome(os.waitstatus_to_exitcode(status), stdout, stderr.decode(errors="replace"))
        try:
            call = running.job.send(outcome)
        except StopIteration:
            return
        self._start(running.job, call)


def random_kill_delay_s(chance: random.Random) -> float:
    """Returns a random delay of 0.1 to 200 ms: a verb alone takes milliseconds, in a loaded pool many times as long."""
    earliest_s, spread = 0.0001, 2000
    return float(earliest_s * spread ** chance.random())
