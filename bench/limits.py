"""Limits: bandwidth on its own.

One rule: before the measurement, the kernel's queueing disciplines prove that ADD limits both directions and DEL none.
"""

from __future__ import annotations

from bench.cases import Samples, Subjects, compare, with_prefix
from bench.figures import Row
from bench.floors import Floors
from bench.ports import Pods
from bench.process import wait_all
from bench.subject import Config, Subject
from tests.support.namespaces import Namespace
from tests.support.processes import output


def bandwidth(subjects: Subjects, rounds: int, name: str, pods: Pods, floors: Floors | None) -> list[Row]:
    """Measures ADD, CHECK and DEL of bandwidth with a limit in each direction.

    The reference's DEL keeps the qdiscs of the host veth, which would make its next ADD fail: they are deleted between
    the rounds.
    """

    def measure(subject: Subject) -> Samples:
        pod, result = pods[subject.label]
        samples = with_prefix(name, subject.cycle("bandwidth", subject.bandwidth(result), pod))
        _delete_qdiscs(result)
        return samples

    for subject in subjects:
        pod, result = pods[subject.label]
        _verify(subject, subject.bandwidth(result), pod)
    first = subjects[0]
    pod, result = pods[first.label]
    floor = floors.replayed(name, first, first.bandwidth(result), pod) if floors else None
    return compare(subjects, rounds, measure, floor)


def _verify(subject: Subject, config: Config, pod: Namespace) -> None:
    for command, expected in (("ADD", 2), ("DEL", 0)):
        subject.run("bandwidth", command, config, pod)
        if command == "DEL":
            _delete_qdiscs(config["prevResult"])
        limits = output("tc", "qdisc").count("qdisc tbf ")
        assert limits == expected, f"{subject.label}: {limits} limits after {command}"
    wait_all()


def _delete_qdiscs(result: Config) -> None:
    """Deletes the qdiscs of the host veth, as the kernel does when the pod ends."""
    host_veth = result["interfaces"][1]["name"]
    for parent in ("root", "ingress"):
        output("tc", "qdisc", "delete", "dev", host_veth, parent, check=False)
