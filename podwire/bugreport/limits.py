"""Runs a function in a child process for a limited time, so that a file server that hangs cannot stop the caller.

The child has a copy of this process's memory. Only its bytes come back.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable

from cni import skel
from process import signals

_CHUNK_BYTES = 1 << 16
_GRACE_S = 1.5  # that each signal gets
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
        data = _read(readable, limit_s, max_bytes)
    except PartError:
        _end(pid, readable)
        raise
    finally:
        os.close(readable)
    os.waitpid(pid, 0)
    if data.endswith(_DONE):
        return data[:-1]
    raise PartError(data[:-1].decode("utf-8", "replace") if data.endswith(_FAILED) else "its process ended early")


def _run_child(function: Callable[[], bytes], writable: int) -> None:
    """Writes what `function` returns and ends the process, whatever happens."""
    try:
        signals.block()  # SIGTERM then ends the programs that it waits for, too
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


def _end(pid: int, readable: int) -> None:
    """Ends a child that takes too long, with the programs that it runs."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.kill(pid, number)
        try:
            _read(readable, _GRACE_S, sys.maxsize)
        except PartError:
            continue  # after SIGKILL: it waits for a disk, and process 1 inherits it
        os.waitpid(pid, 0)
        return


def _read(readable: int, limit_s: float, max_bytes: int) -> bytes:
    """Returns all data up to the end; raises PartError."""
    end = time.monotonic() + limit_s
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
