"""A node of 110 pods: setting all of them up and tearing all of them down, with every call of kubelet's runtimes.

One rule: a measurement ends with the last process, including a DEL's background processes; a pod's calls run one after
another, its loopback beside its network.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from bench.cases import Subjects, turns, width_text
from bench.figures import Row, figures
from bench.process import Invocation, run, wait_all
from tests.support import kubelet, namespaces
from tests.support.invocation import Outcome
from tests.support.kubelet import CACHE, PODS, Runtime, Sandbox

_WIDTHS = (1, 10)


def pods(subjects: Subjects, rounds: int) -> list[Row]:
    """Measures setting up and tearing down the pods of a node, in ms per pod."""
    (CACHE / "results").mkdir(parents=True, exist_ok=True)
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _, subject in turns(subjects, rounds, warm_up=0):
        runtime = Runtime(subject.bin_dir, subject.node(), _run)
        for width in _WIDTHS:
            with ExitStack() as stack:
                paths = [stack.enter_context(namespaces.temporary()).path for _ in range(PODS)]
                sandboxes = [
                    kubelet.typical_sandbox(number, path, subject.host_port) for number, path in enumerate(paths)
                ]
                samples[f"up, {width_text(width)}", subject.label].append(_ms_per_pod(runtime.set_up, sandboxes, width))
                samples[f"down, {width_text(width)}", subject.label].append(
                    _ms_per_pod(runtime.tear_down, sandboxes, width)
                )
    ours, reference = (subject.label for subject in subjects)
    titles = dict.fromkeys(title for title, _ in samples)
    return [Row(title, figures(samples[title, ours]), figures(samples[title, reference])) for title in titles]


def _ms_per_pod(act: Callable[[Sandbox], object], sandboxes: Sequence[Sandbox], width: int) -> float:
    started = time.perf_counter_ns()
    with ThreadPoolExecutor(width) as threads:
        for _ in threads.map(act, sandboxes):
            pass
    wait_all()
    return (time.perf_counter_ns() - started) / 1e6 / len(sandboxes)


def _run(program: str, env: Mapping[str, str], stdin: bytes) -> Outcome:
    return run(Invocation(program, env, stdin)).outcome
