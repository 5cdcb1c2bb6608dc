"""Chains: all that a pod's start and end takes, the plugins of a list one after the other, as runtimes run them.

One rule: a figure is the sum of the processes; what the runtime does in between is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from bench.cases import Floor, Samples, Subjects, compare, named
from bench.figures import Row
from bench.ports import IPV4_ONLY
from bench.process import Run
from bench.subject import Chained, Kind, Subject
from tests.support.namespaces import Namespace


def host_port(backend: str, count: int = 1) -> Chained:
    """Returns portmap with so many host ports."""
    return lambda subject, result: subject.host_ports(backend, count, result)


def chain(
    subjects: Subjects,
    rounds: int,
    name: str,
    kind: Kind,
    chained: Sequence[Chained],
    pods: Sequence[Namespace],
    floor: Floor | None = None,
) -> list[Row]:
    """Measures ADD, CHECK and DEL of an interface plugin with chained plugins behind it.

    The pods have no IPv6 address, for which CHECK of the reference's portmap fails: it is measured to its answer.
    """

    def act(subject: Subject) -> Samples:
        network, pod = subject.network(kind), pods[subject.number]
        configs, added = [network], [subject.run(network["type"], "ADD", network, pod)]
        for plugin in chained:
            configs.append({**plugin(subject, added[-1].outcome.result()), "name": network["name"]})
            added.append(subject.run(configs[-1]["type"], "ADD", configs[-1], pod))
        full = {"prevResult": added[-1].outcome.result()}
        known = [(config["type"], {**config, **full}) for config in configs]
        checked = [subject.run(plugin, "CHECK", config, pod, may_say=IPV4_ONLY) for plugin, config in known]
        deleted = [subject.run(plugin, "DEL", config, pod) for plugin, config in reversed(known)]
        verbs = {"ADD": added, "CHECK": checked, "DEL": deleted}
        return named(name, {verb: reduce(_sum, runs) for verb, runs in verbs.items()})

    return compare(subjects, rounds, act, floor)


def _sum(first: Run, second: Run) -> Run:
    return Run(second.outcome, first.ms + second.ms, first.faults + second.faults)
