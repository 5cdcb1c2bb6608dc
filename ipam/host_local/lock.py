"""The lock of a store: flock(2) on its file `lock`, shared with the reference plugin.

One rule: the wait has an end, and both a long wait and its end name the process that holds the lock.
"""

from __future__ import annotations

import fcntl
import os
import signal
from types import FrameType

from cni.errors import CniError, Code
from kernel import locks
from process.signals import unblocked

# A verb holds the lock for less than a millisecond, a scan of 10,000 reservations for 0.1 s. Ten seconds allow a queue
# of thousands, and are well below the minutes after which a runtime gives up.
LOCK_WAIT_S = 10.0


class _ExpiredError(Exception):
    """Raised by the alarm at the end of the wait."""


def acquire(fd: int, path: str, wait_s: float) -> None:
    """Locks the open file `fd` (at `path`) exclusively; raises CniError(11) after waiting `wait_s` seconds.

    The wait is one blocking flock, queued in the kernel, without polling. A first SIGALRM reports a long wait, a second
    one ends it.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        pass
    is_last = wait_s <= locks.NOTICE_S

    def on_alarm(signum: int, frame: FrameType | None) -> None:
        nonlocal is_last
        if is_last:
            raise _ExpiredError
        is_last = True
        locks.report_wait("the store of addresses", path)

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))  # the parent process may have blocked it
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, min(wait_s, locks.NOTICE_S), max(0.0, wait_s - locks.NOTICE_S))
            with unblocked():
                fcntl.flock(fd, fcntl.LOCK_EX)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    except _ExpiredError:
        msg = f"waited {wait_s:g} s in vain for the lock {path}"
        raise CniError(Code.TRY_AGAIN_LATER, msg, locks.describe_holder(path, os.fstat(fd))) from None
