"""Network namespaces: opening the file at CNI_NETNS, and entering a namespace temporarily.

Use `entered()` to enter a namespace: it always returns to the previous one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from _podwire import fs_type

from cni.errors import CniError, Code
from kernel import system
from kernel.errors import reason
from process import record

NAMED = "/run/netns"  # the directory of named namespaces (ip-netns(8))
_NEEDS = "entering another network namespace needs root with CAP_SYS_ADMIN"
_NAMESPACE_FILE_SYSTEMS = (0x6E736673, 0x9FA0)  # NSFS_MAGIC, PROC_SUPER_MAGIC (linux/magic.h)


class NetnsMissingError(CniError):
    """The namespace is missing: CNI_NETNS has no file, or a stale one. ADD and CHECK fail, DEL treats it as deleted."""


class Netns:
    """An open network namespace. A context manager; `path` is CNI_NETNS, unchanged."""

    def __init__(self, path: str) -> None:
        """Opens `path`; raises CniError(8), and NetnsMissingError if it has no namespace; texts as the reference's."""
        self.path = path
        with record.timed_step("open the network namespace"):
            self._descriptor = _open(path)

    def __enter__(self) -> Netns:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    def fileno(self) -> int:
        """Returns the file descriptor, for IFLA_NET_NS_FD."""
        return self._descriptor

    def is_current(self) -> bool:
        """Returns whether it is the namespace of this process."""
        return os.path.samestat(os.fstat(self._descriptor), os.stat("/proc/self/ns/net"))


def _open(path: str) -> int:
    prefix = f'failed to open netns "{path}"'
    try:
        magic = fs_type(path)
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None) or errno.EINVAL
        failure = NetnsMissingError if number in (errno.ENOENT, errno.ENOTDIR) else CniError
        raise failure(
            Code.INVALID_NETNS,
            f'{prefix}: failed to Statfs "{path}": {reason(number)}',
            "CNI_NETNS must be the path of a network namespace; is the container still there?",
        ) from error
    if magic not in _NAMESPACE_FILE_SYSTEMS:
        raise NetnsMissingError(
            Code.INVALID_NETNS,
            f'{prefix}: unknown FS magic on "{path}": {magic:x}',
            "CNI_NETNS must be a network namespace; this is an ordinary file, perhaps the mount point of a deleted one",
        )
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CniError(Code.INVALID_NETNS, f"{prefix}: {reason(error.errno or 0)}", _NEEDS) from error


@contextmanager
def entered(namespace: Netns) -> Iterator[None]:
    """Runs a block inside `namespace`: sockets and /proc/sys/net files that it opens belong to it.

    Raises CniError(8) when it cannot be entered.
    """
    home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            system.current.enter_netns(namespace.fileno())
        except OSError as error:
            prefix = f'cannot enter netns "{namespace.path}"'
            raise CniError(Code.INVALID_NETNS, f"{prefix}: {reason(error.errno or 0)}", _NEEDS) from error
        try:
            yield
        finally:
            _return(home)
    finally:
        os.close(home)


def _return(home: int) -> None:
    """Enters the previous namespace, with one retry: in the wrong namespace, undo functions would undo nothing."""
    try:
        system.current.enter_netns(home)
    except OSError:
        system.current.enter_netns(home)  # after a temporary lack of memory


def list_named() -> list[str]:
    """Returns the sorted names of the network namespaces that have one, [] if there are none."""
    try:
        return sorted(os.listdir(NAMED))
    except OSError:
        return []
