"""`make bench`: podwire's files and the reference plugins, side by side, in a network of their own.

One rule: no figure without its proof. Both implementations are shown to work before they are timed, and a call that
fails ends the whole run.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import cases, chains, limits, mappings, nodes, plot, ports
from bench.figures import Row, as_json, growth_table, size_table, timing_table
from bench.process import adopt_orphans
from bench.subject import DUAL, IPTABLES, NFTABLES, ROUTED, SINGLE, Subject
from tests.support import binaries, namespaces, private
from tests.support.kubelet import PODS
from tests.support.namespaces import Namespace

_ROUNDS, _QUICK_ROUNDS = 100, 15
_PLUGINS = ("bandwidth", "bridge", "host-local", "loopback", "portmap")
_PODS = 16
_QUIET_LOAD = 0.5
_DISK = Path("/run/bench")
_DISK_BYTES = 256 << 20
_DOCS = binaries.ROOT / "docs"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs everything and prints it; returns the exit status."""
    options = _options(argv)
    directories = (binaries.directory(), binaries.REFERENCE.absolute())
    absent = [str(path / name) for path in directories for name in _PLUGINS if not (path / name).is_file()]
    if absent:
        hint = "`make binaries` builds ours, containernetworking-plugins brings the reference (or REFERENCE=DIRECTORY)"
        print(f"missing: {', '.join(absent)}\n{hint}", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("bench needs root: it makes network namespaces", file=sys.stderr)
        return 2
    try:
        rounds = _QUICK_ROUNDS if options.quick else options.rounds
        report = _run(directories, rounds, _measure_mappings if options.mappings else _measure)
    except (RuntimeError, AssertionError) as error:
        print(f"\nstopped, since a plugin does not work: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if options.write:
        print("\nwritten: " + ", ".join(str(path.relative_to(binaries.ROOT)) for path in plot.write(report, _DOCS)))
    return 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"turns of each implementation ({_ROUNDS})")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_ROUNDS} turns: a first look")
    about = "measure connections through 1,000 host ports instead of everything else"
    parser.add_argument("--mappings", action="store_true", help=about)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file too")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/performance.md and its plot")
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.write and options.mappings:
        parser.error("--mappings measures nothing of what --write writes")
    return options


def _run(
    directories: tuple[Path, Path], rounds: int, measure: Callable[[cases.Subjects, int], dict[str, object]]
) -> dict[str, object]:
    """Measures in a network and on a disk of its own, which end with this process."""
    private.enter("/var/lib/cni")
    adopt_orphans()
    # On a disk, as on a node: leases are files, and a memory file system would flatter those who write many.
    private.mount_disk(_DISK, _DISK_BYTES)
    gc.disable()
    ours, reference = directories
    subjects = (
        Subject("podwire", 1, ours, _DISK / "podwire"),
        Subject("reference", 2, reference, _DISK / "reference"),
    )
    return measure(subjects, rounds)


def _measure(subjects: cases.Subjects, rounds: int) -> dict[str, object]:
    """Runs the cases, prints their tables, and returns all of it for JSON."""
    about = _about(subjects, rounds)
    few, fewer = max(3, rounds // 5), max(2, rounds // 20)
    with ExitStack() as stack:
        pods = [stack.enter_context(namespaces.temporary()) for _ in range(_PODS)]
        times = cases.version(subjects, rounds) + cases.loopback(subjects, rounds, pods[0])
        crowds = cases.crowd(subjects, few)
        with cases.networks(subjects, SINGLE) as network:
            times += cases.bridge(subjects, rounds, "bridge", network, pods, cases.BRIDGE_WANTED)
            batches = cases.throughput(subjects, fewer, network, pods)
        with cases.networks(subjects, DUAL) as network:
            times += cases.bridge(subjects, rounds, "bridge, dual stack", network, pods, cases.BRIDGE_WANTED)
            memory = cases.memory(subjects, network, pods[0])
        for kind, title, wanted in (
            (IPTABLES, "masquerade, iptables", cases.IPTABLES_WANTED),
            (NFTABLES, "masquerade, nftables", cases.NFTABLES_WANTED),
        ):
            with cases.networks(subjects, kind) as network:
                times += cases.bridge(subjects, rounds, title, network, pods, wanted)
        chained = _chained(subjects, rounds, pods)
    whole = nodes.pods(subjects, fewer)
    sizes = cases.size(subjects)
    _show("A call as the runtime sees it, median and minimum in ms, minor page faults", timing_table(times))
    _show("Chained plugins, alone and in a chain; the reference has iptables only", timing_table(chained))
    _show("DEL until every process it left behind is gone, ms per DEL", timing_table(batches))
    _show(f"A node of {PODS} pods as kubelet starts and ends them, ms per pod", timing_table(whole))
    _show("host-local alone", timing_table([row for _, *pair in crowds for row in pair]))
    _show("10,000 reservations against 10", growth_table(crowds))
    _show("Peak of resident memory, the largest process of a call", size_table("MiB", 1024, memory))
    _show("Files; one file under several names counts once", size_table("MB", 1e6, sizes))
    groups: dict[str, list[Row]] = {"ms": [*times, *chained, *batches], "pod_ms": whole}
    groups |= {"memory_kib": memory, "size_bytes": sizes}
    groups["ms"] += [row for _, *pair in crowds for row in pair]
    return {"about": about, **{name: [as_json(row) for row in rows] for name, rows in groups.items()}}


def _chained(subjects: cases.Subjects, rounds: int, pods: Sequence[Namespace]) -> list[Row]:
    """Runs the cases of portmap and bandwidth; fewer rounds for 100 ports, of which the reference takes seconds."""
    rows: list[Row] = []
    with ports.attached(subjects) as attached:
        for count, title, turns, wanted in (
            (1, "1 host port", rounds, ports.FEW_WANTED),
            (100, "100 host ports", max(2, rounds // 20), ports.MANY_WANTED),
        ):
            for backend in ("iptables", "nftables"):
                aims = wanted if backend == "iptables" else {}
                rows += ports.alone(subjects, turns, f"{title}, {backend}:", backend, count, attached, aims)
        rows += limits.alone(subjects, rounds, "2 limits:", attached)
    for kind, backend in ((IPTABLES, "iptables"), (NFTABLES, "nftables")):
        port = chains.host_port(backend)
        for title, plugins, aims in (
            ("1 host port", [port], {}),
            ("2 limits", [Subject.limits], chains.LIMITS_WANTED),
            ("1 host port, 2 limits", [port, Subject.limits], chains.WHOLE_WANTED),
            ("1 host port, firewall, tuning", [port, Subject.protected, Subject.tuned], chains.PODMAN_WANTED),
        ):
            name = f"masquerading bridge, {title}, {backend}:"
            own_aims = aims if backend == "iptables" else {}
            rows += chains.chain(subjects, rounds, name, kind, plugins, pods, own_aims)
    return rows + chains.chain(subjects, rounds, "masquerading ptp, iptables:", ROUTED, [], pods, chains.ROUTED_WANTED)


def _measure_mappings(subjects: cases.Subjects, rounds: int) -> dict[str, object]:
    """Runs the case of 1,000 mappings, prints its tables, and returns all of it for JSON."""
    about = _about(subjects, rounds)
    rows, notes = mappings.connections(subjects, rounds * mappings.CALLS)
    _show(
        "A TCP connection to a host port, until it stands, median and minimum in microseconds", timing_table(rows, "us")
    )
    print("\n" + "\n".join(notes))
    return {"about": about, "us": [as_json(row) for row in rows]}


def _about(subjects: cases.Subjects, rounds: int) -> dict[str, object]:
    """Prints what is measured where, and returns it for JSON."""
    about = {
        "rounds": rounds,
        "kernel": platform.release(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        **{subject.label: str(subject.bin_dir) for subject in subjects},
    }
    print("\n".join(f"{key:<10} {value}" for key, value in about.items()), flush=True)
    if os.getloadavg()[0] > _QUIET_LOAD:
        print("The machine is busy with something else: trust the minima rather than the medians.", flush=True)
    return about


def _show(title: str, text: str) -> None:
    print(f"\n{title}\n\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
