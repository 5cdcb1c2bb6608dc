"""Interfaces without a host veth, with host-local: macvlan, ipvlan and vlan on a master, host-device and tap.

One rule: both implementations use the same master, so that they wait for the same kernel objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bench.cases import Network, Samples, Subjects, compare, with_prefix
from bench.figures import Row
from bench.subject import Config, Subject
from tests.spec import configs
from tests.support import kernels
from tests.support.namespaces import Namespace
from tests.support.processes import output

_MASTER, _DEVICE = "benchm", "benchd"
_KEYS: Mapping[str, Mapping[str, Any]] = {
    "macvlan": {"master": _MASTER},
    "ipvlan": {"master": _MASTER},
    "vlan": {"master": _MASTER, "vlanId": 100},
    "host-device": {"device": _DEVICE},
    "tap": {},
    "dummy": {},
}


def all_plugins(subjects: Subjects, rounds: int, network: Network, pods: Sequence[Namespace]) -> list[Row]:
    """Measures ADD, CHECK and DEL of each plugin that both implementations have and this kernel supports.

    The addresses are from a bridge network's ranges.
    """
    rows = []
    for plugin, keys in _KEYS.items():
        needed = [configs.NEEDS[plugin]] if plugin in configs.NEEDS else []
        if all((subject.bin_dir / plugin).exists() for subject in subjects) and not kernels.lacking(needed):
            with _master_and_device():
                rows += _measure(subjects, rounds, plugin, keys, network, pods)
    return rows


def _measure(
    subjects: Subjects,
    rounds: int,
    plugin: str,
    keys: Mapping[str, Any],
    network: Network,
    pods: Sequence[Namespace],
) -> list[Row]:
    def measure(subject: Subject) -> Samples:
        config: Config = {**network(subject), "type": plugin, **keys}
        return with_prefix(f"{plugin}:", subject.cycle(plugin, config, pods[subject.number]))

    return compare(subjects, rounds, measure)


@contextmanager
def _master_and_device() -> Iterator[None]:
    """Creates the master and the device for the duration of the block; each is one end of a veth on the host."""
    for name in (_MASTER, _DEVICE):
        output("ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}-peer")
        for end in (name, f"{name}-peer"):
            output("ip", "link", "set", end, "up")
    try:
        yield
    finally:
        for name in (_MASTER, _DEVICE):
            output("ip", "link", "delete", name)
