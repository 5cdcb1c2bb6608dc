"""Starts a plugin as a runtime does, and measures its time and memory.

One rule: the measured time is the time that a runtime waits, from the start until both output pipes are at their end
and the process is reaped. Writing stdin and checking the outcome are not included.

podwire's DEL leaves a child process that waits for the kernel (kernel/link_deletion.py). The benchmark adopts such
orphans (PR_SET_CHILD_SUBREAPER) and waits for them before the next measurement.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.invocation import Outcome

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_PIPE_BYTES = 65536  # the capacity of a pipe
_SETSID = "/usr/bin/setsid"
_WRITE_LIMIT_S = 30


class Invocation(NamedTuple):
    """A call of a plugin: the file, its environment, its stdin."""

    program: str
    env: Mapping[str, str]
    stdin: bytes = b""


class Run(NamedTuple):
    """The measurement of a call: `ms` as the runtime sees it."""

    outcome: Outcome
    ms: float


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose parent has ended; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a child subreaper")


def run(call: Invocation) -> Run:
    """Runs one call to its end; its orphans may still run."""
    stdin, stdin_writer = os.pipe()
    out, out_writer = os.pipe()
    err, err_writer = os.pipe()
    try:
        if len(call.stdin) > _PIPE_BYTES:
            fcntl.fcntl(stdin_writer, fcntl.F_SETPIPE_SZ, len(call.stdin))  # stdin is written before the plugin starts
        os.write(stdin_writer, call.stdin)
        os.close(stdin_writer)
        started = time.perf_counter_ns()
        pid = _spawn(call.program, [call.program], call.env, stdin, out_writer, err_writer)
        os.close(out_writer)
        os.close(err_writer)
        with _killed_on_error(pid):
            stdout = _read(out)
            stderr = _read(err)
            _, status = os.waitpid(pid, 0)
        ended = time.perf_counter_ns()
    finally:
        for descriptor in (stdin, out, err):
            os.close(descriptor)
    outcome = Outcome(os.waitstatus_to_exitcode(status), stdout, stderr.decode(errors="replace"))
    return Run(outcome, (ended - started) / 1e6)


def wait_all() -> None:
    """Waits until every child and every orphan has ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def peak_kib(call: Invocation) -> int:
    """Runs one call and returns its peak of resident memory, in KiB.

    A process that posix_spawn started inherits its parent's peak, also across exec, so the benchmark's own would be
    counted. `setsid --fork` is small, starts the plugin as a forked child and ends; this process adopts the plugin.
    """
    stdin = _input(call)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.waitpid(_spawn(_SETSID, [_SETSID, "--fork", call.program], call.env, stdin, null, null), 0)
    finally:
        os.close(stdin)
        os.close(null)
    peaks, failures = [], []
    with contextlib.suppress(ChildProcessError):
        while True:
            _, status, usage = os.wait4(-1, 0)
            peaks.append(usage.ru_maxrss)
            failures += [status] * (status != 0)
    if failures:
        raise RuntimeError(f"{call.program} {call.env.get('CNI_COMMAND')} failed while its memory was measured")
    return int(max(peaks))


def shared_kib(calls: Sequence[Invocation]) -> float:
    """Returns the mean proportional set size of processes that run at the same time, in KiB: PSS divides shared pages.

    Their output is a full pipe, so each is measured when it writes its result, with all that it has used until then.
    Then they are killed. Raises RuntimeError if one does not write.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(_PIPE_BYTES))
    os.set_blocking(writer, True)
    pids = [start(call, writer, writer) for call in calls]
    try:
        for pid in pids:
            _wait_for_write(pid)
        return statistics.mean(_proportional_kib(pid) for pid in pids)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_all()
        os.close(reader)
        os.close(writer)


def _wait_for_write(pid: int) -> None:
    """Waits until a thread of the process waits in a write to a pipe."""
    end = time.monotonic() + _WRITE_LIMIT_S
    while not any("pipe_write" in file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/wchan")):
        if time.monotonic() > end:
            raise RuntimeError(f"process {pid} wrote no result within {_WRITE_LIMIT_S} s")
        time.sleep(0.01)


def _proportional_kib(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(rollup.partition("\nPss:")[2].split()[0])


def start(call: Invocation, stdout: int, stderr: int) -> int:
    """Starts one call that writes to files `stdout` and `stderr`; returns the process ID, which the caller reaps."""
    stdin = _input(call)
    try:
        return _spawn(call.program, [call.program], call.env, stdin, stdout, stderr)
    finally:
        os.close(stdin)


def _input(call: Invocation) -> int:
    stdin = os.memfd_create("stdin")
    os.write(stdin, call.stdin)
    os.lseek(stdin, 0, os.SEEK_SET)
    return stdin


def _spawn(program: str, argv: list[str], env: Mapping[str, str], stdin: int, stdout: int, stderr: int) -> int:
    actions = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate((stdin, stdout, stderr))]
    # Python ignores SIGPIPE; a runtime does not.
    return os.posix_spawn(program, argv, env, file_actions=actions, setsigmask=(), setsigdef=(signal.SIGPIPE,))


def _read(descriptor: int) -> bytes:
    chunks = []
    while chunk := os.read(descriptor, _PIPE_BYTES):
        chunks.append(chunk)
    return b"".join(chunks)


@contextlib.contextmanager
def _killed_on_error(pid: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it was reaped already
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise
