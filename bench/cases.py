"""The cases of `make bench`, and how two implementations are compared.

One rule: the implementations alternate, and so does the order in each round, so that other load on the machine affects
both equally; a measurement starts only when every process of the previous one has ended.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bench.attachment import Attachment, run_calls
from bench.figures import Row, figures
from bench.process import Invocation, peak_kib, shared_kib, wait_all
from bench.subject import LARGE_SUBNET, Config, Kind, Subject
from bench.verify import verify
from tests.support import namespaces
from tests.support.namespaces import Namespace

VERBS = ("ADD", "CHECK", "DEL")
MANY, RESERVED = 10_000, (10, 10_000, 100_000)  # reserved addresses
_WARM_UP = 2  # rounds that do not count: they fill the page cache and the processor's caches
_LOOPBACK: Config = {"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}
_MEMORY_RUNS = 3
_AT_ONCE = 20  # processes whose memory is measured together

Subjects = tuple[Subject, Subject]  # podwire, the reference
Samples = Mapping[str, float]  # by case
Chained = Callable[[Subject], Config]


class Place(NamedTuple):
    """Where an implementation attaches pods: its network, a resident pod, and the measured one."""

    network: Config
    resident: Namespace
    pod: Namespace


Places = Mapping[str, Place]  # by the implementation's label


@contextlib.contextmanager
def places(subjects: Subjects, configure: Callable[[Subject], Config]) -> Iterator[Places]:
    """Yields a verified network for each implementation, with a resident pod until the block ends."""
    with contextlib.ExitStack() as stack:
        every = {}
        for subject in subjects:
            resident, pod = (stack.enter_context(namespaces.temporary()) for _ in range(2))
            place = every[subject.label] = Place(configure(subject), resident, pod)
            stack.enter_context(subject.resident(place.network, resident))
            verify(subject, place.network, (), pod, resident)
        yield every


def of_kind(kind: Kind) -> Callable[[Subject], Config]:
    """Returns a function that returns an implementation's network of a kind."""
    return lambda subject: subject.network(kind)


def start(subjects: Subjects, rounds: int) -> list[Row]:
    """Measures VERSION, the cost of starting a plugin, and loopback."""
    with namespaces.temporary() as pod:

        def measure(subject: Subject) -> Samples:
            version = subject.run("bridge", "VERSION", {}).ms
            runs = {f"loopback {verb}": subject.run("loopback", verb, _LOOPBACK, pod).ms for verb in ("ADD", "DEL")}
            return {"VERSION": version, **runs}

        return compare(subjects, rounds, measure)


def attachments(
    subjects: Subjects, rounds: int, name: str, where: Places, chained: Sequence[tuple[str, Chained]] = ()
) -> list[Row]:
    """Measures ADD, CHECK and DEL of an interface plugin and of the `chained` plugins after it.

    The figures are those of each chained plugin, by its title, and the sum of all, by `name`; "" is not reported.
    """
    every = {}
    for subject in subjects:
        network, resident, pod = where[subject.label]
        configs = [configure(subject) for _, configure in chained]
        if configs:
            verify(subject, network, configs, pod, resident)
        every[subject.label] = Attachment(subject, network, configs, pod)
    titles = [title for title, _ in chained]

    def measure(subject: Subject) -> Samples:
        def run(call: Invocation) -> tuple[float, bytes]:
            measured = subject.measure(call)
            return measured.ms, measured.outcome.stdout

        samples: dict[str, float] = {}
        for verb in VERBS:
            times = run_calls(every[subject.label].calls(verb), run)
            in_order = times[::-1] if verb == "DEL" else times
            by_title = (*zip(titles, in_order[1:], strict=True), (name, sum(times)))
            samples |= {f"{title} {verb}": ms for title, ms in by_title if title}
        return samples

    return compare(subjects, rounds, measure)


def host_local(subjects: Subjects, rounds: int, reserved: int) -> list[Row]:
    """Measures host-local's ADD, CHECK and DEL with `reserved` addresses in use."""
    for subject in subjects:
        result = subject.cycle("host-local", subject.reserved_network(reserved))["ADD"].outcome.result()
        address = ipaddress.IPv4Interface(result["ips"][0]["address"]).ip
        assert address >= LARGE_SUBNET[2 + reserved], f"{subject.label} allocated {address}, which is in use"

    def measure(subject: Subject) -> Samples:
        runs = subject.cycle("host-local", subject.reserved_network(reserved))
        return {f"host-local, {reserved:,} in use {verb}": run.ms for verb, run in runs.items()}

    return compare(subjects, rounds, measure)


def memory(subjects: Subjects, where: Places) -> list[Row]:
    """Measures the peak of resident memory in KiB, the largest of several runs."""
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for subject in subjects:  # creates podwire's index, which exists on a node in use
        subject.cycle("host-local", subject.reserved_network(MANY))
    for _, subject in turns(subjects, _MEMORY_RUNS, warm_up=0):
        network, _, pod = where[subject.label]
        many = subject.reserved_network(MANY)
        for title, call in (
            ("VERSION", subject.call("bridge", "VERSION", {})),
            ("bridge, dual stack ADD", subject.call("bridge", "ADD", network, pod)),
            ("bridge, dual stack DEL", subject.call("bridge", "DEL", network, pod)),
            (f"host-local, {MANY:,} in use ADD", subject.call("host-local", "ADD", many)),
            (f"host-local, {MANY:,} in use DEL", subject.call("host-local", "DEL", many)),
        ):
            samples[f"peak: {title}", subject.label].append(peak_kib(call))
    return rows_of(subjects, {key: [max(peaks)] for key, peaks in samples.items()})


def shared_memory(subjects: Subjects, where: Places) -> list[Row]:
    """Measures the memory of each of several processes at the same time, in KiB (PSS: shared pages are divided)."""
    samples = {}
    for subject in subjects:
        network, _, pod = where[subject.label]
        network = {**network, "isDefaultGateway": False}  # a pod has one default route
        ifnames = [f"eth{number}" for number in range(_AT_ONCE)]
        adds = [subject.call("bridge", "ADD", network, pod, ifname=ifname) for ifname in ifnames]
        version = [subject.call("bridge", "VERSION", {})] * _AT_ONCE
        for title, calls in (("VERSION", version), ("bridge, dual stack ADD", adds)):
            samples[f"{_AT_ONCE} at once, each: {title}", subject.label] = [shared_kib(calls)]
        for ifname in ifnames:
            subject.run("bridge", "DEL", network, pod, ifname=ifname)
    return rows_of(subjects, samples)


def size(subjects: Subjects) -> list[Row]:
    """Measures file sizes in bytes: of one plugin, and of all plugins that a bridge network needs."""
    names = {"bridge": ["bridge"], "five plugins": ["bandwidth", "bridge", "host-local", "loopback", "portmap"]}
    samples = {
        (f"files: {title}", subject.label): [subject.bytes_of(*plugins)]
        for title, plugins in names.items()
        for subject in subjects
    }
    return rows_of(subjects, samples)


def turns(subjects: Subjects, rounds: int, *, warm_up: int = _WARM_UP) -> Iterator[tuple[bool, Subject]]:
    """Yields the implementations in alternating order, and whether the turn counts; waits for all processes."""
    for number in range(-warm_up, rounds):
        for subject in subjects if number % 2 == 0 else subjects[::-1]:
            yield number >= 0, subject
            wait_all()


def compare(
    subjects: Subjects, rounds: int, measure: Callable[[Subject], Samples], *, warm_up: int = _WARM_UP
) -> list[Row]:
    """Measures both implementations in alternation; returns a row for each case."""
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for counts, subject in turns(subjects, rounds, warm_up=warm_up):
        for case, value in measure(subject).items():
            if counts:
                samples[case, subject.label].append(value)
    return rows_of(subjects, samples)


def rows_of(subjects: Subjects, samples: Mapping[tuple[str, str], Sequence[float]]) -> list[Row]:
    """Returns the rows of samples by case and label."""
    ours, reference = (subject.label for subject in subjects)
    return [
        Row(case, figures(samples[case, ours]), figures(samples[case, reference]))
        for case in dict.fromkeys(case for case, _ in samples)
    ]
