"""Kernel parameters under /proc/sys/net, of the current network namespace.

ensure() writes only a value that differs, so that it works with a read-only /proc/sys if no value has to change.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress

from cni.errors import internal
from kernel import system
from process import record

_ROOT = "/proc/sys/net/"
_MOSTLY_BYTES, _LONGEST_BYTES = 256, 1 << 16
_HINTS = {
    errno.ENOENT: "this kernel has no such setting, perhaps a module is not loaded; ",
    errno.EROFS: "/proc/sys is mounted read-only here: mount it writable, or ",
    errno.EACCES: "this needs root on the host, and some settings can be written only in the host's namespace; ",
    errno.EPERM: "this needs root on the host; ",
}


class Setting:
    """An open kernel parameter: `value` is its value when opened, None if it cannot be read. A context manager.

    Write it in the namespace in which it was opened. Raises OSError.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self._descriptor = os.open(_path(name), os.O_RDWR | os.O_CLOEXEC)
        except PermissionError:  # some are write-only (ipv4/route/flush)
            self._descriptor = os.open(_path(name), os.O_WRONLY | os.O_CLOEXEC)
        self.value: str | None = None
        with suppress(OSError):  # write-only, or a secret that is not set (EIO)
            self.value = _read(self._descriptor)

    def __enter__(self) -> Setting:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    def write(self, value: str) -> None:
        """Writes `value` even if it is the current one: for some parameters a write is a command."""
        if not record.is_dry_run():
            os.pwrite(self._descriptor, _encode(value), 0)
        record.note_change(_describe(self.name, value))


def get(name: str) -> str:
    """Returns the value of `name` ("ipv4/ip_forward"); raises OSError."""
    descriptor = os.open(_path(name), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def ensure(name: str, value: str) -> None:
    """Sets `name` to `value` if it differs; raises OSError.

    podwire's processes write one after the other. With parallel writers Linux (6.18) may end with ip_forward 1 but
    forwarding disabled: while the first writer waits for the RTNL lock, the second one already reads the new value,
    and then the first one restores the old value.
    """
    if get(name) != value:
        write(name, value, locked=True)


def ensure_or_fail(name: str, value: str, action: str) -> None:
    """Sets `name` to `value` if it differs; raises CniError(999), "failed to <action>: ...", with a hint."""
    try:
        ensure(name, value)
    except OSError as error:
        prefix = _HINTS.get(error.errno or 0, "")
        details = f"{prefix}set it on the node: {command(name, value)}"
        raise internal(f"failed to {action}: {_ROOT}{name}: {error.strerror}", details) from error


def command(name: str, value: str) -> str:
    """Returns the command that sets `name` in the current namespace."""
    # Slashes as separators, because an interface's name may contain dots.
    return f"sysctl -w net/{name}={value}"


def hint(number: int) -> str:
    """Returns the hint for an errno of a parameter that cannot be read or written, "" if there is none."""
    return _HINTS.get(number, "").rstrip("; ").removesuffix(", or")


def write(name: str, value: str, *, locked: bool = False) -> None:
    """Writes `value`; with `locked`, first waits for other processes that write with `locked`. Raises OSError."""
    if record.is_dry_run():
        record.note_change(_describe(name, value))
        return
    descriptor = os.open(_path(name), os.O_WRONLY | os.O_CLOEXEC)
    try:
        if locked:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, _encode(value))
    finally:
        os.close(descriptor)
    record.note_change(_describe(name, value))


def is_directory(name: str) -> bool:
    """Returns whether there are settings below `name` ("ipv4/conf/eth0")."""
    return os.path.isdir(_path(name))


def is_writable(name: str) -> bool:
    """Returns whether the file system permits writing `name`."""
    return os.access(_path(name), os.W_OK)


def try_write(name: str, value: str) -> None:
    """Writes `value` and ignores failure, for parameters that the kernel may lack, such as those of IPv6."""
    try:
        write(name, value)
    except OSError:
        return


def _path(name: str) -> str:
    return system.current.path(_ROOT + name)


def _read(descriptor: int) -> str:
    text = os.pread(descriptor, _MOSTLY_BYTES, 0)
    if len(text) == _MOSTLY_BYTES:  # a list of ports may be longer; not every such file can be read in parts
        text = os.pread(descriptor, _LONGEST_BYTES, 0)
    return text.decode("ascii", "replace").strip()


def _encode(value: str) -> bytes:
    return value.encode() or b"\n"  # an empty line clears a list; the kernel ignores an empty write


def _describe(name: str, value: str) -> str:
    """Returns the command for the log; hides keys (ipv4/tcp_fastopen_key, IPv6's stable_secret)."""
    parameter = name.rpartition("/")[2]
    return command(name, "..." if parameter.endswith(("key", "secret")) else value)
