"""Running other programs to their end, several at once when need be.

One rule: no program started here outlives `run`, whatever happens to us while it runs.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from cni.signals import TERMINATION, held, waiting

_CHUNK_BYTES = 65536


@dataclass(frozen=True)
class Command:
    """One program to run: `argv`, whose first word is its path, and its whole environment.

    Its stderr is ours unless `capture_stderr`.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    stdin: bytes = field(default=b"", repr=False)
    capture_stderr: bool = False


class Outcome(NamedTuple):
    """How a program ended: its exit status (a negative number is the signal that ended it) and what it wrote."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def how(self) -> str:
        """The status in words: "exit status 3", "signal 9"."""
        return f"signal {-self.status}" if self.status < 0 else f"exit status {self.status}"


def run(*commands: Command) -> list[Outcome]:
    """Starts all `commands`, waits until all have ended, and returns their outcomes in the same order.

    Raises OSError for a program that cannot be started. Then, and when a signal ends the waiting (Terminated), those
    that run get SIGTERM and are waited for: they take back what they have done, then it is our turn.
    """
    children: list[_Child] = []
    with held(), ExitStack() as pipes:  # no signal may come between a start and the place that ends what was started
        try:
            for command in commands:
                children.append(_start(command, pipes))
            with waiting():
                _drain({pipe: output for child in children for pipe, output in child.outputs.items()})
                for child in children:
                    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it keeps its pid, so that a kill is safe
        except BaseException:
            for child in children:
                os.kill(child.pid, signal.SIGTERM)
            for child in children:
                os.waitpid(child.pid, 0)
            raise
        return [_outcome(child) for child in children]


class _Child(NamedTuple):
    """A started program; `outputs` are what it wrote so far, by the pipe it comes from: stdout's, stderr's."""

    pid: int
    outputs: dict[int, bytearray]


def _start(command: Command, pipes: ExitStack) -> _Child:
    outputs: dict[int, bytearray] = {}
    with ExitStack() as inherited:
        stdin = os.memfd_create("stdin")  # a file, so that no size of input can block us
        inherited.callback(os.close, stdin)
        os.write(stdin, command.stdin)
        os.lseek(stdin, 0, os.SEEK_SET)
        actions = [(os.POSIX_SPAWN_DUP2, stdin, 0)]
        for stream in (1, 2) if command.capture_stderr else (1,):
            readable, writable = os.pipe()
            pipes.callback(os.close, readable)
            inherited.callback(os.close, writable)
            actions.append((os.POSIX_SPAWN_DUP2, writable, stream))
            outputs[readable] = bytearray()
        # We ignore SIGPIPE and hold SIGTERM back; a program starts with the defaults, as from a shell.
        defaults = (signal.SIGPIPE, *TERMINATION)
        program = command.argv[0]
        pid = os.posix_spawn(
            program, command.argv, command.env, file_actions=actions, setsigmask=(), setsigdef=defaults
        )
    return _Child(pid, outputs)


def _drain(outputs: dict[int, bytearray]) -> None:
    """Reads all pipes to their ends, in the order things come, so that no program waits for us to read another's."""
    unfinished = select.poll()
    for pipe in outputs:
        unfinished.register(pipe)
    left = len(outputs)
    while left:
        for pipe, _ in unfinished.poll():
            chunk = os.read(pipe, _CHUNK_BYTES)
            outputs[pipe] += chunk
            if not chunk:
                unfinished.unregister(pipe)
                left -= 1


def _outcome(child: _Child) -> Outcome:
    status = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
    stdout, stderr = (*map(bytes, child.outputs.values()), b"")[:2]
    return Outcome(status, stdout, stderr)
