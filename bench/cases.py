"""What is measured, and in which order.

One rule: the two implementations take turns, the first one alternating, so that whatever else the machine does
disturbs both alike; and nothing is measured while a process of the turn before is still there.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from bench import wanted
from bench.figures import Figures, Row, figures
from bench.flows import alone, each_ms
from bench.process import Run, peak_kib, settle
from bench.subject import CROWD, Config, Kind, Subject
from tests.support import namespaces
from tests.support.namespaces import Namespace

_WARM_UP = 2  # turns that are not counted: files are read into memory, code paths of the kernel are hot
_LOOPBACK: Config = {"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}
FEW, MANY, CROWDED = 10, 10_000, 100_000  # addresses taken
_BATCH = 16  # pods of one measurement of throughput
_PARALLEL = 8  # as many pods at once as a node starts or stops in a hurry
_STATUS_VERSION = "1.1.0"  # the first that has STATUS
_MEMORY_RUNS = 3
_FLOOR = "kernel alone"

Subjects = tuple[Subject, Subject]  # ours, the reference
Samples = dict[str, Run]
Network = Callable[[Subject], Config]
Floor = Callable[[], Samples]  # what the kernel alone takes for the same cases


def version(subjects: Subjects, rounds: int, floor: Floor | None = None) -> list[Row]:
    """Measures VERSION: what starting a plugin costs."""
    return compare(subjects, rounds, lambda subject: {"VERSION": subject.run("bridge", "VERSION", {})}, floor)


def loopback(subjects: Subjects, rounds: int, pod: Namespace) -> list[Row]:
    """Measures loopback's ADD and DEL."""

    def act(subject: Subject) -> Samples:
        taken = {command: subject.run("loopback", command, _LOOPBACK, pod) for command in ("ADD", "DEL")}
        return named("loopback", taken)

    return compare(subjects, rounds, act)


@contextlib.contextmanager
def networks(subjects: Subjects, kind: Kind) -> Iterator[Network]:
    """Yields the bridge network of each implementation, proven to work and with a resident pod while it is open."""
    with contextlib.ExitStack() as stack:
        sandboxes = [
            (stack.enter_context(namespaces.temporary()), stack.enter_context(namespaces.temporary())) for _ in subjects
        ]
        for subject, (resident, _) in zip(subjects, sandboxes, strict=True):
            stack.enter_context(subject.resident(subject.network(kind), resident))
        for subject, (resident, pod) in zip(subjects, sandboxes, strict=True):
            subject.prove(subject.network(kind), pod, resident)
        yield lambda subject: subject.network(kind)


def bridge(
    subjects: Subjects,
    rounds: int,
    name: str,
    network: Network,
    pods: Sequence[Namespace],
    floor: Floor | None = None,
) -> list[Row]:
    """Measures ADD, CHECK and DEL of bridge with host-local."""
    turn = itertools.count()

    def act(subject: Subject) -> Samples:
        return named(name, subject.cycle("bridge", network(subject), pods[next(turn) // 2 % len(pods)]))

    return compare(subjects, rounds, act, floor)


def throughput(subjects: Subjects, rounds: int, network: Network, pods: Sequence[Namespace]) -> list[Row]:
    """Measures many DELs, in sequence and in parallel, until every process that one left behind is gone: ms per DEL.

    What a DEL leaves to a child process is hidden from the runtime but not from the machine; here it counts.
    """
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    titles = {1: "DEL, one after the other", _PARALLEL: f"DEL, {_PARALLEL} at a time"}
    for _, subject in turns(subjects, rounds, warm_up=0):
        for width, title in titles.items():
            calls = []
            for number, pod in enumerate(pods[:_BATCH]):
                added = subject.run("bridge", "ADD", network(subject), pod, f"pod{number}")
                full = {**network(subject), "prevResult": added.outcome.result()}
                calls.append(subject.call("bridge", "DEL", full, pod, f"pod{number}"))
            taken[title, subject.label].append(each_ms([alone(call) for call in calls], width))
    ours, reference = (subject.label for subject in subjects)
    return [Row(title, figures(taken[title, ours]), figures(taken[title, reference])) for title in titles.values()]


def crowd(subjects: Subjects, rounds: int, reserved: int, floor: Floor | None = None) -> list[Row]:
    """Measures host-local's ADD, CHECK and DEL with so many addresses taken."""
    for subject in subjects:
        given = subject.cycle("host-local", subject.crowd(reserved))["ADD"].outcome.result()
        found = ipaddress.IPv4Interface(given["ips"][0]["address"]).ip
        assert found >= CROWD[2 + reserved], f"{subject.label} gave {found}, which is taken"

    def act(subject: Subject) -> Samples:
        return {
            _crowd_title(command, reserved): run
            for command, run in subject.cycle("host-local", subject.crowd(reserved)).items()
        }

    return compare(subjects, rounds, act, floor)


def status(subjects: Subjects, rounds: int) -> list[Row]:
    """Measures host-local's STATUS, of podwire alone where the reference does not know it."""

    def act(subject: Subject) -> Samples:
        if subject not in able:
            return {}
        config = {**subject.crowd(FEW), "cniVersion": _STATUS_VERSION}
        return {f"host-local STATUS, {FEW} taken": subject.run("host-local", "STATUS", config)}

    able = [subject for subject in subjects if knows(subject, _STATUS_VERSION)]
    return compare(subjects, rounds, act)


def knows(subject: Subject, version: str) -> bool:
    """Tells whether the implementation's host-local supports a version of CNI."""
    return version in subject.run("host-local", "VERSION", {}).outcome.json["supportedVersions"]


def memory(subjects: Subjects, network: Network, pod: Namespace) -> list[Row]:
    """Measures the peak of resident memory, in KiB: the largest of some runs."""
    peaks: dict[tuple[str, str], int] = defaultdict(int)
    for subject in subjects:  # on a node at work: what ours keeps of a store is there
        subject.cycle("host-local", subject.crowd(MANY))
    for _, subject in turns(subjects, _MEMORY_RUNS, warm_up=0):
        config, many = network(subject), subject.crowd(MANY)
        for title, call in (
            ("VERSION", subject.call("bridge", "VERSION", {})),
            ("bridge, dual stack ADD", subject.call("bridge", "ADD", config, pod)),
            ("bridge, dual stack DEL", subject.call("bridge", "DEL", config, pod)),
            (_crowd_title("ADD", MANY), subject.call("host-local", "ADD", many)),
            (_crowd_title("DEL", MANY), subject.call("host-local", "DEL", many)),
        ):
            peaks[title, subject.label] = max(peaks[title, subject.label], peak_kib(call))
    ours, reference = (subject.label for subject in subjects)
    titles = dict.fromkeys(title for title, _ in peaks)
    return [Row(title, figures([peaks[title, ours]]), figures([peaks[title, reference]])) for title in titles]


def size(subjects: Subjects) -> list[Row]:
    """Measures the files, in bytes: of one plugin, and of all that a bridge network needs."""
    rows = []
    for title, names in (
        ("bridge", ["bridge"]),
        ("all of them", ["bandwidth", "bridge", "host-local", "loopback", "portmap"]),
    ):
        ours, reference = (figures([subject.bytes_of(*names)]) for subject in subjects)
        rows.append(Row(title, ours, reference))
    return rows


def turns(subjects: Subjects, rounds: int, *, warm_up: int = _WARM_UP) -> Iterator[tuple[bool, Subject]]:
    """Yields the implementations in turn, and whether the turn counts; waits for quiet after each."""
    for number in range(-warm_up, rounds):
        for subject in subjects if number % 2 == 0 else subjects[::-1]:
            yield number >= 0, subject
            settle()


def compare(
    subjects: Subjects, rounds: int, act: Callable[[Subject], Samples], floor: Floor | None = None
) -> list[Row]:
    """Lets both implementations act in turn, and the floor beside them; returns a row for each thing they did."""
    taken: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for counts, subject in turns(subjects, rounds):
        done = [(subject.label, act(subject))]
        if floor and subject is subjects[0]:
            settle()
            done.append((_FLOOR, floor()))
        for label, samples in done:
            for case, run in samples.items():
                if counts:
                    taken[case, label].append(run)
    ours, reference = (subject.label for subject in subjects)
    return [
        Row(
            case,
            _figures(taken[case, ours]),
            _figures(taken[case, reference]) if (case, reference) in taken else None,
            wanted.ratio(case),
            _figures(taken[case, _FLOOR]) if (case, _FLOOR) in taken else None,
        )
        for case in dict.fromkeys(case for case, label in taken if label == ours)
    ]


def _figures(runs: Sequence[Run]) -> Figures:
    return figures([run.ms for run in runs], [run.faults for run in runs])


def _crowd_title(command: str, reserved: int) -> str:
    return f"host-local {command}, {reserved:,} taken"


def named(name: str, taken: Samples) -> Samples:
    """Returns what was taken with `name` before each case."""
    return {f"{name} {command}": run for command, run in taken.items()}
