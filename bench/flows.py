"""Flows: sequences of calls that run in parallel, timed until the last process has ended.

One rule: the time includes a verb's background processes, which the runtime does not see. A single process drives all
flows, in the same way for both implementations, so its own work is small beside theirs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence

from bench.process import Invocation, start

Flow = Generator[Invocation, bytes, None]  # yields calls, and receives the stdout of each

_MAX_BYTES = 65536


def single_call(call: Invocation) -> Flow:
    """Yields one call."""
    yield call


def ms_per_flow(flows: Sequence[Flow], width: int) -> float:
    """Runs all flows, at most `width` in parallel, until the last orphan has ended; returns wall time / flows, in ms.

    Raises RuntimeError when a call fails.
    """
    log = os.memfd_create("log")
    running: dict[int, tuple[Flow, int]] = {}
    waiting = list(reversed(flows))
    started = time.perf_counter_ns()
    try:
        while True:
            while waiting and len(running) < width:
                flow = waiting.pop()
                _start(flow, next(flow), log, running)
            pid, status = os.waitpid(-1, 0)
            if pid not in running:
                continue
            flow, file = running.pop(pid)
            stdout = _text(file)
            os.close(file)
            if status != 0:
                raise RuntimeError(f"a plugin failed: {(stdout + _text(log)).decode(errors='replace')}")
            try:
                call = flow.send(stdout)
            except StopIteration:
                continue
            _start(flow, call, log, running)
    except ChildProcessError:
        return (time.perf_counter_ns() - started) / 1e6 / len(flows)
    finally:
        os.close(log)


def _start(flow: Flow, call: Invocation, log: int, running: dict[int, tuple[Flow, int]]) -> None:
    file = os.memfd_create("stdout")
    running[start(call, file, log)] = flow, file


def _text(file: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    return os.read(file, _MAX_BYTES)
