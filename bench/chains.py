"""Chains: the plugins of a list, run one after another as a runtime runs them when a pod starts and ends.

One rule: a figure is the sum of the plugins' processes; the runtime's own work between them is not included.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from bench.cases import Floor, Samples, Subjects, compare, with_prefix
from bench.figures import Row
from bench.ports import IPV4_ONLY
from bench.process import Run
from bench.subject import Chained, Kind, Subject
from tests.support.namespaces import Namespace


def host_port(backend: str, count: int = 1) -> Chained:
    """Returns portmap with `count` host ports."""
    return lambda subject, result: subject.portmap(backend, count, result)


def chain(
    subjects: Subjects,
    rounds: int,
    name: str,
    kind: Kind,
    chained: Sequence[Chained],
    pods: Sequence[Namespace],
    floor: Floor | None = None,
) -> list[Row]:
    """Measures ADD, CHECK and DEL of an interface plugin followed by chained plugins.

    The pods have no IPv6 address, so CHECK of the reference's portmap fails: its time to the error is measured.
    """

    def measure(subject: Subject) -> Samples:
        network, pod = subject.network(kind), pods[subject.number]
        configs, add_runs = [network], [subject.run(network["type"], "ADD", network, pod)]
        for plugin in chained:
            configs.append({**plugin(subject, add_runs[-1].outcome.result()), "name": network["name"]})
            add_runs.append(subject.run(configs[-1]["type"], "ADD", configs[-1], pod))
        prev_result = {"prevResult": add_runs[-1].outcome.result()}
        calls = [(config["type"], {**config, **prev_result}) for config in configs]
        check_runs = [subject.run(plugin, "CHECK", config, pod, allowed_error=IPV4_ONLY) for plugin, config in calls]
        del_runs = [subject.run(plugin, "DEL", config, pod) for plugin, config in reversed(calls)]
        verbs = {"ADD": add_runs, "CHECK": check_runs, "DEL": del_runs}
        return with_prefix(name, {verb: reduce(_sum, runs) for verb, runs in verbs.items()})

    return compare(subjects, rounds, measure, floor)


def _sum(first: Run, second: Run) -> Run:
    return Run(second.outcome, first.ms + second.ms, first.faults + second.faults)
