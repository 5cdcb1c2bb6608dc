"""A verb that stands still at a system call while the world changes around it.

One rule: it is strace that stops it, once, at a call that a dry run has counted; it goes on when the block is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_PATIENCE_S = 20.0
_STANDS = "--- stopped by SIGSTOP ---"


def command_prefix(log: Path, call: str, occurrence: int) -> tuple[str, ...]:
    """Returns the words before a program that stop it after the `occurrence`th `call`; strace writes to `log`."""
    log.unlink(missing_ok=True)
    return ("strace", "-o", str(log), "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGSTOP:when={occurrence}")


@contextlib.contextmanager
def stopped(strace: subprocess.Popen[bytes], log: Path) -> Iterator[bool]:
    """Waits until what `strace` runs stands still, and yields True; False when it has ended before."""
    deadline = time.monotonic() + _PATIENCE_S
    while not (stands := log.exists() and _STANDS in log.read_text()) and strace.poll() is None:
        assert time.monotonic() < deadline, "it neither stops nor ends"
        time.sleep(0.002)
    try:
        yield stands
    finally:
        if stands:
            (pid,) = Path(f"/proc/{strace.pid}/task/{strace.pid}/children").read_text().split()
            os.kill(int(pid), signal.SIGCONT)
