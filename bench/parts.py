"""The parts of `make bench`; `make bench-quick` measures the main ones.

One rule: a part is measured before the next one begins, so that an interrupted run has printed its results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from bench import cases, cold, crowds
from bench.cases import Chained, Subjects, attachments, of_kind, places
from bench.figures import Row
from bench.subject import BANDWIDTH, DUAL, FIREWALL, IPTABLES, NFTABLES, ROUTED, SINGLE, TUNING, Kind

BACKENDS = ((IPTABLES, "iptables"), (NFTABLES, "nftables"))
_FEWEST = 3  # rounds
_PORTS = 100


class Part(NamedTuple):
    """A part: `group` is the rows' key in JSON; a part of slow calls has only a `share` of the rounds."""

    group: str
    title: str
    measure: Callable[[Subjects, int], list[Row]]
    share: float = 1.0
    is_main: bool = False

    def rows(self, subjects: Subjects, rounds: int) -> list[Row]:
        """Measures the part with its share of the rounds."""
        return self.measure(subjects, max(_FEWEST, round(rounds * self.share)))


def _bridge(subjects: Subjects, rounds: int) -> list[Row]:
    rows = []
    for kind, title in ((SINGLE, "bridge"), (DUAL, "bridge, dual stack")):
        with places(subjects, of_kind(kind)) as where:
            rows += attachments(subjects, rounds, title, where)
    return rows


def _masqueraded(subjects: Subjects, rounds: int) -> list[Row]:
    rows = []
    for kind, title in (
        *((kind, f"masquerade, {backend}") for kind, backend in BACKENDS),
        (ROUTED, "masquerading ptp, iptables"),
    ):
        with places(subjects, of_kind(kind)) as where:
            rows += attachments(subjects, rounds, title, where)
    return rows


def _chains(kind: Kind, backend: str, subjects: Subjects, rounds: int) -> list[Row]:
    """Measures the full chain and podman's default list; the plugins without a backend have a row with iptables."""
    limits, tuning = ("2 limits", "tuning") if kind is IPTABLES else ("", "")
    name, port = "masquerading bridge, 1 host port", _host_ports(backend, 1)
    full = [(f"1 host port, {backend}", port), (limits, lambda _: BANDWIDTH)]
    podman = [("", port), (f"firewall, {backend}", lambda _: FIREWALL), (tuning, lambda _: TUNING)]
    with places(subjects, of_kind(kind)) as where:
        return [
            *attachments(subjects, rounds, f"{name}, 2 limits, {backend}", where, full),
            *attachments(subjects, rounds, f"{name}, firewall, tuning, {backend}", where, podman),
        ]


def _many_ports(subjects: Subjects, rounds: int) -> list[Row]:
    rows = []
    for kind, backend in BACKENDS:
        chained = [(f"{_PORTS} host ports, {backend}", _host_ports(backend, _PORTS))]
        with places(subjects, of_kind(kind)) as where:
            rows += attachments(subjects, rounds, "", where, chained)
    return rows


def _host_ports(backend: str, count: int) -> Chained:
    return lambda subject: subject.portmap(backend, count)


def _memory(subjects: Subjects, _rounds: int) -> list[Row]:
    with places(subjects, of_kind(DUAL)) as where:
        return [*cases.memory(subjects, where), *cases.shared_memory(subjects, where)]


PARTS = (
    Part("ms", "A call as the runtime sees it", cases.start, is_main=True),
    Part("ms", "bridge with host-local", _bridge, is_main=True),
    Part("ms", "Masquerading; the reference plugins before 1.7 have iptables only", _masqueraded, is_main=True),
    *(
        Part("ms", f"Lists of plugins, {backend}", partial(_chains, kind, backend), is_main=True)
        for kind, backend in BACKENDS
    ),
    Part("ms", "Many host ports", _many_ports, 0.05, is_main=True),
    *(
        Part("ms", f"host-local, {reserved:,} addresses in use", partial(cases.host_local, reserved=reserved), 0.2)
        for reserved in cases.RESERVED
    ),
    *(
        Part(
            "pod_ms",
            f"A crowd of pods, {backend}, each",
            partial(crowds.chains, kind=kind, backend=backend),
            0,
            is_main=True,
        )
        for kind, backend in BACKENDS
    ),
    Part("pod_ms", "A node as kubelet starts and stops its pods, each", crowds.node, 0),
    Part("cold_ms", "The plugin's file is not in the page cache", cold.first_calls, 0.2),
    Part("memory_kib", "Memory: peak of the largest process; of processes that write their result (PSS)", _memory),
    Part("size_bytes", "Files; hard links to one file count once", lambda subjects, _: cases.size(subjects)),
)
