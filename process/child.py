"""Runs other programs to their end, several in parallel if needed.

`run` ends in limited time, and no program started here outlives it. It waits neither for processes that a
program has started nor for pipes that they hold open. `run` kills a program together with its process group, since
the program that hangs may have been started by a script.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from process.signals import TERMINATION, blocked, unblocked
from process.values import dataclass, field

STDOUT_BYTES = 64 << 20  # more is an error
STDERR_BYTES = 1 << 20  # more is read and dropped
# Below the kubelet's limits: 2 minutes for a DEL, and 4 for an ADD, which rolls back by a DEL when it fails.
LIMIT_S = 100.0

_GRACE_S = 1.0  # from SIGTERM to SIGKILL
_KILLED_S = 5.0  # after SIGKILL, which does not end a process that waits for a disk or a file server
_CHUNK_BYTES = 65536
_PIPE_CHUNKS = 16  # what a pipe holds at most, unless a process with CAP_SYS_RESOURCE enlarged it
# This process ignores SIGPIPE and blocks SIGTERM; a program starts with the defaults, as from a shell.
_DEFAULTS = (signal.SIGPIPE, *TERMINATION)

# Starts a program: arguments, environment ("NAME=value"), the descriptors for 0, 1 and 2 (-1: inherited), the signals
# reset to their default actions; no signal is blocked in it. Returns the ID of the process, which leads a process
# group of its own; raises OSError.
Spawn = Callable[[list[bytes], list[bytes], tuple[int, int, int], tuple[int, ...]], int]


@dataclass(frozen=True)
class ChildCommand:
    """A program to run: `argv`, whose first word is its path, and its whole environment.

    It inherits stderr unless `capture_stderr`.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    stdin: bytes = field(default=b"", repr=False)
    capture_stderr: bool = False


class Outcome(NamedTuple):
    """The outcome of a program: its exit status (negative: the signal that ended it) and its output."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def ending(self) -> str:
        """The exit status or signal as text: "exit status 3", "signal 9"."""
        return f"signal {-self.status}" if self.status < 0 else f"exit status {self.status}"


def posix_spawn(argv: list[bytes], env: list[bytes], streams: tuple[int, int, int], defaults: tuple[int, ...]) -> int:
    """Starts a program as `Spawn` describes; it goes on running if this process is killed."""
    actions = [(os.POSIX_SPAWN_DUP2, fd, stream) for stream, fd in enumerate(streams) if fd >= 0]
    environment = dict(entry.split(b"=", 1) for entry in env)
    return os.posix_spawn(
        argv[0], argv, environment, file_actions=actions, setpgroup=0, setsigmask=(), setsigdef=defaults
    )


class Notice(NamedTuple):
    """A notice for slow programs: `report` is called once if they run longer than `after_s` seconds."""

    after_s: float
    report: Callable[[], None]


def run(
    *commands: ChildCommand, spawn: Spawn = posix_spawn, limit_s: float | None = LIMIT_S, notice: Notice | None = None
) -> list[Outcome]:
    """Starts all `commands`, waits until all have ended, and returns their outcomes in the same order.

    Raises OSError for a program that cannot be started, or that writes more than STDOUT_BYTES (EFBIG), and TimeoutError
    when not all have ended in `limit_s` seconds; None is for programs that an operator watches. Then, and when a signal
    ends the waiting (Terminated), running programs get SIGTERM and are waited for: they roll back before the caller
    does. Programs that take too long are killed.
    """
    children: list[_Child] = []
    # No signal may come between the start of a program and the code that ends it.
    with blocked(), _deaths() as deaths, ExitStack() as pipes:
        try:
            for command in commands:
                children.append(_start(command, spawn, pipes))
            with unblocked():
                _attend_and_report(children, deaths, limit_s, notice)
        except BaseException:
            _end(children, deaths)
            raise
        return [_outcome(child) for child in children]


class _Child(NamedTuple):
    """A started program; `stdout` and `stderr` are what it wrote so far, with the pipe that it comes from."""

    pid: int
    stdout: tuple[int, bytearray]
    stderr: tuple[int, bytearray] | None

    def has_ended(self) -> bool:
        """Returns whether the program has ended; its pid stays reserved, so that a kill is safe."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def read(self, pipe: int) -> bool:
        """Reads a chunk from `pipe` and returns whether there was any data."""
        try:
            chunk = os.read(pipe, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if self.stderr and pipe == self.stderr[0]:
            self.stderr[1].extend(chunk[: STDERR_BYTES - len(self.stderr[1])])
        else:
            self.stdout[1].extend(chunk)
            if len(self.stdout[1]) > STDOUT_BYTES:
                raise OSError(errno.EFBIG, f"it wrote more than {STDOUT_BYTES >> 20} MiB")
        return bool(chunk)


@contextmanager
def _deaths() -> Iterator[int]:
    """Yields a descriptor that becomes readable when a child ends (Linux has had pidfd_open for it since 5.3 only)."""
    readable, writable = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    before = signal.signal(signal.SIGCHLD, lambda number, frame: None)
    wakeup = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))
    try:
        yield readable
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGCHLD, before)
        os.close(readable)
        os.close(writable)


def _start(command: ChildCommand, spawn: Spawn, pipes: ExitStack) -> _Child:
    with ExitStack() as inherited:
        stdin = os.memfd_create("stdin")  # a file, so that input of any size cannot block this process
        inherited.callback(os.close, stdin)
        os.write(stdin, command.stdin)
        os.lseek(stdin, 0, os.SEEK_SET)
        stdout, out = _pipe(pipes, inherited)
        stderr, err = _pipe(pipes, inherited) if command.capture_stderr else (-1, -1)
        argv = [os.fsencode(word) for word in command.argv]
        env = [os.fsencode(f"{name}={value}") for name, value in command.env.items()]
        pid = spawn(argv, env, (stdin, out, err), _DEFAULTS)
    return _Child(pid, (stdout, bytearray()), (stderr, bytearray()) if command.capture_stderr else None)


def _pipe(pipes: ExitStack, inherited: ExitStack) -> tuple[int, int]:
    readable, writable = os.pipe()
    pipes.callback(os.close, readable)
    inherited.callback(os.close, writable)
    os.set_blocking(readable, False)
    return readable, writable


def _attend_and_report(children: list[_Child], deaths: int, limit_s: float | None, notice: Notice | None) -> None:
    if notice and (limit_s is None or notice.after_s < limit_s):
        try:
            _attend(children, deaths, notice.after_s)
        except TimeoutError:
            notice.report()
            limit_s = None if limit_s is None else limit_s - notice.after_s
        else:
            return
    _attend(children, deaths, limit_s)


def _attend(children: list[_Child], deaths: int, limit_s: float | None) -> None:
    """Reads the output of the children as it comes until all have ended; raises TimeoutError after `limit_s`."""
    deadline = None if limit_s is None else time.monotonic() + limit_s
    sources = {stream[0]: child for child in children for stream in (child.stdout, child.stderr) if stream}
    news = select.poll()
    for descriptor in (deaths, *sources):
        news.register(descriptor, select.POLLIN)
    running = children
    while running := [child for child in running if not child.has_ended()]:
        left_ms = None if deadline is None else (deadline - time.monotonic()) * 1000
        if left_ms is not None and left_ms <= 0:
            raise TimeoutError(errno.ETIMEDOUT, f"not done after {limit_s:.0f} s")
        for descriptor, _ in news.poll(left_ms):
            if descriptor == deaths:
                os.read(deaths, _CHUNK_BYTES)
            elif not sources[descriptor].read(descriptor):
                news.unregister(descriptor)
    for pipe, child in sources.items():
        for _ in range(_PIPE_CHUNKS):
            if not child.read(pipe):
                break


def _end(children: list[_Child], deaths: int) -> None:
    running = [child for child in children if not child.has_ended()]
    _signal(running, signal.SIGTERM)
    with suppress(OSError):
        _attend(children, deaths, _GRACE_S)
    _signal(running, signal.SIGKILL)
    _await_deaths(children, deaths)
    for child in children:
        os.waitpid(child.pid, os.WNOHANG)


def _signal(children: list[_Child], number: int) -> None:
    """Sends a signal to the programs' process groups, which exist until their leaders are waited for."""
    for child in children:
        with suppress(OSError):  # a program may have changed its user
            os.killpg(child.pid, number)


def _await_deaths(children: list[_Child], deaths: int) -> None:
    """Waits, for _KILLED_S at most, until killed programs have ended; one in state D does not end."""
    deadline = time.monotonic() + _KILLED_S
    poll = select.poll()
    poll.register(deaths, select.POLLIN)
    while not all(child.has_ended() for child in children) and (left_s := deadline - time.monotonic()) > 0:
        if poll.poll(left_s * 1000):
            os.read(deaths, _CHUNK_BYTES)


def _outcome(child: _Child) -> Outcome:
    status = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
    return Outcome(status, bytes(child.stdout[1]), bytes(child.stderr[1]) if child.stderr else b"")
