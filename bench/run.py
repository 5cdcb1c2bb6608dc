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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import cases, conversation, everything, floors, mappings, page, plot
from bench.everything import Part
from bench.figures import as_json, ratio_text, timing_table
from bench.floors import Floors
from bench.process import adopt_orphans
from bench.subject import Subject
from tests.support import binaries, private_host

_ROUNDS, _QUICK_ROUNDS = 60, 15
_PLUGINS = ("bandwidth", "bridge", "host-local", "loopback", "portmap")
_QUIET_LOAD = 0.5
_DISK = Path("/run/bench")
_DISK_BYTES, _DISK_FILES = 480 << 20, 250_000  # for each a crowd of 100,000 leases; from 512 MiB on each took 4 KiB
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
        report = _run(directories, rounds, _chosen(options))
    except (RuntimeError, AssertionError) as error:
        print(f"\nstopped, since a plugin does not work: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if options.write:
        print("\nwritten: " + ", ".join(str(path.relative_to(binaries.ROOT)) for path in write(report, _DOCS)))
    return 0


def write(report: Mapping[str, Any], docs: Path) -> list[Path]:
    """Writes the page and the plot, and returns their paths; nothing is written when one of them cannot be made."""
    text, drawing = docs / "performance.md", docs / "bench.svg"
    shown, drawn = page.inserted(text.read_text(), page.markdown(report)), plot.svg(report)
    text.write_text(shown)
    drawing.write_text(drawn)
    return [text, drawing]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"turns of each implementation ({_ROUNDS})")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--quick", action="store_true", help=f"{_QUICK_ROUNDS} turns of the main cases: a first look")
    about = "measure connections through 1,000 host ports instead of everything else"
    only.add_argument("--mappings", action="store_true", help=about)
    about = "only count what each verb says to the kernel, with strace"
    only.add_argument("--counts", action="store_true", help=about)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file too")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/performance.md and its plot")
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.write and (options.mappings or options.quick or options.counts):
        parser.error("--write writes what a whole run measures")
    return options


def _chosen(options: argparse.Namespace) -> Callable[[cases.Subjects, int], dict[str, object]]:
    ways = {_measure_mappings: options.mappings, _count: options.counts, _measure_main: options.quick}
    return next((way for way, asked in ways.items() if asked), _measure)


def _run(
    directories: tuple[Path, Path], rounds: int, measure: Callable[[cases.Subjects, int], dict[str, object]]
) -> dict[str, object]:
    """Measures in a network and on a disk of its own, which end with this process."""
    private_host.enter("/var/lib/cni")
    adopt_orphans()
    # On a disk, as on a node: leases are files, and a memory file system would flatter those who write many.
    private_host.mount_disk(_DISK, _DISK_BYTES, _DISK_FILES)
    gc.disable()
    ours, reference = directories
    subjects = (
        Subject("podwire", 1, ours, _DISK / "podwire"),
        Subject("reference", 2, reference, _DISK / "reference"),
    )
    return measure(subjects, rounds)


def _measure(subjects: cases.Subjects, rounds: int) -> dict[str, object]:
    """Runs everything, prints each table, and returns all of it for JSON."""
    return {**_report(subjects, rounds, everything.measure), **_count(subjects, rounds)}


def _count(subjects: cases.Subjects, _rounds: int) -> dict[str, object]:
    """Counts what each verb says to the kernel, prints the table, and returns it for JSON."""
    said = conversation.everything(subjects)
    _show("What each verb says to the kernel, podwire / reference", conversation.text(said))
    return {"conversation": [row.as_json() for row in said]}


def _measure_main(subjects: cases.Subjects, rounds: int) -> dict[str, object]:
    """Runs the main rows only."""
    return _report(subjects, rounds, everything.measure_main)


def _report(
    subjects: cases.Subjects, rounds: int, measure: Callable[[cases.Subjects, int, Floors | None], Iterator[Part]]
) -> dict[str, object]:
    about = _about(subjects, rounds)
    groups: dict[str, list[object]] = {}
    missed: list[str] = []
    for part in measure(subjects, rounds, floors.compiled(_DISK)):
        _show(part.title, part.text())
        groups.setdefault(part.group, []).extend(as_json(row) for row in part.rows)
        missed += [f"{row.case}: {ratio_text(row.ratio)}, wanted {row.wanted:.2f}" for row in part.rows if row.missed]
    _show("Missed", "\n".join(missed) or "nothing")
    return {"about": about, **groups}


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
