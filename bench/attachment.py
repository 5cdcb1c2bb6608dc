"""An attachment: the calls of a list's plugins, as a runtime makes them when a pod starts and ends.

One rule: the order is libcni's. Each ADD gets the previous plugin's result; DEL runs in reverse order.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from bench.process import Invocation, start
from bench.subject import CONTAINER_ID, Config, Subject
from tests.support.namespaces import Namespace

Calls = Generator[Invocation, bytes, None]  # yields calls one after another, and receives the stdout of each
Measured = TypeVar("Measured")

_MAX_BYTES = 65536


class Attachment:
    """A pod on `network`, whose interface plugin is followed by the `chained` plugins."""

    def __init__(
        self,
        subject: Subject,
        network: Config,
        chained: Sequence[Config],
        pod: Namespace,
        container_id: str = CONTAINER_ID,
    ) -> None:
        common = {key: network[key] for key in ("cniVersion", "name")}
        self.result: Config = {}
        self._configs = [network, *({**common, **plugin} for plugin in chained)]
        self._subject, self._pod, self._container_id = subject, pod, container_id

    def calls(self, verb: str) -> Calls:
        """Yields the calls of a verb; ADD must be the first."""
        if verb == "ADD":
            self.result = {}
        for config in self._configs[::-1] if verb == "DEL" else self._configs:
            with_result = {**config, "prevResult": self.result} if self.result else config
            stdout = yield self._subject.call(config["type"], verb, with_result, self._pod, self._container_id)
            if verb == "ADD":
                self.result = json.loads(stdout)


def run_calls(calls: Calls, run: Callable[[Invocation], tuple[Measured, bytes]]) -> list[Measured]:
    """Runs calls with `run`, which returns its measurement and the stdout of a call; returns the measurements."""
    measurements: list[Measured] = []
    try:
        call = next(calls)
        while True:
            measured, stdout = run(call)
            measurements.append(measured)
            call = calls.send(stdout)
    except StopIteration:
        return measurements


def ms_each(several: Sequence[Calls], width: int) -> float:
    """Runs the calls of pods, at most `width` pods in parallel, until the last process has ended; returns ms per pod.

    The time includes background processes, which the runtime does not see. One process drives all calls, so its work is
    small beside theirs. Raises RuntimeError when a call fails.
    """
    log = os.memfd_create("log")
    running: dict[int, tuple[Calls, int]] = {}
    waiting = list(reversed(several))
    started = time.perf_counter_ns()
    try:
        while True:
            while waiting and len(running) < width:
                calls = waiting.pop()
                _start(calls, next(calls), log, running)
            pid, status = os.waitpid(-1, 0)
            if pid not in running:
                continue
            calls, file = running.pop(pid)
            stdout = _text(file)
            os.close(file)
            if status != 0:
                raise RuntimeError(f"a plugin failed: {(stdout + _text(log)).decode(errors='replace')}")
            try:
                call = calls.send(stdout)
            except StopIteration:
                continue
            _start(calls, call, log, running)
    except ChildProcessError:
        return (time.perf_counter_ns() - started) / 1e6 / len(several)
    finally:
        os.close(log)


def _start(calls: Calls, call: Invocation, log: int, running: dict[int, tuple[Calls, int]]) -> None:
    file = os.memfd_create("stdout")
    running[start(call, file, log)] = calls, file


def _text(file: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    return os.read(file, _MAX_BYTES)
