"""The parts of `make bench`, and the main rows for `make bench-quick`.

One rule: a part is measured and yielded before the next one begins, so that an interrupted run has printed its results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench import cases, chains, cold, extremes, interfaces, limits, nodes, parallel, ports, routing
from bench.cases import Subjects
from bench.figures import SIZE_UNITS, Row, growth_table, size_table, timing_table
from bench.floors import Floors
from bench.subject import DUAL, IPTABLES, NFTABLES, ROUTED, SINGLE, Chained, Kind, Subject
from tests.support import namespaces
from tests.support.kubelet import PODS
from tests.support.namespaces import Namespace

_BACKENDS = ((IPTABLES, "iptables"), (NFTABLES, "nftables"))
_PODS = 16
_FEWEST = 3  # rounds


class Part(NamedTuple):
    """Rows of one unit: `group` is their key in JSON ("ms", "memory_kib" ...), `note` is printed below the table."""

    group: str
    title: str
    rows: Sequence[Row]
    note: str = ""

    def text(self, reference: str = "reference") -> str:
        """Returns the table as text; `reference` is the head of the reference's column."""
        shown = (
            size_table(*SIZE_UNITS[self.group], self.rows, reference)
            if self.group in SIZE_UNITS
            else timing_table(self.rows, reference=reference)
        )
        return f"{shown}\n\n{self.note}" if self.note else shown


def measure(subjects: Subjects, rounds: int, floors: Floors | None) -> Iterator[Part]:
    """Measures everything; slow cases and cases that vary little have fewer rounds."""
    few, fewer, fewest = max(3, rounds // 5), max(2, rounds // 20), max(2, rounds // 40)
    with _pods() as pods:
        start = cases.version(subjects, rounds, floors.version if floors else None)
        yield Part("ms", "A call as the runtime sees it", start + cases.loopback(subjects, rounds, pods[0]))
        with cases.networks(subjects, SINGLE) as network:
            floor = floors.bridge("bridge", network(subjects[0]), pods[-1]) if floors else None
            yield Part("ms", "bridge with host-local", cases.bridge(subjects, rounds, "bridge", network, pods, floor))
            routed = extremes.with_routes(network)
            yield Part("ms", "1,000 routes", cases.bridge(subjects, fewer, "bridge, 1,000 routes", routed, pods))
            batches = cases.throughput(subjects, fewer, network, pods)
            yield Part("ms", "DEL until its last background process has ended, each", batches)
            yield from _other_plugins(subjects, rounds, network, pods)
            first = cold.first_calls(subjects, few, network, pods[0])
            yield Part("ms", "The first call, with the plugin's file not in the page cache", first)
        with cases.networks(subjects, DUAL) as network:
            yield Part("ms", "Dual stack", cases.bridge(subjects, rounds, "bridge, dual stack", network, pods))
            rows = routing.sbr(subjects, rounds, "sbr, dual stack:", network, pods)
            yield Part("ms", "sbr, dual stack", rows)
            yield Part(
                "memory_kib", "Peak of resident memory, the largest process", cases.memory(subjects, network, pods[0])
            )
            rows = cases.shared_memory(subjects, network, pods[0])
            yield Part("shared_kib", "Memory of each process (PSS), when it writes its result", rows)
        yield _masqueraded(subjects, rounds, pods, floors)
        counts = ((1, "1 host port", rounds), (10, "10 host ports", few), (100, "100 host ports", fewer))
        yield _chained_alone(subjects, rounds, counts, floors)
        for kind, backend in _BACKENDS:
            yield _chains(subjects, rounds, kind, backend, _lists(backend), pods, floors)
        rows = chains.chain(subjects, rounds, "masquerading ptp, iptables:", ROUTED, [], pods)
        yield Part("ms", "ptp", rows)
    for kind, backend in _BACKENDS:
        yield _parallel(subjects, fewest, kind, backend, parallel.WIDTHS)
    yield Part("pod_ms", f"A node of {PODS} pods as kubelet starts and stops them, each", nodes.pods(subjects, fewest))
    yield _host_local(subjects, few, floors)
    yield Part("size_bytes", "Files; hard links to one file count once", cases.size(subjects))


def measure_other_plugins(subjects: Subjects, rounds: int, _floors: Floors | None) -> Iterator[Part]:
    """Measures plugins that create no host veth, sbr and vrf, as far as this kernel supports them."""
    with _pods() as pods, cases.networks(subjects, SINGLE) as network:
        yield from _other_plugins(subjects, rounds, network, pods)


def measure_main(subjects: Subjects, rounds: int, floors: Floors | None) -> Iterator[Part]:
    """Measures the main rows only."""
    few = max(3, rounds // 2)
    with _pods() as pods:
        yield Part(
            "ms", "A call as the runtime sees it", cases.version(subjects, rounds, floors.version if floors else None)
        )
        for kind, title in ((SINGLE, "bridge"), (DUAL, "bridge, dual stack")):
            with cases.networks(subjects, kind) as network:
                with_floor = floors if kind is SINGLE else None
                floor = with_floor.bridge(title, network(subjects[0]), pods[-1]) if with_floor else None
                yield Part("ms", title, cases.bridge(subjects, rounds, title, network, pods, floor))
        yield _masqueraded(subjects, rounds, pods, floors)
        yield _chained_alone(subjects, rounds, ((1, "1 host port", rounds), (100, "100 host ports", _FEWEST)), floors)
        for kind, backend in _BACKENDS:
            yield _chains(subjects, few, kind, backend, _lists(backend)[-2:], pods, floors)
    yield _parallel(subjects, 1, IPTABLES, "iptables", (parallel.PODS,))


@contextlib.contextmanager
def _pods() -> Iterator[list[Namespace]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(namespaces.temporary()) for _ in range(_PODS)]


def _other_plugins(
    subjects: Subjects, rounds: int, network: cases.Network, pods: Sequence[Namespace]
) -> Iterator[Part]:
    rows = interfaces.all_plugins(subjects, rounds, network, pods)
    yield Part("ms", "Other interfaces with host-local", rows)
    yield Part("ms", "After bridge", routing.chained(subjects, rounds, network, pods))


def _masqueraded(subjects: Subjects, rounds: int, pods: Sequence[Namespace], floors: Floors | None) -> Part:
    rows = []
    for kind, backend in _BACKENDS:
        name = f"masquerade, {backend}"
        with cases.networks(subjects, kind) as network:
            floor = floors.chain(name, subjects[0], network(subjects[0]), [], pods[-2:]) if floors else None
            rows += cases.bridge(subjects, rounds, name, network, pods, floor)
    return Part("ms", "Masquerading; the reference plugins before 1.7 have iptables only", rows)


def _chained_alone(
    subjects: Subjects, rounds: int, counts: Sequence[tuple[int, str, int]], floors: Floors | None
) -> Part:
    """Measures portmap with each of `counts` (host ports, title, rounds), and bandwidth."""
    with ports.attached(subjects) as attached:
        rows = [
            row
            for count, title, port_rounds in counts
            for _, backend in _BACKENDS
            for row in ports.portmap(subjects, port_rounds, f"{title}, {backend}:", backend, count, attached, floors)
        ]
        return Part(
            "ms", "Chained plugins alone", [*rows, *limits.bandwidth(subjects, rounds, "2 limits:", attached, floors)]
        )


def _lists(backend: str) -> list[tuple[str, Sequence[Chained]]]:
    """Returns the chained plugins after a masquerading bridge; the last two are the full chain and podman's default."""
    port = chains.host_port(backend)
    return [
        ("1 host port", [port]),
        ("2 limits", [Subject.bandwidth]),
        ("1 host port, 2 limits", [port, Subject.bandwidth]),
        ("1 host port, firewall, tuning", [port, Subject.firewall, Subject.tuning]),
    ]


def _chains(
    subjects: Subjects,
    rounds: int,
    kind: Kind,
    backend: str,
    lists: Sequence[tuple[str, Sequence[Chained]]],
    pods: Sequence[Namespace],
    floors: Floors | None,
) -> Part:
    rows: list[Row] = []
    for title, plugins in lists:
        name, network = f"masquerading bridge, {title}, {backend}:", subjects[0].network(kind)
        floor = floors.chain(name, subjects[0], network, plugins, pods[-2:]) if floors else None
        rows += chains.chain(subjects, rounds, name, kind, plugins, pods, floor)
    return Part("ms", f"A bridge and chained plugins, {backend}", rows)


def _parallel(subjects: Subjects, rounds: int, kind: Kind, backend: str, widths: Sequence[int]) -> Part:
    title = f"{parallel.PODS} pods, the full chain, {backend}, until the last process has ended, each"
    return Part("parallel_ms", title, parallel.chains(subjects, rounds, kind, backend, widths))


def _host_local(subjects: Subjects, rounds: int, floors: Floors | None) -> Part:
    floor = floors.leases(f"host-local {{}}, {cases.FEW} in use") if floors else None
    few = cases.host_local(subjects, rounds, cases.FEW, floor)
    status = cases.status(subjects, rounds)
    many = cases.host_local(subjects, rounds, cases.MANY)
    very_many = cases.host_local(subjects, max(2, rounds // 4), cases.VERY_MANY)
    growth = zip(("ADD", "CHECK", "DEL"), few, many, strict=True)
    largest = extremes.verbs(subjects, max(2, rounds // 4))
    return Part("ms", "host-local alone", [*few, *status, *many, *very_many, *largest], growth_table(list(growth)))
