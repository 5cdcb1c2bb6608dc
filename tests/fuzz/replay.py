"""Replays recorded answers of the kernel and of programs to the plugins in this process.

One rule: each recorded answer is returned once, in order; without one, the kernel's answer is ENOBUFS.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import kernel.link_deletion
import kernel.netfilter.nft
import kernel.netns
import kernel.sysctl
import process.child
from kernel import rtnl
from process.child import Command, Outcome
from tests.fuzz.cases import Case
from tests.fuzz.world import HOME, invoke


class Replay:
    """The answers of a case that have not been returned yet."""

    def __init__(self) -> None:
        self.replies: list[Any] = []

    def judge(self, case: Case) -> str:
        """Runs a case with its answers; returns the verdict."""
        self.replies = list(reversed(case.replies))
        return invoke(case)[0]

    def next(self, kind: type) -> Any:
        """Returns the next answer if it is of the type `kind`; raises OSError (ENOBUFS)."""
        if self.replies and isinstance(self.replies[-1], kind):
            return self.replies.pop()
        raise OSError(105, "No buffer space available")


def install(replay: Replay) -> Callable[[], None]:
    """Replaces the kernel and programs by `replay` in this process; returns a function that restores them."""
    parameters = HOME / "parameter"
    parameters.write_text("1")
    replacements: list[tuple[Any, str, Any]] = [
        (socket, "socket", _socket_class(replay)),
        (process.child, "run", _program_runner(replay)),
        (kernel.netns, "setns", lambda descriptor, kind: None),
        (rtnl, "wait_readable", _wait_function(replay)),
        (kernel.link_deletion, "wait_readable", _wait_function(replay)),
        (kernel.sysctl, "_ROOT", _Parameter(parameters)),
        (kernel.link_deletion, "send_in_background", lambda socket, request, report: 1 << 22),
        (kernel.netfilter.nft, "close_in_background", lambda socket, ended, microseconds: 1 << 22),
        (os, "urandom", bytes),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in replacements]
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)

    def restore() -> None:
        for owner, name, original in originals:
            setattr(owner, name, original)

    return restore


def _socket_class(replay: Replay) -> type[socket.socket]:
    class ReplayingSocket(socket.socket):
        """Accepts any request and returns the next answer."""

        def __init__(self, *unused: int) -> None:
            super().__init__(socket.AF_UNIX, socket.SOCK_DGRAM)

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
            data: bytes = replay.next(str).encode("latin-1")
            return data

    return ReplayingSocket


def _program_runner(replay: Replay) -> Callable[..., list[Outcome]]:
    def run(*commands: Command, **unused: object) -> list[Outcome]:
        answers = [replay.next(list) for _ in commands]
        return [Outcome(status, text.encode("latin-1"), b"") for status, text in answers]

    return run


def _wait_function(replay: Replay) -> Callable[[list[int], float], list[int]]:
    def wait_readable(descriptors: list[int], timeout_s: float) -> list[int]:
        return descriptors[-1:] if replay.replies else []

    return wait_readable


class _Parameter(str):
    """A directory in which every name is the same file, which represents all sysctls."""

    __slots__ = ()

    def __add__(self, name: str) -> str:
        return str(self)
