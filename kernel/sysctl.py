"""Kernel parameters under /proc/sys/net of the namespace that is current.

One rule: a value that is already right is not written, so that a read-only /proc/sys is no obstacle.
"""

from __future__ import annotations

import errno
import os

from cni.errors import CniError, Code

_ROOT = "/proc/sys/net/"
_HINTS = {
    errno.ENOENT: "this kernel has no such setting, perhaps a module is not loaded; ",
    errno.EROFS: "/proc/sys is mounted read-only here: mount it writable, or ",
    errno.EACCES: "this needs root of the host; ",
    errno.EPERM: "this needs root of the host; ",
}


def get(name: str) -> str:
    """Returns the value of `name` ("ipv4/ip_forward"); raises OSError."""
    descriptor = os.open(_ROOT + name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 256).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)


def ensure(name: str, value: str) -> None:
    """Makes `name` be `value`; raises OSError."""
    if get(name) != value:
        _put(name, value)


def require(name: str, value: str, doing: str) -> None:
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


def writable(name: str) -> bool:
    """Tells whether `name` can be set, as far as the file system goes."""
    return os.access(_ROOT + name, os.W_OK)


def attempt(name: str, value: str) -> None:
    """Sets `name` where the kernel has it and lets us; without IPv6, say, it is done without."""
    try:
        _put(name, value)
    except OSError:
        return


def _put(name: str, value: str) -> None:
    descriptor = os.open(_ROOT + name, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)
