"""Replays recorded answers of the kernel and of programs to the plugins in this process.

One rule: each recorded answer is returned once, in order; without one, the kernel's answer is ENOBUFS.
"""

import socket
from typing import Any

from kernel import system
from kernel.system import System
from process.child import ChildCommand, Notice, Outcome
from tests.fuzz.cases import Case
from tests.fuzz.world import HOME, invoke

_PARAMETER = HOME / "parameter"  # a file that represents all sysctls
_NO_CHILD = 1 << 22  # no process has this ID


class Replay(System):
    """Answers with those of a case that have not been returned yet; create it after world.enter()."""

    def __init__(self) -> None:
        _PARAMETER.write_text("1")
        self._replies: list[Any] = []

    def judge(self, case: Case) -> str:
        """Runs a case with its answers; returns the verdict."""
        self._replies = list(reversed(case.replies))
        with system.replaced(self):
            return invoke(case)[0]

    def next(self, kind: type) -> Any:
        """Returns the next answer if it is of the type `kind`; raises OSError (ENOBUFS)."""
        if self._replies and isinstance(self._replies[-1], kind):
            return self._replies.pop()
        raise OSError(105, "No buffer space available")

    def open_socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """Returns a socket that receives the next answers."""
        return _Socket(self)

    def enter_netns(self, descriptor: int) -> None:
        """Stays in the network namespace."""

    def wait_readable(self, descriptors: list[int], timeout_s: float) -> list[int]:
        """Returns the last descriptor while there are answers."""
        return descriptors[-1:] if self._replies else []

    def send_in_background(self, descriptor: int, request: bytes, report: int) -> int:
        """Returns the process ID of no process."""
        return _NO_CHILD

    def close_in_background(self, descriptor: int, ended: int, delay_us: int) -> int:
        """Returns the process ID of no process."""
        return _NO_CHILD

    def path(self, path: str) -> str:
        """Returns the same file for every path."""
        return str(_PARAMETER)

    def ioctl(self, descriptor: int, request: int, argument: bytes | int) -> None:
        """Accepts any request."""

    def run_programs(self, *commands: ChildCommand, limit_s: float, notice: Notice) -> list[Outcome]:
        """Returns the next answers."""
        answers = [self.next(list) for _ in commands]
        return [Outcome(status, text.encode("latin-1"), b"") for status, text in answers]

    def random_bytes(self, size: int) -> bytes:
        """Returns zeros."""
        return bytes(size)


class _Socket(socket.socket):
    """Accepts any request and receives the next answer."""

    def __init__(self, replay: Replay) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._replay = replay

    def setsockopt(self, *unused: int) -> None:  # type: ignore[override]
        """Accepts any option."""

    def bind(self, address: object) -> None:
        """Accepts any address."""

    def send(self, data: bytes) -> int:  # type: ignore[override]
        """Accepts any request."""
        return len(data)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Returns the next answer."""
        if flags:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        data: bytes = self._replay.next(str).encode("latin-1")
        return data
