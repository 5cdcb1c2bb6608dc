"""The disk of a node: file operations of the agent that end it before or after they are made, or fail.

A file that was renamed is on the disk after its directory's fsync; a power loss before that may bring the old one back.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto

from agent.pools import identity, network_blocks


class CrashAtFile(Exception):  # noqa: N818 - what happens to the agent
    """The agent ends at this file operation."""


class FileFault(Enum):
    """What happens at a file operation."""

    CRASH_BEFORE = auto()
    CRASH_AFTER = auto()
    FULL = auto()  # the operation fails: no room


class Disk:
    """Stands for the module os in the modules of the agent that write files."""

    def __init__(self) -> None:
        self._fault: FileFault | None = None
        self._left = 0
        self._renamed: dict[str, bytes | None] = {}  # not yet on the disk: the path's content before

    def fail_at(self, number: int, fault: FileFault) -> None:
        """Plans a fault at one of the next file operations."""
        self._left, self._fault = number, fault

    def clear(self) -> None:
        self._fault = None

    def lose_power(self) -> None:
        """Brings back the files whose replacement was not on the disk."""
        for path, content in self._renamed.items():
            if content is None:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            else:
                with open(path, "wb") as file:
                    file.write(content)
        self._renamed.clear()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Lets the agent's modules use this disk."""
        modules = (identity, network_blocks)
        for module in modules:
            module.os = self  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for module in modules:
                module.os = os  # type: ignore[attr-defined]

    def open(self, path, flags, mode=0o777):
        return self._operate(lambda: os.open(path, flags, mode))

    def fsync(self, fd) -> None:
        def sync() -> None:  # without the kernel's fsync, which takes milliseconds
            directory = os.readlink(f"/proc/self/fd/{fd}")
            for path in [path for path in self._renamed if os.path.dirname(path) == directory]:
                del self._renamed[path]

        self._operate(sync)

    def rename(self, source, target) -> None:
        def rename() -> None:
            before = None
            with suppress(FileNotFoundError), open(target, "rb") as file:
                before = file.read()
            self._renamed.setdefault(os.path.realpath(target), before)
            os.rename(source, target)

        self._operate(rename)

    def unlink(self, path) -> None:
        self._operate(lambda: os.unlink(path))

    def __getattr__(self, name):
        return getattr(os, name)

    def _operate(self, operation):
        fault = None
        if self._fault is not None:
            if self._left == 0:
                fault, self._fault = self._fault, None
            self._left -= 1
        if fault is FileFault.CRASH_BEFORE:
            raise CrashAtFile
        if fault is FileFault.FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        result = operation()
        if fault is FileFault.CRASH_AFTER:
            raise CrashAtFile
        return result
