"""The lock of a store: flock(2) on its file `lock`, shared with the reference plugin.

One rule: the wait has an end, and who waited in vain is told who holds the lock.
"""

from __future__ import annotations

import fcntl
import os
import signal
from types import FrameType

from cni.errors import CniError, Code
from cni.signals import waiting

# A verb holds the lock for less than a millisecond, a scan of 10,000 reservations for a tenth of a second: ten seconds
# are a queue of thousands, and still well below the minutes after which a runtime gives up.
LOCK_WAIT_S = 10.0


class _ExpiredError(Exception):
    """The alarm rang while waiting."""


def acquire(fd: int, path: str, wait_s: float) -> None:
    """Locks the open file `fd` (at `path`) exclusively, waiting at most `wait_s` seconds; CniError(11) after that.

    The wait is one blocking flock, cut short by SIGALRM: the kernel queues us, and nothing is polled.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        pass
    before = signal.signal(signal.SIGALRM, _expire)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))  # a caller may have started us with it blocked
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, wait_s)
            with waiting():
                fcntl.flock(fd, fcntl.LOCK_EX)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    except _ExpiredError:
        raise CniError(
            Code.TRY_AGAIN_LATER, f"waited {wait_s:g} s in vain for the lock {path}", _holder(os.fstat(fd))
        ) from None


def _expire(signum: int, frame: FrameType | None) -> None:
    raise _ExpiredError


def _holder(lock: os.stat_result) -> str:
    """Names the process that holds the lock, as far as /proc/locks (proc_locks(5)) knows it in our PID namespace."""
    file = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    try:
        with open("/proc/locks", "rb") as table:
            for line in table.read().decode().splitlines():
                columns = line.split()  # "1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF"; waiting ones have "->"
                if columns[1] == "FLOCK" and columns[5] == file:
                    return f"it is held by process {columns[4]} ({_command(columns[4])})"
    except (OSError, IndexError):
        pass
    return "its holder is not visible in /proc/locks; try fuser on the file"


def _command(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode("utf-8", "replace").replace("\0", " ").strip() or "a kernel thread"
    except OSError:
        return "not visible"
