"""Throwaway network namespaces: one stands for the host, others for pods.

One rule: every namespace made here has a recognisable name and is gone after the test, whatever happened in it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.processes import output

_PREFIX = "pwt-"
_numbers = itertools.count()


@dataclass(frozen=True)
class Namespace:
    """A named network namespace."""

    name: str

    @property
    def path(self) -> str:
        """Its path, as CNI_NETNS gives it."""
        return f"/run/netns/{self.name}"

    def run(self, *argv: str, check: bool = True) -> str:
        """Runs a program inside and returns its stdout; a failing program fails the test unless `check` is off."""
        return output("nsenter", f"--net={self.path}", "--", *argv, check=check)

    def ip(self, *argv: str) -> str:
        """Runs the ip tool inside and returns its stdout."""
        return output("ip", "-n", self.name, *argv)

    def sysctl(self, key: str) -> str:
        """Returns a sysctl of this namespace ("net/ipv4/ip_forward")."""
        return self.run("cat", f"/proc/sys/{key}").strip()

    def set_sysctl(self, key: str, value: str) -> None:
        """Sets a sysctl of this namespace."""
        self.run("sh", "-c", 'echo "$1" > "/proc/sys/$0"', key, value)

    def exists(self) -> bool:
        """Tells whether it is still there."""
        return os.path.exists(self.path)

    def delete(self) -> None:
        """Removes it; the kernel removes what was in it a moment later."""
        if self.exists():
            subprocess.run(["ip", "netns", "delete", self.name], check=False, capture_output=True)


def create(purpose: str = "pod") -> Namespace:
    """Makes a namespace with a unique name; the caller deletes it (tests use the fixtures instead)."""
    namespace = Namespace(f"{_PREFIX}{purpose}-{os.getpid()}-{next(_numbers)}")
    output("ip", "netns", "add", namespace.name)
    return namespace


@contextlib.contextmanager
def temporary(purpose: str = "pod") -> Iterator[Namespace]:
    """Yields a fresh namespace and removes it."""
    namespace = create(purpose)
    try:
        yield namespace
    finally:
        namespace.delete()


@contextlib.contextmanager
def temporary_host() -> Iterator[Namespace]:
    """Yields a fresh namespace to stand for the host: its lo is up, as on every host."""
    with temporary("host") as namespace:
        namespace.ip("link", "set", "lo", "up")
        yield namespace
