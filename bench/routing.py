"""Plugins that change the routing of an interface, sbr and vrf; bridge's ADD before and its DEL after are not measured.

One rule: every round begins with a new interface, since DEL does not return routes to table main.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.cases import Network, Samples, Subjects, compare, with_prefix
from bench.figures import Row
from bench.subject import Chained, Subject
from tests.support import kernels
from tests.support.namespaces import Namespace


def chained(subjects: Subjects, rounds: int, network: Network, pods: Sequence[Namespace]) -> list[Row]:
    """Measures sbr, and vrf if this kernel has it."""
    rows = sbr(subjects, rounds, "sbr:", network, pods)
    if not kernels.lacking(["vrf"]):
        rows += _measure(subjects, rounds, "vrf:", Subject.vrf, network, pods)
    return rows


def sbr(subjects: Subjects, rounds: int, name: str, network: Network, pods: Sequence[Namespace]) -> list[Row]:
    """Measures ADD, CHECK and DEL of sbr for an interface of a bridge network; CHECK of the reference does nothing."""
    return _measure(subjects, rounds, name, Subject.sbr, network, pods)


def _measure(
    subjects: Subjects, rounds: int, name: str, configure: Chained, network: Network, pods: Sequence[Namespace]
) -> list[Row]:
    def measure(subject: Subject) -> Samples:
        pod, bridge = pods[subject.number], network(subject)
        result = subject.run("bridge", "ADD", bridge, pod).outcome.result()
        config = configure(subject, result)
        samples = with_prefix(name, subject.cycle(config["type"], config, pod))
        assert "lookup" not in pod.ip("rule", "show", "pref", "32765"), f"{subject.label}: a rule remains"
        subject.run("bridge", "DEL", {**bridge, "prevResult": result}, pod)
        return samples

    return compare(subjects, rounds, measure)
