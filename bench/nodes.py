"""A node of 110 pods: all of them up and all of them down, with every call that kubelet's runtimes make for them.

One rule: it ends with the last process, also what a verb has left to a child; a pod's calls follow one another, its
loopback beside its network.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from bench.cases import Subjects, turns
from bench.figures import Row, figures
from bench.process import Invocation, run, settle
from tests.support import kubelet, namespaces
from tests.support.invocation import Outcome
from tests.support.kubelet import CACHE, PODS, Runtime, Sandbox

_TITLES = {1: "one after the other", 10: "10 at a time"}


def pods(subjects: Subjects, rounds: int) -> list[Row]:
    """Measures the pods of a node up and down, in ms per pod."""
    (CACHE / "results").mkdir(parents=True, exist_ok=True)
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _, subject in turns(subjects, rounds, warm_up=0):
        runtime = Runtime(subject.bin_dir, subject.node(), _run)
        for width, title in _TITLES.items():
            with ExitStack() as stack:
                paths = [stack.enter_context(namespaces.temporary()).path for _ in range(PODS)]
                sandboxes = [
                    kubelet.typical_sandbox(number, path, subject.host_port) for number, path in enumerate(paths)
                ]
                taken[f"up, {title}", subject.label].append(_each_ms(runtime.set_up, sandboxes, width))
                taken[f"down, {title}", subject.label].append(_each_ms(runtime.tear_down, sandboxes, width))
    ours, reference = (subject.label for subject in subjects)
    titles = dict.fromkeys(title for title, _ in taken)
    return [Row(title, figures(taken[title, ours]), figures(taken[title, reference])) for title in titles]


def _each_ms(act: Callable[[Sandbox], object], sandboxes: Sequence[Sandbox], width: int) -> float:
    started = time.perf_counter_ns()
    with ThreadPoolExecutor(width) as threads:
        for _ in threads.map(act, sandboxes):
            pass
    settle()
    return (time.perf_counter_ns() - started) / 1e6 / len(sandboxes)


def _run(program: str, env: Mapping[str, str], stdin: bytes) -> Outcome:
    return run(Invocation(program, env, stdin)).outcome
