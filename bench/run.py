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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import counts, page, plot
from bench.cases import Subjects
from bench.figures import as_json, text_table
from bench.parts import PARTS
from bench.process import adopt_orphans
from bench.subject import Subject
from bench.versions import reference_version
from tests.support import binaries, private_host

_ROUNDS, _QUICK_ROUNDS = 60, 15
_PLUGINS = ("bandwidth", "bridge", "firewall", "host-local", "loopback", "portmap", "ptp", "tuning")
_DISK = Path("/run/bench")
_DISK_BYTES, _DISK_FILES = 768 << 20, 300_000  # for 2 x 110,010 leases
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
    if os.geteuid() != 0:
        print("bench needs root: it creates network namespaces", file=sys.stderr)
        return 2
    try:
        report = _measure(_subjects(*directories), options.rounds, is_quick=options.quick)
    except (RuntimeError, AssertionError) as error:
        print(f"\nstopped because a plugin does not work: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if options.write:
        written = write(report, _DOCS, newest=options.quick)
        print("\nwritten: " + ", ".join(str(path.relative_to(binaries.ROOT)) for path in written))
    return 0


def write(report: Mapping[str, Any], docs: Path, *, newest: bool = False) -> list[Path]:
    """Writes the page and the plot, or only the page's part about the `newest` reference plugins; returns their paths.

    Writes nothing when one of them cannot be generated.
    """
    text, drawing = docs / "performance.md", docs / "bench.svg"
    parts = {"newest": page.ratios(report)} if newest else page.markdown(report)
    shown = page.inserted(text.read_text(), parts)
    if not newest:
        drawing.write_text(plot.svg(report))
    text.write_text(shown)
    return [text] if newest else [text, drawing]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__.splitlines()[0])
    about = f"rounds per case ({_ROUNDS}; with --quick {_QUICK_ROUNDS})"
    parser.add_argument("--rounds", type=int, metavar="NUMBER", help=about)
    parser.add_argument("--quick", action="store_true", help="measure the main cases only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    about = "write docs/performance.md and its plot; with --quick only the part about the newest reference plugins"
    parser.add_argument("--write", action="store_true", help=about)
    options = parser.parse_args(argv)
    options.rounds = options.rounds or (_QUICK_ROUNDS if options.quick else _ROUNDS)
    return options


def _subjects(ours: Path, reference: Path) -> Subjects:
    """Moves this process to a separate network namespace with a separate disk, which end with it."""
    version = reference_version(reference)  # before dpkg's files are hidden
    private_host.enter("/var/lib/cni")
    adopt_orphans()
    # A disk, as on a node: on a tmpfs, writing many leases would look faster than it is.
    private_host.mount_disk(_DISK, _DISK_BYTES, _DISK_FILES)
    gc.disable()
    return (
        Subject("podwire", 1, ours, _DISK / "podwire"),
        Subject("reference", 2, reference, _DISK / "reference", version),
    )


def _measure(subjects: Subjects, rounds: int, *, is_quick: bool) -> dict[str, Any]:
    """Measures the parts, prints each table, and returns the report for JSON."""
    report: dict[str, Any] = {"about": _about(subjects, rounds)}
    name = page.reference_name(report["about"])
    for part in PARTS:
        if part.is_main or not is_quick:
            rows = part.rows(subjects, rounds)
            print(f"\n{part.title}\n\n{text_table(part.group, rows, name)}", flush=True)
            report.setdefault(part.group, []).extend(as_json(row) for row in rows)
    if not is_quick:
        compared = counts.count_all(subjects)
        print(f"\nSystem calls and messages per verb, podwire / reference\n\n{counts.text(compared)}", flush=True)
        report["counts"] = [row.as_json() for row in compared]
    report["about"]["load"] = max(report["about"]["load"], os.getloadavg()[0])
    return report


def _about(subjects: Subjects, rounds: int) -> dict[str, Any]:
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


if __name__ == "__main__":
    sys.exit(main())
