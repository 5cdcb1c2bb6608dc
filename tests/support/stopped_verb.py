"""Stops a verb at a system call while a test changes the state around it.

One rule: strace stops the verb once, at a call that an earlier run has counted; the verb continues after the block.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_TIMEOUT_S = 20.0
_STOPPED = "--- stopped by SIGSTOP ---"


def command_prefix(log: Path, call: str, occurrence: int) -> tuple[str, ...]:
    """Returns the command line that stops a program after the `occurrence`th `call`; strace writes to `log`."""
    log.unlink(missing_ok=True)
    return ("strace", "-o", str(log), "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGSTOP:when={occurrence}")


@contextlib.contextmanager
def stopped(strace: subprocess.Popen[bytes], log: Path) -> Iterator[bool]:
    """Waits until the program of `strace` is stopped, and yields True; False if it ended before that."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not (is_stopped := log.exists() and _STOPPED in log.read_text()) and strace.poll() is None:
        assert time.monotonic() < deadline, "it neither stops nor ends"
        time.sleep(0.002)
    try:
        yield is_stopped
    finally:
        if is_stopped:
            (pid,) = Path(f"/proc/{strace.pid}/task/{strace.pid}/children").read_text().split()
            os.kill(int(pid), signal.SIGCONT)
