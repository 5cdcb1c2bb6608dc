"""A verb under ptrace(2): every system call that changes something, and a signal at exactly one of them.

strace can do the like, but counts in each process by itself: it cannot aim at a child, nor strike when a call has
taken effect.

One rule: a point is a process and the number of a changing call in it, so that it is the same in each run of a verb
from the same state. Linux on x86-64, 5.3 or later.
"""

from __future__ import annotations

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

GRACE_S = 5.0  # in which every process of a verb ends after its end, and the verb itself after SIGTERM

_CONT, _DETACH, _SYSCALL, _SEIZE, _INTERRUPT = 7, 17, 24, 0x4206, 0x4207  # linux/ptrace.h
_EVENT_MESSAGE, _SYSCALL_INFO = 0x4201, 0x420E
_TRACED = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x100000  # SYSGOOD, FORK, VFORK, CLONE, EXEC, EXITKILL
_FORKS, _EXEC, _STOPPED = (1, 2, 3), 4, 128
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_ENTRY = 1
_RESTARTS = range(2**64 - 516, 2**64 - 511)  # include/linux/errno.h: never seen by the process itself
_SUBREAPER = 36  # prctl(2)
_ANY = 0x40000000  # __WALL: also a process that is none of our children

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]


class Point(NamedTuple):
    """A moment: before or after the changing call `number` of `process`, 0 being the plugin, 1 its first child."""

    process: int
    number: int
    after: bool = False


@dataclass
class Run:
    """What a verb did under the tracer, as far as it came.

    `calls` are its changing calls: process, and the call as text. `struck` is the call at which the signal came. The
    `orphans` were running when the plugin had ended.
    """

    outcome: Outcome
    calls: list[tuple[int, str]]
    struck: str = ""
    took_s: float = 0.0
    orphans: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)  # those of them that stand still until `release`

    def points(self) -> list[Point]:
        """Returns before and after each of the calls; the last one is the end of the process, which has no after."""
        counts: dict[int, int] = {}
        found = []
        for process, text in self.calls:
            number = counts[process] = counts.get(process, 0) + 1
            found.append(Point(process, number))
            if not text.startswith(("exit_group", "execve")):
                found.append(Point(process, number, after=True))
        return found

    def release(self) -> None:
        """Lets the held orphans go on."""
        while self.held:
            with suppress(ProcessLookupError):
                _ptrace(_DETACH, self.held.pop(), 0)

    def await_orphans(self) -> None:
        """Waits for the end of what the plugin has left running; AssertionError when that does not end."""
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
    call: str = ""  # the changing call that it is in
    again: str = ""  # the call that the kernel has it make again, as if it had not been made
    running: bool = True


@contextmanager
def as_subreaper() -> Iterator[None]:
    """Has orphans become children of ours inside the block, as `Run.await_orphans` needs it."""
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
    """Runs one verb of a built plugin on `host`, and sends signal `number` at a point; then it is left alone.

    With `hold` the children of a plugin that was killed stand still, as ones do that get no processor.
    """
    path = binaries.directory() / plugin
    env = environment(command, CNI_PATH=str(binaries.directory()), **variables)
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(json.dumps(config).encode())
        stdin.seek(0)
        with host.entered():
            pid = _started(str(path), env, (stdin.fileno(), stdout.fileno(), stderr.fileno()))
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
    return Run(outcome, tracer.calls, tracer.struck, tracer.took_s, sorted(tracer.processes), tracer.held)


class _Tracer:
    """Follows a plugin and its children from stop to stop until the signal is sent; then it lets go of them all."""

    def __init__(self, pid: int, at: Point | None, number: signal.Signals, hold: bool) -> None:
        self.calls: list[tuple[int, str]] = []
        self.struck = ""
        self.took_s = 0.0
        self.status: int | None = None  # the plugin's
        self.processes = {pid: _Process(0)}  # that live
        self.held: list[int] = []
        self._pid, self._at, self._number, self._hold = pid, at, number, hold
        self._made = 1
        self._unknown: set[int] = set()  # children that stopped before their parent told of them

    def follow(self) -> None:
        """Traces until the signal is sent, or the plugin and all that it has started have ended."""
        while self.status is None or (self.processes and not self.struck):
            pid, status = os.waitpid(-1, _ANY)
            if os.WIFSTOPPED(status):
                self._stopped(pid, os.WSTOPSIG(status), status >> 16)
            else:
                self._ended(pid, status)

    def _stopped(self, pid: int, number: int, event: int) -> None:
        process = self.processes.get(pid)
        if process is None:
            self._unknown.add(pid)
            return
        process.running = False
        if number == _SYSCALL_STOP:
            if self._at_syscall(pid, process):
                return
        elif event in _FORKS:
            self._adopt(_event_message(pid))
        passed_on = 0 if event or number == _SYSCALL_STOP else number
        process.running = True
        _ptrace(_SYSCALL, pid, passed_on)

    def _adopt(self, child: int) -> None:
        self.processes[child] = _Process(self._made)
        self._made += 1
        if child in self._unknown:
            self._unknown.remove(child)
            _ptrace(_SYSCALL, child, 0)

    def _at_syscall(self, pid: int, process: _Process) -> bool:
        """Notes the call; tells whether this was the point, and the processes have been let go."""
        kind, number, args = _syscall(pid)
        if kind == _ENTRY:
            process.call = syscalls.change(pid, number, args)
            if not process.call or process.call == process.again:
                return False
            process.count += 1
            self.calls.append((process.index, process.call))
            return self._strike(pid, process, process.call, after=False)
        call, process.call = process.call, ""
        process.again = call if number in _RESTARTS else ""
        return bool(call) and not process.again and self._strike(pid, process, call, after=True)

    def _strike(self, pid: int, process: _Process, call: str, *, after: bool) -> bool:
        if self._at != (process.index, process.count, after):
            return False
        self.struck = call
        os.kill(pid, self._number)
        began = time.monotonic()
        if self._number == signal.SIGKILL:  # its parent learns of its end when we have
            self._ended(*os.waitpid(pid, _ANY))
        self._let_go()
        deadline = began + 12 * GRACE_S
        while self.status is None and time.monotonic() < deadline:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                self._ended(ended, status)
            else:
                time.sleep(0.001)
        assert self.status is not None, f"the plugin has not ended {12 * GRACE_S} s after {self._number.name}"
        self.took_s = time.monotonic() - began
        return True

    def _let_go(self) -> None:
        """Ends the tracing of all processes; those that run must be stopped for it.

        They come last, the youngest first: one that has made a child by vfork cannot be stopped before that goes on.
        """
        for pid in self._unknown:
            self.processes[pid] = _Process(self._made, running=False)
        for pid, process in sorted(self.processes.items(), key=lambda item: (item[1].running, -item[1].index)):
            with suppress(ProcessLookupError):
                passed_on = 0
                if process.running:
                    _ptrace(_INTERRUPT, pid, 0)
                    _, status = os.waitpid(pid, _ANY)
                    if not os.WIFSTOPPED(status):
                        self._ended(pid, status)
                        continue
                    if not status >> 16 and os.WSTOPSIG(status) != _SYSCALL_STOP:
                        passed_on = os.WSTOPSIG(status)
                    if status >> 16 in _FORKS:  # born this moment
                        self._release_child(_event_message(pid))
                if self._hold and self.status is not None and not passed_on:
                    self.held.append(pid)
                else:
                    _ptrace(_DETACH, pid, passed_on)
        self._unknown.clear()

    def _release_child(self, child: int) -> None:
        if child not in self.processes:
            self.processes[child] = _Process(self._made)
            os.waitpid(child, _ANY)
            _ptrace(_DETACH, child, 0)

    def _ended(self, pid: int, status: int) -> None:
        self.processes.pop(pid, None)
        if pid == self._pid:
            self.status = os.waitstatus_to_exitcode(status)


def _started(path: str, env: dict[str, str], streams: tuple[int, int, int]) -> int:
    """Starts a program that is traced from its first instruction on."""
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
    except ChildProcessError:  # not ours (yet)
        return not os.path.exists(f"/proc/{pid}")


def _status(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cmdline") as line, open(f"/proc/{pid}/stat") as stat:
        return f"{line.read()!r} {stat.read()}"
    return "gone"
