"""The whole chain of many pods, so many at a time: wall time per pod.

One rule: the order is libcni's. A pod's plugins follow one another, each ADD gets the result before it, DEL goes
backwards with the last; pods do not wait for each other.
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
from bench.wanted import ratio
from tests.support import namespaces
from tests.support.namespaces import Namespace

PODS = 50
WIDTHS = (1, 8, PODS)

_WAYS = {1: "one after the other"}  # the others are so many at a time


def chains(subjects: Subjects, rounds: int, kind: Kind, backend: str, widths: Sequence[int] = WIDTHS) -> list[Row]:
    """Measures ADD and DEL of the whole chain (masquerading bridge, host port, two limits), in ms per pod."""
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    with cases.networks(subjects, kind), ExitStack() as stack:
        pods = [stack.enter_context(namespaces.temporary()) for _ in range(PODS)]
        for _, subject in cases.turns(subjects, rounds, warm_up=0):
            for width in widths:
                title = f"full chain, {backend}, {_WAYS.get(width, f'{width} at a time')}:"
                attached: list[list[Config]] = [[] for _ in pods]
                up = [_up(subject, kind, backend, pod, number, attached) for number, pod in enumerate(pods)]
                taken[f"{title} ADD", subject.label].append(flows.each_ms(up, width))
                down = [_down(subject, pod, number, attached) for number, pod in enumerate(pods)]
                taken[f"{title} DEL", subject.label].append(flows.each_ms(down, width))
    ours, reference = (subject.label for subject in subjects)
    titles = dict.fromkeys(title for title, _ in taken)
    return [Row(title, figures(taken[title, ours]), figures(taken[title, reference]), ratio(title)) for title in titles]


def _up(subject: Subject, kind: Kind, backend: str, pod: Namespace, number: int, attached: list[list[Config]]) -> Flow:
    """Attaches a pod, and leaves what DEL is to be given."""
    network = subject.network(kind)
    result = json.loads((yield subject.call("bridge", "ADD", network, pod, _id(number))))
    configs = [network]
    for chained in (subject.host_ports(backend, 1, result, skip=number), subject.limits(result)):
        config = {**chained, "name": network["name"], "prevResult": result}
        result = json.loads((yield subject.call(config["type"], "ADD", config, pod, _id(number))))
        configs.append(config)
    attached[number] = [{**config, "prevResult": result} for config in configs]


def _down(subject: Subject, pod: Namespace, number: int, attached: list[list[Config]]) -> Flow:
    for config in reversed(attached[number]):
        yield subject.call(config["type"], "DEL", config, pod, _id(number))


def _id(number: int) -> str:
    return f"{number:064x}"
