"""The lock that keeps a second agent from running on a node."""

from __future__ import annotations

import fcntl
import os
from typing import Self

from cni.errors import CniError, Code
from kernel import locks
from process import directories


class InstanceLock:
    """Holds the lock of a file while it is a context; raises CniError(11) if another agent holds it, CniError(5)."""

    def __init__(self, path: str) -> None:
        try:
            directories.create(os.path.dirname(path))
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            msg = f"cannot open {path}: {error.strerror}"
            raise CniError(
                Code.IO_FAILURE, msg, "run the agent as root, or name another directory (--run-dir)"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holders = ", ".join(f"process {pid}" for pid in locks.get_holders(os.fstat(self._fd)))
            os.close(self._fd)
            msg = f"another podwire-agent maintains this node{f': {holders}' if holders else ''}"
            hint = "run one agent for each node: end the other one, or remove this one's DaemonSet or service"
            raise CniError(Code.TRY_AGAIN_LATER, msg, hint) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
