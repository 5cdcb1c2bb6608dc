"""A soak: storms on one node for a long time, with samples of everything that could grow.

One rule: a sample is taken after the DEL of every pod, so the state of the node must equal the state before the storms.

    python -m tests.support.soak '{"store": "/tmp/soak", "minutes": 10, "interval_s": 60}'   # prints a report as JSON

It is a separate program, because it moves into new namespaces and stays there.
"""

import dataclasses
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import binaries, namespaces, private_host, xtables
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.storm import Storm
from tests.support.storm_check import Lines, compare_store, state_lines, warm_up
from tests.support.storm_plan import RESULTS, Plan, containers

_BACKENDS = ("nftables", "iptables")
_AT_ONCE, _PODS = 16, 60
_CLEANUP_S = 60.0  # the kernel deletes namespaces and their interfaces in the background
_DIRECTORIES = (Path("/run"), Path("/var/lib/cni"))  # private ones, besides the store
# By the first word of a line of the state.
_KINDS = {"link": "links", "qdiscs": "qdiscs", **dict.fromkeys(("nft", *xtables.TOOLS), "lines of rules")}
# The values of /proc/meminfo that are sampled, in MiB: of the whole machine.
_MEMORY = ("MemFree", "MemAvailable", "Slab", "SUnreclaim", "Percpu")


@dataclass(frozen=True)
class Sample:
    """The node without pods after some minutes: numbers of objects, memory in MiB, and the kernel's namespaces.

    `netns` is the number of network namespaces in use on the machine, None if /proc/slabinfo cannot be read.
    """

    minutes: float
    verbs: int
    counts: dict[str, int]
    memory_mib: dict[str, int]
    netns: int | None


class Side(NamedTuple):
    """A host, its storm, and its state before it."""

    host: Namespace
    storm: Storm
    before: Lines


def growth_mib(samples: Sequence[Sample], kind: str) -> int:
    """Returns by how much the least value of the last third of the samples exceeds the least one of the first third.

    The least values, because other programs use memory for a time.
    """
    third = max(1, len(samples) // 3)
    first, last = (min(sample.memory_mib[kind] for sample in part) for part in (samples[:third], samples[-third:]))
    return last - first


def table(samples: Sequence[Sample]) -> list[str]:
    """Returns the samples as the rows of a Markdown table."""
    heads = ["minutes", "verbs", *samples[0].counts, "netns", *(f"{kind}, MiB" for kind in samples[0].memory_mib)]
    rows = [heads, ["---"] * len(heads)]
    for each in samples:
        numbers = (*each.counts.values(), each.netns, *each.memory_mib.values())
        rows.append([f"{each.minutes:.1f}", f"{each.verbs:,}", *map(str, numbers)])
    return [f"| {' | '.join(row)} |" for row in rows]


class Soak:
    """The hosts of both backends, and the samples."""

    def __init__(self, store: Path, tools: str) -> None:
        self.samples: list[Sample] = []
        self._problems: list[str] = []
        self._store = store
        self._start = time.monotonic()
        self._others = _plugins()  # of other tests, such as a daemon
        self._sides = {backend: self._create(backend, tools) for backend in _BACKENDS}

    def run(self, minutes: float, interval_s: float) -> None:
        """Runs storms with both backends in turn, and takes a sample after each interval."""
        self._start = time.monotonic()
        while time.monotonic() < self._start + minutes * 60:
            for side in self._sides.values():
                with side.host.entered():
                    side.storm.plan = replace(side.storm.plan, seconds=interval_s / len(self._sides))
                    side.storm.run()
                    side.storm.check_all()
                    side.storm.delete_all()
                    compare_store(side.storm)
            self.samples.append(self._sample())

    def report(self) -> dict[str, Any]:
        """Returns the samples, the number of kills, and the problems."""
        reports = [side.storm.report for side in self._sides.values()]
        return {
            "problems": [*self._problems, *(text for report in reports for text in report.problems)],
            "kills": sum(report.kills for report in reports),
            "samples": [dataclasses.asdict(sample) for sample in self.samples],
        }

    def _count_processes(self) -> int:
        """Returns how many processes of plugins run, once those that wait for the kernel had time to end."""
        eventually(lambda: _plugins() <= self._others)
        return len(_plugins() - self._others)

    def _create(self, backend: str, tools: str) -> Side:
        plan = Plan(
            str(self._store), backend, 0, _AT_ONCE, containers=_PODS, tools=tools if backend == "iptables" else ""
        )
        host = namespaces.create("host")
        host.ip("link", "set", "lo", "up")
        storm = Storm(plan, self._store / backend, containers(plan))
        with host.entered():
            warm_up(storm)
        return Side(host, storm, state_lines(host, [], plan.tools))

    def _sample(self) -> Sample:
        counts = Counter(dict.fromkeys([*_KINDS.values(), "others"], 0))
        for backend, side in self._sides.items():
            before, lines = side.before, _await_lines(side)
            self._problems += [f"{backend}, surplus: {line}" for line in lines - before]
            self._problems += [f"{backend}, missing: {line}" for line in before - lines]
            counts.update(_numbers(lines))
        return Sample(
            round((time.monotonic() - self._start) / 60, 1),
            sum(sum(side.storm.report.verbs.values()) for side in self._sides.values()),
            {**counts, **_files(self._store), "processes": self._count_processes()},
            _read_memory_mib(),
            _read_netns(),
        )


def _await_lines(side: Side) -> Lines:
    """Returns the state of a host when it equals the state before, or after the time that the kernel may need."""

    def lines() -> Lines:
        return state_lines(side.host, [], side.storm.plan.tools)

    eventually(lambda: lines() == side.before, within_s=_CLEANUP_S)
    return lines()


def _numbers(lines: Lines) -> Counter[str]:
    """Returns how many links, qdiscs, other objects and lines of rule sets a host's state has."""
    numbers: Counter[str] = Counter()
    for line, number in lines.items():
        numbers[_KINDS.get(line.partition(" ")[0], "others")] += number
    return numbers


def _files(store: Path) -> dict[str, int]:
    """Returns the numbers of leases and of all files."""
    files = [path for top in (store, *_DIRECTORIES) for path in top.rglob("*") if path.is_file()]
    return {
        "leases": sum(path.parent.name == "storm" and path.name[0].isdigit() for path in files),
        "files": len(files),
    }


def _plugins() -> set[str]:
    """Returns the process IDs of the plugins that run."""
    directory = str(binaries.directory())
    return {pid for pid in os.listdir("/proc") if pid.isdigit() and _program(pid).startswith(directory)}


def _program(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:  # it has ended, or is a kernel thread
        return ""


def _read_memory_mib() -> dict[str, int]:
    values = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return {kind: int(values[kind].split()[0]) // 1024 for kind in _MEMORY}


def _read_netns() -> int | None:
    try:
        lines = Path("/proc/slabinfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("net_namespace ")), None)


def main(text: str) -> None:
    """Runs a soak and prints the report as JSON."""
    options = json.loads(text)
    private_host.enter("/var/lib/cni")
    RESULTS.mkdir(parents=True, exist_ok=True)
    soak = Soak(Path(options["store"]), options.get("tools", ""))
    soak.run(options["minutes"], options["interval_s"])
    print(json.dumps(soak.report()))


if __name__ == "__main__":
    main(sys.argv[1])
