"""`make bench`: measures podwire and the reference plugins side by side, in a separate network namespace.

One rule: only working plugins are timed. Both implementations are verified first, and a call that fails ends the run.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import cases, counts, everything, floors, mappings, page, plot
from bench.everything import Part
from bench.figures import as_json, ratio_text, timing_table
from bench.floors import Floors
from bench.process import adopt_orphans
from bench.subject import Subject
from bench.versions import reference_version
from tests.support import binaries, private_host, second_kernel

_ROUNDS, _QUICK_ROUNDS = 60, 15
_PLUGINS = ("bandwidth", "bridge", "host-local", "loopback", "portmap")
_DISK = Path("/run/bench")
_DISK_BYTES, _DISK_FILES = 768 << 20, 400_000  # for 2 x 175,533 leases
_DOCS = binaries.ROOT / "docs"


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints the results, and returns the exit status."""
    options = _options(argv)
    directories = (binaries.directory(), binaries.REFERENCE.absolute())
    missing = [str(path / name) for path in directories for name in _PLUGINS if not (path / name).is_file()]
    if missing:
        fix = "make binaries needs-test (or REFERENCE=DIRECTORY)"
        print(f"missing: {', '.join(missing)}\nfix: {fix}", file=sys.stderr)
        return 2
    if options.second_kernel:
        return _measure_in_second_kernel(options.rounds)
    if os.geteuid() != 0:
        print("bench needs root: it creates network namespaces", file=sys.stderr)
        return 2
    try:
        rounds = _QUICK_ROUNDS if options.quick else options.rounds
        report = _run(directories, rounds, _chosen(options))
    except (RuntimeError, AssertionError) as error:
        print(f"\nstopped because a plugin does not work: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if options.write:
        write_docs = write_newest if options.quick else write
        print("\nwritten: " + ", ".join(str(path.relative_to(binaries.ROOT)) for path in write_docs(report, _DOCS)))
    return 0


def write(report: Mapping[str, Any], docs: Path) -> list[Path]:
    """Writes the page and the plot, and returns their paths; writes nothing when one of them cannot be generated."""
    text, drawing = docs / "performance.md", docs / "bench.svg"
    shown, drawn = page.inserted(text.read_text(), page.markdown(report)), plot.svg(report)
    text.write_text(shown)
    drawing.write_text(drawn)
    return [text, drawing]


def write_newest(report: Mapping[str, Any], docs: Path) -> list[Path]:
    """Writes the page's part about the newest reference plugins, and returns the path of the page."""
    text = docs / "performance.md"
    text.write_text(page.inserted(text.read_text(), page.markdown_newest(report)))
    return [text]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"rounds per case ({_ROUNDS})")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--quick", action="store_true", help=f"{_QUICK_ROUNDS} rounds of the main cases")
    only.add_argument("--mappings", action="store_true", help="measure only connections through 1,000 host ports")
    only.add_argument(
        "--other-plugins", action="store_true", help="measure only the plugins beside bridge, ptp and their chain"
    )
    only.add_argument("--counts", action="store_true", help="only count system calls and messages, with strace")
    parser.add_argument("--second-kernel", action="store_true", help="measure --other-plugins in the second kernel")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    about = "write docs/performance.md and its plot; with --quick only the part about the newest reference plugins"
    parser.add_argument("--write", action="store_true", help=about)
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.write and (options.mappings or options.counts or options.other_plugins):
        parser.error("--write needs a full run or --quick, not --mappings, --other-plugins or --counts")
    return options


def _chosen(options: argparse.Namespace) -> Callable[[cases.Subjects, int], dict[str, object]]:
    measurements = {
        _measure_mappings: options.mappings,
        _count: options.counts,
        _measure_main: options.quick,
        _measure_other_plugins: options.other_plugins,
    }
    return next((measurement for measurement, is_set in measurements.items() if is_set), _measure)


def _run(
    directories: tuple[Path, Path], rounds: int, measure: Callable[[cases.Subjects, int], dict[str, object]]
) -> dict[str, object]:
    """Measures in a separate network namespace and on a separate disk, which end with this process."""
    ours, reference = directories
    version = reference_version(reference)  # before dpkg's files are hidden
    private_host.enter("/var/lib/cni")
    adopt_orphans()
    # A disk, as on a node: on a tmpfs, writing many leases would look faster than it is.
    if measure is _measure_other_plugins:  # it has few leases, and runs on the second kernel, which has no disk
        _DISK.mkdir()
    else:
        private_host.mount_disk(_DISK, _DISK_BYTES, _DISK_FILES)
    gc.disable()
    subjects = (
        Subject("podwire", 1, ours, _DISK / "podwire"),
        Subject("reference", 2, reference, _DISK / "reference", version),
    )
    return measure(subjects, rounds)


def _measure(subjects: cases.Subjects, rounds: int) -> dict[str, object]:
    """Measures everything, prints each table, and returns the report for JSON."""
    return {**_report(subjects, rounds, everything.measure), **_count(subjects, rounds)}


def _count(subjects: cases.Subjects, _rounds: int) -> dict[str, object]:
    """Counts the system calls and messages of each verb, prints the table, and returns it for JSON."""
    rows = counts.count_all(subjects)
    _show("System calls and messages per verb, podwire / reference", counts.text(rows))
    return {"conversation": [row.as_json() for row in rows]}


def _measure_main(subjects: cases.Subjects, rounds: int) -> dict[str, object]:
    """Measures the main rows only."""
    return _report(subjects, rounds, everything.measure_main)


def _measure_other_plugins(subjects: cases.Subjects, rounds: int) -> dict[str, object]:
    """Measures only the plugins beside bridge, ptp and their chain."""
    return _report(subjects, rounds, everything.measure_other_plugins)


def _report(
    subjects: cases.Subjects, rounds: int, measure: Callable[[cases.Subjects, int, Floors | None], Iterator[Part]]
) -> dict[str, object]:
    about = _about(subjects, rounds)
    groups: dict[str, list[object]] = {}
    missed: list[str] = []
    for part in measure(subjects, rounds, floors.compiled(_DISK)):
        _show(part.title, part.text(page.reference_name(about)))
        groups.setdefault(part.group, []).extend(as_json(row) for row in part.rows)
        missed += [f"{row.case}: {ratio_text(row.ratio)}, target {row.target:.2f}" for row in part.rows if row.missed]
    _show("Missed targets", "\n".join(missed) or "none")
    about["load"] = max(about["load"], os.getloadavg()[0])
    return {"about": about, **groups}


def _measure_mappings(subjects: cases.Subjects, rounds: int) -> dict[str, object]:
    """Measures connections through 1,000 mappings, prints the table, and returns the report for JSON."""
    about = _about(subjects, rounds)
    rows, notes = mappings.connections(subjects, rounds * mappings.CALLS)
    table = timing_table(rows, "us", page.reference_name(about))
    _show("TCP connect() to a host port, median and minimum in microseconds", table)
    print("\n" + "\n".join(notes))
    return {"about": about, "us": [as_json(row) for row in rows]}


def _measure_in_second_kernel(rounds: int) -> int:
    """Runs `--other-plugins` in the second kernel, for interfaces that this kernel lacks; returns the exit status."""
    line = [sys.executable, "-B", "-m", "bench.run", "--other-plugins", f"--rounds={rounds}"]
    variables = {name: os.environ[name] for name in ("PODWIRE_BIN_DIR", "REFERENCE") if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="podwire-kernel-", dir="/var/tmp") as directory:
        return second_kernel.boot(line, Path(directory), env=variables)


def _about(subjects: cases.Subjects, rounds: int) -> dict[str, Any]:
    """Prints the conditions of the run, and returns them for JSON."""
    ours, reference = subjects
    about = {
        "rounds": rounds,
        "kernel": platform.release(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        ours.label: str(ours.bin_dir),
        reference.label: str(reference.bin_dir),
        "version": reference.version,
    }
    print("\n".join(f"{key:<10} {value}" for key, value in about.items()), flush=True)
    if os.getloadavg()[0] > page.QUIET_LOAD:
        print("The machine has other load: trust the minima rather than the medians.", flush=True)
    return about


def _show(title: str, text: str) -> None:
    print(f"\n{title}\n\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
