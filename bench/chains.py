"""Chains: all that a pod's start and end takes, the plugins of a list one after the other, as runtimes run them.

One rule: a figure is the sum of the processes; what the runtime does in between is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from bench.cases import Samples, Subjects, compare, named
from bench.figures import Row
from bench.process import Run
from bench.subject import Config, Kind, Subject
from tests.support.namespaces import Namespace

# Ratios of medians that we want to stay below, of iptables on both sides.
LIMITS_WANTED = {"ADD": 0.4, "DEL": 0.35}
WHOLE_WANTED = {"ADD": 0.35, "DEL": 0.3}
PODMAN_WANTED = {"ADD": 0.3, "DEL": 0.3}
ROUTED_WANTED = {"ADD": 0.35}

Chained = Callable[[Subject, Config], Config]  # a chained plugin's configuration, from the result before it


def host_port(backend: str) -> Chained:
    """Returns portmap with one host port."""
    return lambda subject, result: subject.host_ports(backend, 1, result)


def chain(
    subjects: Subjects,
    rounds: int,
    name: str,
    kind: Kind,
    chained: Sequence[Chained],
    pods: Sequence[Namespace],
    wanted: dict[str, float],
) -> list[Row]:
    """Measures ADD and DEL of an interface plugin with chained plugins behind it."""

    def act(subject: Subject) -> Samples:
        network, pod = subject.network(kind), pods[subject.number]
        configs, added = [network], [subject.run(network["type"], "ADD", network, pod)]
        for plugin in chained:
            configs.append({**plugin(subject, added[-1].outcome.result()), "name": network["name"]})
            added.append(subject.run(configs[-1]["type"], "ADD", configs[-1], pod))
        full = {"prevResult": added[-1].outcome.result()}
        deleted = [subject.run(config["type"], "DEL", {**config, **full}, pod) for config in reversed(configs)]
        return named(name, {"ADD": reduce(_sum, added), "DEL": reduce(_sum, deleted)})

    return compare(subjects, rounds, act, {f"{name} {command}": ratio for command, ratio in wanted.items()})


def _sum(first: Run, second: Run) -> Run:
    return Run(second.outcome, first.ms + second.ms, first.faults + second.faults)
