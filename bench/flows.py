"""Flows: several things that happen at the same time, each a sequence of calls, timed until all is quiet.

One rule: it ends with the last process, also what a verb has left to a child and hidden from the runtime; and it is
one process that drives them all, for each implementation the same, so that its own work is small beside theirs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence

from bench.process import Invocation, start

Flow = Generator[Invocation, bytes, None]  # each call is answered with what it wrote on stdout

_MOST_BYTES = 65536


def alone(call: Invocation) -> Flow:
    """Returns the flow of a single call."""
    yield call


def each_ms(flows: Sequence[Flow], width: int) -> float:
    """Runs all flows, at most `width` at a time, until the last orphan is gone; the wall time divided by their number.

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
                _begin(flow, next(flow), log, running)
            pid, status = os.waitpid(-1, 0)
            if pid not in running:
                continue
            flow, answer = running.pop(pid)
            said = _text(answer)
            os.close(answer)
            if status != 0:
                raise RuntimeError(f"a plugin failed: {(said + _text(log)).decode(errors='replace')}")
            try:
                call = flow.send(said)
            except StopIteration:
                continue
            _begin(flow, call, log, running)
    except ChildProcessError:
        return (time.perf_counter_ns() - started) / 1e6 / len(flows)
    finally:
        os.close(log)


def _begin(flow: Flow, call: Invocation, log: int, running: dict[int, tuple[Flow, int]]) -> None:
    answer = os.memfd_create("stdout")
    running[start(call, answer, log)] = flow, answer


def _text(file: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    return os.read(file, _MOST_BYTES)
