"""Many pods at the same time: wall time per pod, until the last process has ended.

One rule: the time includes a DEL's background processes; a pod's plugins run one after another, and pods do not
wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from bench.attachment import Attachment, ms_each
from bench.cases import Samples, Subjects, compare, of_kind, places
from bench.figures import Row
from bench.process import Invocation, run, wait_all
from bench.subject import BANDWIDTH, Kind, Subject
from tests.support import kubelet, namespaces
from tests.support.invocation import Outcome
from tests.support.kubelet import CACHE, PODS, Runtime, Sandbox

CROWD = 50
_NODE_WIDTHS = {"sequentially": 1, "10 in parallel": 10}


def chains(subjects: Subjects, rounds: int, kind: Kind, backend: str) -> list[Row]:
    """Measures ADD and DEL of many pods with masquerading bridge, host port and two limits, in ms per pod."""
    with places(subjects, of_kind(kind)), ExitStack() as stack:
        pods = [stack.enter_context(namespaces.temporary()) for _ in range(CROWD)]

        def measure(subject: Subject) -> Samples:
            network = subject.network(kind)
            crowd = [
                Attachment(subject, network, [subject.portmap(backend, skip=number), BANDWIDTH], pod, f"{number:064x}")
                for number, pod in enumerate(pods)
            ]
            title = f"full chain, {backend}, {CROWD} in parallel"
            return {f"{title} {verb}": ms_each([each.calls(verb) for each in crowd], CROWD) for verb in ("ADD", "DEL")}

        return compare(subjects, rounds, measure, warm_up=0)


def node(subjects: Subjects, rounds: int) -> list[Row]:
    """Measures setting up and tearing down the pods of a node with every call of kubelet's runtimes, in ms per pod."""
    (CACHE / "results").mkdir(parents=True, exist_ok=True)

    def measure(subject: Subject) -> Samples:
        runtime = Runtime(subject.bin_dir, subject.node(), _run)
        samples = {}
        for how, width in _NODE_WIDTHS.items():
            with ExitStack() as stack:
                paths = [stack.enter_context(namespaces.temporary()).path for _ in range(PODS)]
                pods = [kubelet.typical_sandbox(number, path, subject.host_port) for number, path in enumerate(paths)]
                for verb, act in (("ADD", runtime.set_up), ("DEL", runtime.tear_down)):
                    samples[f"node of {PODS} pods, {how} {verb}"] = _ms_per_pod(act, pods, width)
        return samples

    return compare(subjects, rounds, measure, warm_up=0)


def _ms_per_pod(act: Callable[[Sandbox], object], pods: Sequence[Sandbox], width: int) -> float:
    started = time.perf_counter_ns()
    with ThreadPoolExecutor(width) as threads:
        for _ in threads.map(act, pods):
            pass
    wait_all()
    return (time.perf_counter_ns() - started) / 1e6 / len(pods)


def _run(program: str, env: Mapping[str, str], stdin: bytes) -> Outcome:
    return run(Invocation(program, env, stdin)).outcome
