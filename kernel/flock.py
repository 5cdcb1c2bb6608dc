"""Exclusive flock(2) locks, shared with the reference plugins, which lock the same files.

One rule: the wait has a time limit; the notice of a long wait and the error name the process that holds the lock.
"""

from __future__ import annotations

import fcntl
import os
import signal
from types import FrameType

from cni.errors import CniError, Code
from kernel import locks
from process.signals import unblocked

# A verb holds a lock for about a millisecond, or 0.1 s if it scans 10,000 reservations. Ten seconds suffice for a queue
# of thousands of verbs, and are well below the minutes after which a runtime gives up.
LOCK_WAIT_S = 10.0


class _ExpiredError(Exception):
    """Raised by the alarm at the end of the wait."""


def acquire(fd: int, path: str, awaited: str, wait_s: float = LOCK_WAIT_S) -> None:
    """Locks the open file `fd` (at `path`) exclusively; raises CniError(11) after waiting `wait_s` seconds.

    `awaited` says what the lock protects, for the notice of a long wait. Closing the file releases the lock.

    The kernel queues one blocking flock; there is no polling. The first SIGALRM reports a long wait, the second ends
    it.
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
        locks.report_wait(awaited, path)

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
        msg = f"could not lock {path} within {wait_s:g} s"
        raise CniError(Code.TRY_AGAIN_LATER, msg, locks.describe_holder(path, os.fstat(fd))) from None
