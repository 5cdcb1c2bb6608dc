"""Limits: what bandwidth takes alone.

One rule: before it is timed the kernel is asked whether both directions are limited, and after DEL neither.
"""

from __future__ import annotations

from bench.cases import Samples, Subjects, compare, named
from bench.figures import Row
from bench.floors import Floors
from bench.ports import Pods
from bench.process import settle
from bench.subject import Config, Subject
from tests.support.namespaces import Namespace
from tests.support.processes import output


def alone(subjects: Subjects, rounds: int, name: str, pods: Pods, floors: Floors | None) -> list[Row]:
    """Measures ADD, CHECK and DEL of bandwidth with a limit in each direction.

    The reference's DEL leaves the host's end as it is, and its next ADD would fail: that is tidied up in between.
    """

    def act(subject: Subject) -> Samples:
        pod, result = pods[subject.label]
        done = named(name, subject.cycle("bandwidth", subject.limits(result), pod))
        _tidy(result)
        return done

    for subject in subjects:
        pod, result = pods[subject.label]
        _prove(subject, subject.limits(result), pod)
    first = subjects[0]
    pod, result = pods[first.label]
    floor = floors.replayed(name, first, first.limits(result), pod) if floors else None
    return compare(subjects, rounds, act, floor)


def _prove(subject: Subject, config: Config, pod: Namespace) -> None:
    for command, directions in (("ADD", 2), ("DEL", 0)):
        subject.run("bandwidth", command, config, pod)
        if command == "DEL":
            _tidy(config["prevResult"])
        found = output("tc", "qdisc").count("qdisc tbf ")
        assert found == directions, f"{subject.label}: {found} limits after {command}"
    settle()


def _tidy(result: Config) -> None:
    """Takes the qdiscs off the host's end, as the end of the pod would."""
    own = result["interfaces"][1]["name"]
    for place in ("root", "ingress"):
        output("tc", "qdisc", "delete", "dev", own, place, check=False)
