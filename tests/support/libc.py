"""System calls for which Python 3.11 has no function.

One rule: a failed call raises OSError with the name of the call.
"""

import ctypes
import os
import signal
from collections.abc import Iterable

NEW_MOUNTS, NEW_USERS, NEW_NETWORK = 0x00020000, 0x10000000, 0x40000000  # CLONE_NEW*: linux/sched.h
SEPARATE_ROOT = 0x00000200  # CLONE_FS of unshare(2): a root and a current directory of this thread
NEW_PIDS = 0x20000000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38  # linux/prctl.h
_MS_BIND, _MNT_DETACH = 4096, 2  # linux/mount.h, sys/mount.h
_MS_REC, _MS_SLAVE = 16384, 1 << 19  # linux/mount.h
_LIBC = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    _call("unshare", ctypes.c_int(flags))


def make_dumpable() -> None:
    """Sets the owner of /proc/<pid> to this process's user, after a change of user."""
    _prctl(_PR_SET_DUMPABLE, 1)


def limit_rights(capabilities: Iterable[int]) -> None:
    """Removes capabilities from the programs that this process executes, and lets them gain no privileges."""
    for number in capabilities:
        _prctl(_PR_CAPBSET_DROP, number)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def end_with_parent() -> None:
    """Has the kernel kill this process, and the program that it executes, when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def bind(source: str, target: str) -> None:
    _call("mount", source.encode(), target.encode(), None, ctypes.c_ulong(_MS_BIND), None)


def receive_mounts_only() -> None:
    """Makes mounts propagate into this mount namespace, but not out of it."""
    _call("mount", None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None)


def unmount(target: str) -> None:
    """Unmounts a mount, even if it is in use."""
    _call("umount2", target.encode(), ctypes.c_int(_MNT_DETACH))


def _prctl(option: int, value: int) -> None:
    _call("prctl", ctypes.c_int(option), ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)


def _call(name: str, *arguments: object) -> None:
    if getattr(_LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
