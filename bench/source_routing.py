"""Source based routing: sbr on its own, after a bridge network's ADD and before its DEL, which are not measured.

One rule: every round begins with a new interface, since sbr's DEL does not return routes to table main.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.cases import Network, Samples, Subjects, compare, with_prefix
from bench.figures import Row
from bench.subject import Subject
from tests.support.namespaces import Namespace


def sbr(subjects: Subjects, rounds: int, name: str, network: Network, pods: Sequence[Namespace]) -> list[Row]:
    """Measures ADD, CHECK and DEL of sbr for an interface of a bridge network; CHECK of the reference does nothing."""

    def measure(subject: Subject) -> Samples:
        pod, bridge = pods[subject.number], network(subject)
        result = subject.run("bridge", "ADD", bridge, pod).outcome.result()
        samples = with_prefix(name, subject.cycle("sbr", subject.sbr(result), pod))
        assert "lookup" not in pod.ip("rule", "show", "pref", "32765"), f"{subject.label}: a rule remains"
        subject.run("bridge", "DEL", {**bridge, "prevResult": result}, pod)
        return samples

    return compare(subjects, rounds, measure)
