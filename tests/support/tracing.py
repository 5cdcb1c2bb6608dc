"""Runs a verb under ptrace(2): lists the system calls that change something, and sends a signal at exactly one of them.

strace counts calls in each process separately: it can neither select a child nor send the signal after a call.

One rule: a point is a process and the number of a changing call in it, so that it is the same in every run of a verb
from the same state. Linux on x86-64, 5.3 or later.
"""

import ctypes
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.support import binaries, syscalls
from tests.support.invocation import Outcome, environment
from tests.support.namespaces import Namespace

GRACE_S = 20.0  # for the children of a verb to end after it, and for a verb to end after SIGTERM

_CONT, _DETACH, _SYSCALL, _SEIZE, _INTERRUPT = 7, 17, 24, 0x4206, 0x4207  # linux/ptrace.h
_EVENT_MESSAGE, _SYSCALL_INFO = 0x4201, 0x420E
_TRACED = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x100000  # SYSGOOD, FORK, VFORK, CLONE, EXEC, EXITKILL
_FORKS, _EXEC, _STOPPED = (1, 2, 3), 4, 128
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_ENTRY = 1
_RESTARTS = range(2**64 - 516, 2**64 - 511)  # include/linux/errno.h: the process itself never sees these
_SUBREAPER = 36  # prctl(2)
_ANY = 0x40000000  # __WALL: also processes that are not this process's children

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]


class Point(NamedTuple):
    """A moment: before or after the changing call `number` of `process`, 0 being the plugin, 1 its first child."""

    process: int
    number: int
    after: bool = False


@dataclass
class Run:
    """What a verb did under the tracer, until the signal or the end.

    `calls` are its changing calls: process, and the call as text. `signalled_call` is the call at which the signal was
    sent. The `orphans` were still running after the plugin's end.
    """

    outcome: Outcome
    calls: list[tuple[int, str]]
    signalled_call: str = ""
    duration_s: float = 0.0
    orphans: list[int] = field(default_factory=list)
    stopped_orphans: list[int] = field(default_factory=list)  # the orphans that are stopped until `release`

    def points(self) -> list[Point]:
        """Returns the points before and after each call; after the end of the process there is none."""
        counts: dict[int, int] = {}
        points = []
        for process, text in self.calls:
            number = counts[process] = counts.get(process, 0) + 1
            points.append(Point(process, number))
            if not text.startswith(("exit_group", "execve")):
                points.append(Point(process, number, after=True))
        return points

    def release(self) -> None:
        """Lets the stopped orphans continue."""
        while self.stopped_orphans:
            with suppress(ProcessLookupError):
                _ptrace(_DETACH, self.stopped_orphans.pop(), 0)

    def await_orphans(self) -> None:
        """Waits for the end of all orphans; AssertionError when one does not end."""
        self.release()
        deadline = time.monotonic() + GRACE_S
        for pid in self.orphans:
            while not _is_reaped(pid):
                assert time.monotonic() < deadline, f"process {pid} outlives the verb: {_status(pid)}"
                time.sleep(0.002)


@dataclass
class _Process:
    index: int
    count: int = 0
    call: str = ""  # the changing call in progress
    restarted_call: str = ""  # an interrupted call that the kernel restarts
    running: bool = True


@contextmanager
def as_subreaper() -> Iterator[None]:
    """Makes orphans children of this process inside the block, as `Run.await_orphans` requires."""
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _libc.prctl(_SUBREAPER, 0, 0, 0, 0)


def run_traced(
    host: Namespace,
    plugin: str,
    command: str,
    config: Mapping[str, Any],
    variables: Mapping[str, str | None],
    at: Point | None = None,
    number: signal.Signals = signal.SIGKILL,
    *,
    hold: bool = False,
) -> Run:
    """Runs one verb of a built plugin on `host`, sends signal `number` at a point, and stops tracing.

    With `hold` the children of a killed plugin are stopped, like children that the kernel does not schedule.
    """
    path = binaries.directory() / plugin
    env = environment(command, CNI_PATH=str(binaries.directory()), **variables)
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(json.dumps(config).encode())
        stdin.seek(0)
        with host.entered():
            pid = _start(str(path), env, (stdin.fileno(), stdout.fileno(), stderr.fileno()))
        tracer = _Tracer(pid, at, number, hold)
        try:
            tracer.follow()
        except BaseException:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            raise
        stdout.seek(0)
        stderr.seek(0)
        outcome = Outcome(tracer.status or 0, stdout.read(), stderr.read().decode(errors="replace"))
    return Run(
        outcome,
        tracer.calls,
        tracer.signalled_call,
        tracer.duration_s,
        sorted(tracer.processes),
        tracer.stopped_orphans,
    )


class _Tracer:
    """Traces a plugin and its children from stop to stop until the signal is sent; then detaches from all of them."""

    def __init__(self, pid: int, at: Point | None, number: signal.Signals, hold: bool) -> None:
        self.calls: list[tuple[int, str]] = []
        self.signalled_call = ""
        self.duration_s = 0.0
        self.status: int | None = None  # the plugin's
        self.processes = {pid: _Process(0)}  # that run
        self.stopped_orphans: list[int] = []
        self._pid, self._at, self._number, self._hold = pid, at, number, hold
        self._process_count = 1
        self._unknown: set[int] = set()  # children that stopped before their parent's fork event

    def follow(self) -> None:
        """Traces until the signal is sent, or the plugin and all that it has started have ended."""
        while self.status is None or (self.processes and not self.signalled_call):
            pid, status = os.waitpid(-1, _ANY)
            if os.WIFSTOPPED(status):
                self._handle_stop(pid, os.WSTOPSIG(status), status >> 16)
            else:
                self._handle_end(pid, status)

    def _handle_stop(self, pid: int, number: int, event: int) -> None:
        process = self.processes.get(pid)
        if process is None:
            self._unknown.add(pid)
            return
        process.running = False
        if number == _SYSCALL_STOP:
            if self._handle_syscall(pid, process):
                return
        elif event in _FORKS:
            self._add_child(_event_message(pid))
        forwarded_signal = 0 if event or number == _SYSCALL_STOP else number
        process.running = True
        _ptrace(_SYSCALL, pid, forwarded_signal)

    def _add_child(self, child: int) -> None:
        self.processes[child] = _Process(self._process_count)
        self._process_count += 1
        if child in self._unknown:
            self._unknown.remove(child)
            _ptrace(_SYSCALL, child, 0)

    def _handle_syscall(self, pid: int, process: _Process) -> bool:
        """Records the call; returns whether this was the point, after which no process is traced."""
        kind, number, args = _syscall(pid)
        if kind == _ENTRY:
            process.call = syscalls.change(pid, number, args)
            if not process.call or process.call == process.restarted_call:
                return False
            process.count += 1
            self.calls.append((process.index, process.call))
            return self._signal_at_point(pid, process, process.call, after=False)
        call, process.call = process.call, ""
        process.restarted_call = call if number in _RESTARTS else ""
        return bool(call) and not process.restarted_call and self._signal_at_point(pid, process, call, after=True)

    def _signal_at_point(self, pid: int, process: _Process, call: str, *, after: bool) -> bool:
        if self._at != (process.index, process.count, after):
            return False
        self.signalled_call = call
        os.kill(pid, self._number)
        start = time.monotonic()
        if self._number == signal.SIGKILL:  # the parent is notified only after the tracer has waited
            self._handle_end(*os.waitpid(pid, _ANY))
        self._detach_all()
        deadline = start + 3 * GRACE_S
        while self.status is None and time.monotonic() < deadline:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                self._handle_end(ended, status)
            else:
                time.sleep(0.001)
        assert self.status is not None, f"the plugin has not ended {3 * GRACE_S} s after {self._number.name}"
        self.duration_s = time.monotonic() - start
        return True

    def _detach_all(self) -> None:
        """Ends the tracing of all processes; running processes must be stopped for that.

        These are last, the youngest first: a parent in vfork cannot be stopped until its child continues.
        """
        for pid in self._unknown:
            self.processes[pid] = _Process(self._process_count, running=False)
        for pid, process in sorted(self.processes.items(), key=lambda item: (item[1].running, -item[1].index)):
            with suppress(ProcessLookupError):
                forwarded_signal = 0
                if process.running:
                    _ptrace(_INTERRUPT, pid, 0)
                    _, status = os.waitpid(pid, _ANY)
                    if not os.WIFSTOPPED(status):
                        self._handle_end(pid, status)
                        continue
                    if not status >> 16 and os.WSTOPSIG(status) != _SYSCALL_STOP:
                        forwarded_signal = os.WSTOPSIG(status)
                    if status >> 16 in _FORKS:  # a child was created just now
                        self._release_child(_event_message(pid))
                if self._hold and self.status is not None and not forwarded_signal:
                    self.stopped_orphans.append(pid)
                else:
                    _ptrace(_DETACH, pid, forwarded_signal)
        self._unknown.clear()

    def _release_child(self, child: int) -> None:
        if child not in self.processes:
            self.processes[child] = _Process(self._process_count)
            os.waitpid(child, _ANY)
            _ptrace(_DETACH, child, 0)

    def _handle_end(self, pid: int, status: int) -> None:
        self.processes.pop(pid, None)
        if pid == self._pid:
            self.status = os.waitstatus_to_exitcode(status)


def _start(path: str, env: dict[str, str], streams: tuple[int, int, int]) -> int:
    """Starts a program and traces it from its first instruction."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.read(readable, 1)
            for number, fd in enumerate(streams):
                os.dup2(fd, number)
            os.execve(path, [path], env)
        finally:
            os._exit(127)
    _ptrace(_SEIZE, pid, _TRACED)
    os.write(writable, b"1")
    os.close(readable)
    os.close(writable)
    return pid


def _ptrace(request: int, pid: int, data: int) -> None:
    if _libc.ptrace(request, pid, None, data) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _syscall(pid: int) -> tuple[int, int, tuple[int, ...]]:
    buffer = ctypes.create_string_buffer(88)
    _libc.ptrace(_SYSCALL_INFO, pid, 88, ctypes.addressof(buffer))
    words = memoryview(buffer).cast("B").cast("Q")
    return int(words[0]) & 0xFF, int(words[3]), tuple(words[4:10])


def _event_message(pid: int) -> int:
    message = ctypes.c_ulong()
    _libc.ptrace(_EVENT_MESSAGE, pid, None, ctypes.addressof(message))
    return int(message.value)


def _is_reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # not (yet) a child of this process
        return not os.path.exists(f"/proc/{pid}")


def _status(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cmdline") as line, open(f"/proc/{pid}/stat") as stat:
        return f"{line.read()!r} {stat.read()}"
    return "ended"
