"""System calls that Python 3.11 has no function for.

One rule: a call that fails raises OSError with what was called.
"""

from __future__ import annotations

import ctypes
import os

NEW_MOUNTS, NEW_USERS, NEW_NETWORK = 0x00020000, 0x10000000, 0x40000000  # CLONE_NEW*: linux/sched.h

_PR_SET_DUMPABLE = 4  # linux/prctl.h
_MS_BIND, _MNT_DETACH = 4096, 2  # linux/mount.h, sys/mount.h
_LIBC = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Moves this thread into new namespaces."""
    _call("unshare", ctypes.c_int(flags))


def make_dumpable() -> None:
    """Makes /proc/<pid> belong to this process's user again, after a change of user."""
    _call("prctl", ctypes.c_int(_PR_SET_DUMPABLE), ctypes.c_ulong(1), *[ctypes.c_ulong(0)] * 3)


def bind(source: str, target: str) -> None:
    """Mounts a file over another."""
    _call("mount", source.encode(), target.encode(), None, ctypes.c_ulong(_MS_BIND), None)


def unmount(target: str) -> None:
    """Takes a mount away, in use or not."""
    _call("umount2", target.encode(), ctypes.c_int(_MNT_DETACH))


def _call(name: str, *arguments: object) -> None:
    if getattr(_LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
