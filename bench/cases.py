"""The cases of bridge, loopback and host-local, and how two implementations are compared.

One rule: the implementations alternate, and so does the order in each round, so that other load on the machine affects
both equally; a measurement starts only when every process of the previous one has ended.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from bench.figures import Figures, Row, figures
from bench.flows import ms_per_flow, single_call
from bench.process import Run, peak_kib, shared_kib, wait_all
from bench.subject import LARGE_SUBNET, Config, Kind, Subject
from bench.targets import target_ratio
from tests.support import namespaces
from tests.support.namespaces import Namespace

_WARM_UP = 2  # rounds that do not count: they fill the page cache and the processor's caches
_LOOPBACK: Config = {"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}
FEW, MANY, VERY_MANY = 10, 10_000, 100_000  # reserved addresses
_BATCH = 16  # pods per measurement of throughput
_PARALLEL = 8  # DELs in parallel, as when a node stops many pods at once
_STATUS_VERSION = "1.1.0"  # the first CNI version with STATUS
_MEMORY_RUNS = 3
_AT_ONCE = 20  # processes whose memory is measured together
_FLOOR = "kernel alone"

Subjects = tuple[Subject, Subject]  # podwire, the reference
Samples = dict[str, Run]  # by case
Network = Callable[[Subject], Config]
Floor = Callable[[], Samples]  # measures the same cases with the kernel's work alone


def version(subjects: Subjects, rounds: int, floor: Floor | None = None) -> list[Row]:
    """Measures VERSION: the cost of starting a plugin."""
    return compare(subjects, rounds, lambda subject: {"VERSION": subject.run("bridge", "VERSION", {})}, floor)


def loopback(subjects: Subjects, rounds: int, pod: Namespace) -> list[Row]:
    """Measures loopback's ADD and DEL."""

    def measure(subject: Subject) -> Samples:
        samples = {command: subject.run("loopback", command, _LOOPBACK, pod) for command in ("ADD", "DEL")}
        return with_prefix("loopback", samples)

    return compare(subjects, rounds, measure)


@contextlib.contextmanager
def networks(subjects: Subjects, kind: Kind) -> Iterator[Network]:
    """Yields the bridge network of each implementation, verified, and with a resident pod until the block ends."""
    with contextlib.ExitStack() as stack:
        sandboxes = [
            (stack.enter_context(namespaces.temporary()), stack.enter_context(namespaces.temporary())) for _ in subjects
        ]
        for subject, (resident, _) in zip(subjects, sandboxes, strict=True):
            stack.enter_context(subject.resident(subject.network(kind), resident))
        for subject, (resident, pod) in zip(subjects, sandboxes, strict=True):
            subject.verify(subject.network(kind), pod, resident)
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

    def measure(subject: Subject) -> Samples:
        return with_prefix(name, subject.cycle("bridge", network(subject), pods[next(turn) // 2 % len(pods)]))

    return compare(subjects, rounds, measure, floor)


def throughput(subjects: Subjects, rounds: int, network: Network, pods: Sequence[Namespace]) -> list[Row]:
    """Measures many DELs, sequentially and in parallel, until the last background process has ended: ms per DEL.

    The runtime does not wait for the background process of a DEL, but the machine does its work: here it counts.
    """
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    titles = {width: f"DEL, {width_text(width)}" for width in (1, _PARALLEL)}
    for _, subject in turns(subjects, rounds, warm_up=0):
        for width, title in titles.items():
            calls = []
            for number, pod in enumerate(pods[:_BATCH]):
                add_run = subject.run("bridge", "ADD", network(subject), pod, f"pod{number}")
                config = {**network(subject), "prevResult": add_run.outcome.result()}
                calls.append(subject.call("bridge", "DEL", config, pod, f"pod{number}"))
            samples[title, subject.label].append(ms_per_flow([single_call(call) for call in calls], width))
    ours, reference = (subject.label for subject in subjects)
    return [Row(title, figures(samples[title, ours]), figures(samples[title, reference])) for title in titles.values()]


def width_text(width: int) -> str:
    """Returns the part of a title that says how many calls run in parallel."""
    return "sequentially" if width == 1 else f"{width} in parallel"


def host_local(subjects: Subjects, rounds: int, reserved: int, floor: Floor | None = None) -> list[Row]:
    """Measures host-local's ADD, CHECK and DEL with `reserved` addresses in use."""
    for subject in subjects:
        result = subject.cycle("host-local", subject.reserved_network(reserved))["ADD"].outcome.result()
        address = ipaddress.IPv4Interface(result["ips"][0]["address"]).ip
        assert address >= LARGE_SUBNET[2 + reserved], f"{subject.label} allocated {address}, which is in use"

    def measure(subject: Subject) -> Samples:
        return {
            _host_local_title(command, reserved): run
            for command, run in subject.cycle("host-local", subject.reserved_network(reserved)).items()
        }

    return compare(subjects, rounds, measure, floor)


def status(subjects: Subjects, rounds: int) -> list[Row]:
    """Measures host-local's STATUS, of podwire alone if the reference does not support it."""

    def measure(subject: Subject) -> Samples:
        if subject not in supporting:
            return {}
        config = {**subject.reserved_network(FEW), "cniVersion": _STATUS_VERSION}
        return {_host_local_title("STATUS", FEW): subject.run("host-local", "STATUS", config)}

    supporting = [subject for subject in subjects if supports(subject, _STATUS_VERSION)]
    return compare(subjects, rounds, measure)


def supports(subject: Subject, version: str) -> bool:
    """Returns whether the implementation's host-local supports a version of CNI."""
    return version in subject.run("host-local", "VERSION", {}).outcome.json["supportedVersions"]


def memory(subjects: Subjects, network: Network, pod: Namespace) -> list[Row]:
    """Measures the peak of resident memory in KiB, the largest of several runs."""
    peaks: dict[tuple[str, str], int] = defaultdict(int)
    for subject in subjects:  # creates podwire's index, which exists on a node in use
        subject.cycle("host-local", subject.reserved_network(MANY))
    for _, subject in turns(subjects, _MEMORY_RUNS, warm_up=0):
        config, many = network(subject), subject.reserved_network(MANY)
        for title, call in (
            ("VERSION", subject.call("bridge", "VERSION", {})),
            ("bridge, dual stack ADD", subject.call("bridge", "ADD", config, pod)),
            ("bridge, dual stack DEL", subject.call("bridge", "DEL", config, pod)),
            (_host_local_title("ADD", MANY), subject.call("host-local", "ADD", many)),
            (_host_local_title("DEL", MANY), subject.call("host-local", "DEL", many)),
        ):
            peaks[title, subject.label] = max(peaks[title, subject.label], peak_kib(call))
    ours, reference = (subject.label for subject in subjects)
    titles = dict.fromkeys(title for title, _ in peaks)
    return [Row(title, figures([peaks[title, ours]]), figures([peaks[title, reference]])) for title in titles]


def shared_memory(subjects: Subjects, network: Network, pod: Namespace) -> list[Row]:
    """Measures the memory of each of several processes at the same time, in KiB (PSS: shared pages are divided)."""
    sizes: dict[tuple[str, str], float] = {}
    for subject in subjects:
        config = {**network(subject), "isDefaultGateway": False}  # a pod has one default route
        ifnames = [f"eth{number}" for number in range(_AT_ONCE)]
        adds = [subject.call("bridge", "ADD", config, pod, ifname=ifname) for ifname in ifnames]
        sizes["VERSION", subject.label] = shared_kib([subject.call("bridge", "VERSION", {})] * _AT_ONCE)
        sizes["bridge, dual stack ADD", subject.label] = shared_kib(adds)
        for ifname in ifnames:
            subject.run("bridge", "DEL", config, pod, ifname=ifname)
    ours, reference = (subject.label for subject in subjects)
    return [
        Row(f"{title}, {_AT_ONCE} at once", figures([sizes[title, ours]]), figures([sizes[title, reference]]))
        for title, label in sizes
        if label == ours
    ]


def size(subjects: Subjects) -> list[Row]:
    """Measures file sizes in bytes: of one plugin, and of all plugins that a bridge network needs."""
    rows = []
    for title, names in (
        ("bridge", ["bridge"]),
        ("all of them", ["bandwidth", "bridge", "host-local", "loopback", "portmap"]),
    ):
        ours, reference = (figures([subject.bytes_of(*names)]) for subject in subjects)
        rows.append(Row(title, ours, reference))
    return rows


def turns(subjects: Subjects, rounds: int, *, warm_up: int = _WARM_UP) -> Iterator[tuple[bool, Subject]]:
    """Yields the implementations in alternating order, and whether the turn counts; waits for all processes."""
    for number in range(-warm_up, rounds):
        for subject in subjects if number % 2 == 0 else subjects[::-1]:
            yield number >= 0, subject
            wait_all()


def compare(
    subjects: Subjects, rounds: int, measure: Callable[[Subject], Samples], floor: Floor | None = None
) -> list[Row]:
    """Measures both implementations in alternation, and the floor after podwire; returns a row for each case."""
    runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for counts, subject in turns(subjects, rounds):
        measured = [(subject.label, measure(subject))]
        if floor and subject is subjects[0]:
            wait_all()
            measured.append((_FLOOR, floor()))
        for label, samples in measured:
            for case, run in samples.items():
                if counts:
                    runs[case, label].append(run)
    ours, reference = (subject.label for subject in subjects)
    return [
        Row(
            case,
            _figures(runs[case, ours]),
            _figures(runs[case, reference]) if (case, reference) in runs else None,
            target_ratio(case),
            _figures(runs[case, _FLOOR]) if (case, _FLOOR) in runs else None,
        )
        for case in dict.fromkeys(case for case, label in runs if label == ours)
    ]


def _figures(runs: Sequence[Run]) -> Figures:
    return figures([run.ms for run in runs], [run.faults for run in runs])


def _host_local_title(command: str, reserved: int) -> str:
    return f"host-local {command}, {reserved:,} in use"


def with_prefix(name: str, samples: Samples) -> Samples:
    """Returns the samples with `name` before each case."""
    return {f"{name} {command}": run for command, run in samples.items()}
