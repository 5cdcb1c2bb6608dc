"""Full chains of many pods, sequentially and in parallel: wall time per pod.

One rule: the order is libcni's. A pod's plugins run one after another, each ADD gets the previous plugin's result, DEL
runs in reverse order with the last result; pods do not wait for each other.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack

from bench import cases, flows
from bench.cases import Subjects
from bench.figures import Row, figures
from bench.flows import Flow
from bench.subject import Config, Kind, Subject
from bench.targets import target_ratio
from tests.support import namespaces
from tests.support.namespaces import Namespace

PODS = 50
WIDTHS = (1, 8, PODS)


def chains(subjects: Subjects, rounds: int, kind: Kind, backend: str, widths: Sequence[int] = WIDTHS) -> list[Row]:
    """Measures ADD and DEL of the full chain (masquerading bridge, host port, two limits), in ms per pod."""
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    with cases.networks(subjects, kind), ExitStack() as stack:
        pods = [stack.enter_context(namespaces.temporary()) for _ in range(PODS)]
        for _, subject in cases.turns(subjects, rounds, warm_up=0):
            for width in widths:
                title = f"full chain, {backend}, {cases.width_text(width)}:"
                attached: list[list[Config]] = [[] for _ in pods]
                up = [_up(subject, kind, backend, pod, number, attached) for number, pod in enumerate(pods)]
                samples[f"{title} ADD", subject.label].append(flows.ms_per_flow(up, width))
                down = [_down(subject, pod, number, attached) for number, pod in enumerate(pods)]
                samples[f"{title} DEL", subject.label].append(flows.ms_per_flow(down, width))
    ours, reference = (subject.label for subject in subjects)
    return [
        Row(title, figures(samples[title, ours]), figures(samples[title, reference]), target_ratio(title))
        for title in dict.fromkeys(title for title, _ in samples)
    ]


def _up(subject: Subject, kind: Kind, backend: str, pod: Namespace, number: int, attached: list[list[Config]]) -> Flow:
    """Attaches a pod, and stores in `attached[number]` the configurations for its DEL."""
    network = subject.network(kind)
    result = json.loads((yield subject.call("bridge", "ADD", network, pod, _id(number))))
    configs = [network]
    for chained in (subject.portmap(backend, 1, result, skip=number), subject.bandwidth(result)):
        config = {**chained, "name": network["name"], "prevResult": result}
        result = json.loads((yield subject.call(config["type"], "ADD", config, pod, _id(number))))
        configs.append(config)
    attached[number] = [{**config, "prevResult": result} for config in configs]


def _down(subject: Subject, pod: Namespace, number: int, attached: list[list[Config]]) -> Flow:
    for config in reversed(attached[number]):
        yield subject.call(config["type"], "DEL", config, pod, _id(number))


def _id(number: int) -> str:
    return f"{number:064x}"
