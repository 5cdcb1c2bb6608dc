"""Calls to the kernel and to other programs that the image's warm-up and the fuzzers replace.

One rule: callers use `system.current` for each call; only a replacement stores the object that it replaces.

The image's warm-up (pack/fake_kernel.py) and the fuzzers (tests/fuzz/replay.py) replace `current` by a subclass of
System. It is global to the process, like the process's namespaces: passing it through every function down to a call
would be noise. Other calls have no such method, because the warm-up and the fuzzers make them: files, poll(2) on
standard input, the clock. A unit test refuses a method that neither of them replaces.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import _podwire

from process import child
from process.child import ChildCommand, Notice, Outcome
from process.signals import unblocked

# Where system programs are, whatever PATH is.
PROGRAM_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")
_CLONE_NEWNET = 0x40000000  # linux/sched.h


class System:
    """The running system: each method makes the real call."""

    __slots__ = ()

    def open_socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """Opens a socket in the current network namespace (AF_*, SOCK_*); raises OSError."""
        return socket.socket(family, kind, protocol)

    def enter_netns(self, descriptor: int) -> None:
        """Enters the network namespace of an open file; raises OSError."""
        _podwire.setns(descriptor, _CLONE_NEWNET)

    def wait_readable(self, descriptors: list[int], timeout_s: float) -> list[int]:
        """Waits until descriptors are readable or closed by the other side; returns those, [] on timeout.

        Signals are delivered only while it waits.
        """
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(0)
        if not ready and timeout_s:
            with unblocked():
                ready = poll.poll(timeout_s * 1000)
        return [descriptor for descriptor, _ in ready]

    def send_in_background(self, descriptor: int, request: bytes, report: int) -> int:
        """Starts a child process that sends a request on a netlink socket and waits for its acknowledgement.

        Returns its process ID. Its exit status is the errno of the answer; it closes its copy of the descriptor
        `report` at its end. Raises OSError.
        """
        pid: int = _podwire.send_in_background(descriptor, request, report)
        return pid

    def close_in_background(self, descriptor: int, ended: int, delay_us: int) -> int:
        """Starts a child process that closes a socket `delay_us` microseconds after the other end of `ended` is closed.

        Returns its process ID; raises OSError.
        """
        pid: int = _podwire.close_in_background(descriptor, ended, delay_us)
        return pid

    def path(self, path: str) -> str:
        """Returns the path under which to open a file of procfs, a sysctl or a device: `path` itself."""
        return path

    def state_path(self, path: str) -> str:
        """Returns the path under which to open a file of /run: `path` itself."""
        return path

    def ioctl(self, descriptor: int, request: int, argument: bytes | int) -> None:
        """Sends a request to an open device; raises OSError."""
        fcntl.ioctl(descriptor, request, argument)

    def find_program(self, name: str, directories: tuple[str, ...]) -> str:
        """Returns the path of a program on PATH or in `directories`, "" if there is none.

        Runtimes start plugins with a PATH without sbin, or without PATH.
        """
        for directory in (*os.environ.get("PATH", "").split(":"), *directories):
            path = f"{directory}/{name}"
            if directory.startswith("/") and os.path.isfile(path) and os.access(path, os.X_OK):
                return path
        return ""

    def run_programs(self, *commands: ChildCommand, limit_s: float, notice: Notice) -> list[Outcome]:
        """Runs programs to their end, in parallel, as process.child.run(); the kernel kills them if this process ends.

        Raises OSError, and TimeoutError when not all have ended in `limit_s` seconds.
        """
        return child.run(*commands, spawn=_podwire.spawn_bound, limit_s=limit_s, notice=notice)

    def random_bytes(self, size: int) -> bytes:
        """Returns random bytes of the kernel."""
        return os.urandom(size)


current = System()


@contextmanager
def replaced(system: System) -> Iterator[None]:
    """Makes `system` current while the context is active."""
    global current  # noqa: PLW0603 - the module docstring says why
    before = current
    current = system
    try:
        yield
    finally:
        current = before
