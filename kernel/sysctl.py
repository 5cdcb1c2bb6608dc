"""Kernel parameters under /proc/sys/net of the namespace that is current.

One rule: a value that is already right is not written, so that a read-only /proc/sys is no obstacle.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from types import TracebackType

from cni.errors import CniError, Code
from process import record

_ROOT = "/proc/sys/net/"
_MOSTLY_BYTES, _LONGEST_BYTES = 256, 1 << 16
_HINTS = {
    errno.ENOENT: "this kernel has no such setting, perhaps a module is not loaded; ",
    errno.EROFS: "/proc/sys is mounted read-only here: mount it writable, or ",
    errno.EACCES: "this needs root of the host, and some settings can be written in its own namespace only; ",
    errno.EPERM: "this needs root of the host; ",
}


class Setting:
    """One setting held open: what it was then, None where the kernel does not tell, and the way to change it.

    It is to be changed in the namespace in which it was opened. A context manager; raises OSError.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self._descriptor = os.open(_ROOT + name, os.O_RDWR | os.O_CLOEXEC)
        except PermissionError:  # some can only be written (ipv4/route/flush)
            self._descriptor = os.open(_ROOT + name, os.O_WRONLY | os.O_CLOEXEC)
        self.value: str | None = None
        with suppress(OSError):  # those, and a secret that nobody has set (EIO)
            self.value = _read(self._descriptor)

    def __enter__(self) -> Setting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def write(self, value: str) -> None:
        """Writes `value`, also one that it has already: with some settings that is an order to others."""
        if not record.is_dry_run():
            os.pwrite(self._descriptor, _written(value), 0)
        record.change(_told(self.name, value))


def get(name: str) -> str:
    """Returns the value of `name` ("ipv4/ip_forward"); raises OSError."""
    descriptor = os.open(_ROOT + name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def ensure(name: str, value: str) -> None:
    """Sets `name` to `value` unless it is set; raises OSError.

    Writers wait for each other. While Linux (6.18) waits for the RTNL lock to change ipv4/ip_forward, a second writer
    sees the value changed, and the first one then restores it: ip_forward may end as 1 and forward on no interface.
    """
    if get(name) != value:
        write(name, value, locked=True)


def ensure_or_fail(name: str, value: str, doing: str) -> None:
    """Makes `name` be `value`; raises CniError(999) with the cure: "failed to <doing>: /proc/sys/net/...: ..."."""
    try:
        ensure(name, value)
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, "")
        cure = f"{hint}set it on the node: {command(name, value)}"
        raise CniError(Code.INTERNAL, f"failed to {doing}: {_ROOT}{name}: {error.strerror}", cure) from error


def command(name: str, value: str) -> str:
    """Returns the command that sets `name` in the namespace where it is run."""
    # Slashes are taken as they are, so that an interface's name may have dots.
    return f"sysctl -w net/{name}={value}"


def hint(number: int) -> str:
    """Returns the hint for the errno of a setting that cannot be read or set, "" when there is none."""
    return _HINTS.get(number, "").rstrip("; ").removesuffix(", or")


def write(name: str, value: str, *, locked: bool = False) -> None:
    """Writes `value`, with `locked` after all other writers that lock; raises OSError."""
    if record.is_dry_run():
        record.change(_told(name, value))
        return
    descriptor = os.open(_ROOT + name, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if locked:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, _written(value))
    finally:
        os.close(descriptor)
    record.change(_told(name, value))


def is_writable(name: str) -> bool:
    """Tells whether `name` can be set, as far as the file system goes."""
    return os.access(_ROOT + name, os.W_OK)


def try_write(name: str, value: str) -> None:
    """Sets `name` where the kernel has it and lets us; without IPv6, say, it is done without."""
    try:
        write(name, value)
    except OSError:
        return


def _read(descriptor: int) -> str:
    text = os.pread(descriptor, _MOSTLY_BYTES, 0)
    if len(text) == _MOSTLY_BYTES:  # a list of ports may go on; not every such file is read in parts
        text = os.pread(descriptor, _LONGEST_BYTES, 0)
    return text.decode("ascii", "replace").strip()


def _written(value: str) -> bytes:
    return value.encode() or b"\n"  # which empties a list; the kernel takes no notice of nothing


def _told(name: str, value: str) -> str:
    """Returns the command for a record; a key (ipv4/tcp_fastopen_key, stable_secret of IPv6) is nobody's to read."""
    what = name.rpartition("/")[2]
    return command(name, "..." if what.endswith(("key", "secret")) else value)
