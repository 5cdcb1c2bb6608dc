"""Interfaces on a master: macvlan with host-local, on one end of a veth of the host.

One rule: both implementations use the same master, so that they wait for the same kernel objects.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.cases import Network, Samples, Subjects, compare, with_prefix
from bench.figures import Row
from bench.subject import Config, Subject
from tests.support.namespaces import Namespace
from tests.support.processes import output

_MASTER = "benchm"


def macvlan(subjects: Subjects, rounds: int, name: str, network: Network, pods: Sequence[Namespace]) -> list[Row]:
    """Measures ADD, CHECK and DEL of macvlan, with the addresses of a bridge network's ranges."""

    def measure(subject: Subject) -> Samples:
        config: Config = {**network(subject), "type": "macvlan", "master": _MASTER}
        return with_prefix(name, subject.cycle("macvlan", config, pods[subject.number]))

    output("ip", "link", "add", _MASTER, "type", "veth", "peer", "name", f"{_MASTER}-peer")
    try:
        for end in (_MASTER, f"{_MASTER}-peer"):
            output("ip", "link", "set", end, "up")
        return compare(subjects, rounds, measure)
    finally:
        output("ip", "link", "delete", _MASTER)
