"""Runs a function in a child process for a limited time, so that a file server that hangs cannot stop the caller.

The child has a copy of this process's memory. Only its bytes come back.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

from cni import skel

_CHUNK_BYTES = 1 << 16
_DONE, _FAILED = b"+", b"-"  # the last byte that a child writes


class PartError(Exception):
    """A part that cannot be collected; its text is the reason."""


def run(function: Callable[[], bytes], limit_s: float, max_bytes: int) -> bytes:
    """Returns what `function` returns; raises PartError if it fails, after `limit_s`, and above `max_bytes`."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(readable)
        _run_child(function, writable)
    os.close(writable)
    try:
        data = _read(readable, time.monotonic() + limit_s, limit_s, max_bytes)
    finally:
        os.close(readable)
        os.kill(pid, signal.SIGKILL)
        # A process that waits for a disk cannot be ended: it is left to process 1.
        os.waitpid(pid, os.WNOHANG)
    if data.endswith(_DONE):
        return data[:-1]
    raise PartError(data[:-1].decode("utf-8", "replace") if data.endswith(_FAILED) else "its process ended early")


def _run_child(function: Callable[[], bytes], writable: int) -> None:
    """Writes what `function` returns and ends the process, whatever happens."""
    try:
        try:
            data = function() + _DONE
        except Exception as failure:
            error = failure if isinstance(failure, PartError) else skel.as_cni_error(failure).msg
            data = str(error).encode("utf-8", "replace") + _FAILED
        view = memoryview(data)
        while view:
            view = view[os.write(writable, view) :]
    finally:
        os._exit(0)


def _read(readable: int, end: float, limit_s: float, max_bytes: int) -> bytes:
    data = bytearray()
    while True:
        ready, _, _ = select.select([readable], [], [], max(end - time.monotonic(), 0))
        if not ready:
            raise PartError(f"not done after {limit_s:g} s")
        chunk = os.read(readable, _CHUNK_BYTES)
        if not chunk:
            return bytes(data)
        data += chunk
        if len(data) > max_bytes:
            raise PartError(f"it has more than {max_bytes >> 20} MiB")
