"""The table in README of what is promised, how it is tested, and the figures of the last run of the hard tests.

One rule: a figure is counted by the test that keeps the promise, never written by hand.

    make nightly              # or `make test`, for the figures of the sample
    python -m tests.promises  # prints the table; with --write it goes into README
"""

from __future__ import annotations

import fcntl
import json
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.support.binaries import ROOT

FIGURES = ROOT / "build" / "promises"


class Promise(NamedTuple):
    """One row of the table: `counted` is a format of the figures that its tests recorded under its name."""

    promised: str
    tested: str
    counted: str


PROMISES: dict[str, Promise] = {
    "reboot": Promise(
        "An address that a reboot orphaned is given again when it is needed; one of the present boot never.",
        "a kernel that is booted again on the same disk, ranges filled by podwire and by the reference",
        "{boots} boots",
    ),
    "storm": Promise(
        "Whatever runs at the same time, no address is given twice, no rule is lost, and nothing is left in the end.",
        "64 processes of ADD, DEL, CHECK and GC at random over 200 containers, some killed, for each backend and "
        "among the reference's, compared with a node where the living were attached one by one; host-local alone",
        "{verbs:,} verbs in {seconds} s, {kills:,} of them killed, {again} told to try again",
    ),
    "model": Promise(
        "Each verb changes what it says and nothing else, also where two networks have containers of the same names.",
        "random sequences of all verbs, ours and the reference's; the node is compared with a model after each",
        "{verbs:,} verbs",
    ),
    "fuzz": Promise(
        "Whatever is on stdin, in the environment, in files, or answered by the kernel: an error object or a result.",
        "inputs changed at random, real plugins in private namespaces; nothing is left by an ADD that fails",
        "{inputs:,} inputs",
    ),
    "faults": Promise(
        "What fails is told in one error object, and nothing is left: ADD takes all back, DEL and GC can be repeated.",
        "each system call and each request to the kernel of every verb, both backends, fails once; store, namespace, "
        "bridge, pair and rules are taken away at each; disks full or read-only, foreign files, limits, capabilities",
        "{faults:,} faults",
    ),
    "crash": Promise(
        "A verb that dies loses nothing: the next DEL, or GC alone, leaves the state of before; the next ADD succeeds.",
        "each verb of a whole chain, both backends, gets SIGKILL right before and right after each system call that "
        "changes something, in the plugin and in its children; SIGTERM, which unwinds, before each",
        "{kills:,} kills, {terms} terminations",
    ),
}


def record(name: str, **figures: int) -> None:
    """Adds a test's figures to those of the promise `name`; `make` empties the directory before a run."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    with (FIGURES / f"{name}.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the tests may have been shared out to several processes
        file.seek(0)
        total = Counter(json.loads(file.read() or "{}"))
        total.update(figures)
        file.truncate(0)
        file.write(json.dumps(total, indent=1, sort_keys=True) + "\n")


def table() -> str:
    """Returns the table in Markdown; a promise without figures says that it was not tested."""
    lines = ["| promise | how it is tested | figure |", "|---|---|---|"]
    for name, promise in PROMISES.items():
        path = FIGURES / f"{name}.json"
        counted = promise.counted.format(**json.loads(path.read_text())) if path.exists() else "not run"
        lines.append(f"| {promise.promised} | {promise.tested} | {counted} |")
    return "\n".join(lines)


def write(readme: Path) -> None:
    """Puts the table between its marks in README."""
    before, begin, rest = readme.read_text().partition("<!-- promises -->\n")
    _, end, after = rest.partition("<!-- end of promises -->")
    readme.write_text(f"{before}{begin}{table()}\n{end}{after}")


if __name__ == "__main__":
    print(table())
    if "--write" in sys.argv[1:]:
        write(ROOT / "README.md")
