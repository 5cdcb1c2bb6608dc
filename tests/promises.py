"""The table of docs/guarantees.md: the tests of each, and their figures in the last run of the hard tests.

One rule: the tests of a promise record its figures; no figure is written by hand.

    make nightly              # or `make test-all`, for the figures of the sample
    python -m tests.promises  # prints the table; --write copies it to the page
"""

import fcntl
import json
import os
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from tests.runner.parts import REPORTS
from tests.support.binaries import ROOT
from tests.support.markdown import with_part

FIGURES = ROOT / REPORTS / "promises"


class Promise(NamedTuple):
    """One row of the table: `counted` is a format of the figures that its tests recorded under its name."""

    promised: str
    tested: str
    counted: str


PROMISES: dict[str, Promise] = {
    "reboot": Promise(
        "Addresses orphaned by a reboot are reclaimed when needed; addresses from the current boot never are.",
        "a machine reboots with the same disk; podwire or the reference plugins had filled its ranges",
        "{boots} boots",
    ),
    "storm": Promise(
        "With any verbs in parallel, no address is allocated twice, no rule is lost, and nothing is leaked.",
        "64 processes run ADD, DEL, CHECK and GC at random on 200 containers, and some are killed; once with each "
        "backend, and again mixed with the reference plugins; the node is then compared with one on which the running "
        "containers were attached sequentially; a second test runs 200 processes of host-local at once",
        "{verbs:,} verbs in {seconds} s, {kills:,} of them killed, {again} returned code 11 (try again)",
    ),
    "soak": Promise(
        "However long a node runs, verbs leave nothing: no rule, link, qdisc, address, file, process or kernel memory.",
        "half an hour of storms with both backends; each minute all pods end, and the node is compared with the "
        "state before the first pod",
        "{verbs:,} verbs in {seconds:,} s",
    ),
    "model": Promise(
        "Each verb changes only its own objects, also when two networks have containers of the same names.",
        "random sequences of all verbs, podwire's and the reference's, compared with a model of the node after each",
        "{verbs:,} verbs",
    ),
    "fuzz": Promise(
        "Whatever stdin, environment, files and the kernel contain, a plugin returns a result or an error object.",
        "plugins get randomly changed inputs, in private namespaces; a failed ADD leaves nothing behind",
        "{inputs:,} inputs",
    ),
    "faults": Promise(
        "A failure returns one error object and leaks nothing: ADD rolls back, DEL and GC can be repeated.",
        "each system call and each netlink request of every verb fails once, with both backends; in other runs store, "
        "namespace, bridge, veth or rules are deleted at that point, or the disk is full or read-only",
        "{faults:,} faults",
    ),
    "crash": Promise(
        "After a killed verb, the next DEL, or GC alone, restores the state before that verb; the next ADD succeeds.",
        "each verb of a full list, with both backends, gets SIGKILL right before and right after each system call that "
        "changes something, in the plugin and in its children; in other runs it gets SIGTERM, and rolls back",
        "{kills:,} kills, {terms} terminations",
    ),
}


# The figures that this process has recorded, by the promise's name and the test.
_recorded: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)


def record(name: str, **figures: int) -> None:
    """Records a test's figures of the promise `name`; a test may call it repeatedly.

    A repeated test replaces its figures; the runner empties the directory before a run.

    On the second kernel, which cannot write here, figures are not counted.
    """
    if os.statvfs(ROOT).f_flag & os.ST_RDONLY:
        return
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]  # without the phase
    _recorded[name, test].update(figures)
    FIGURES.mkdir(parents=True, exist_ok=True)
    with (FIGURES / f"{name}.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # several processes may run the tests
        file.seek(0)
        by_test = {**json.loads(file.read() or "{}"), test: _recorded[name, test]}
        file.truncate(0)
        file.write(json.dumps(by_test, indent=1, sort_keys=True) + "\n")


def table() -> str:
    """Returns the table in Markdown; a promise without figures says that it was not tested."""
    lines = ["| guarantee | how it is tested | last run |", "|---|---|---|"]
    for name, promise in PROMISES.items():
        path = FIGURES / f"{name}.json"
        by_test = json.loads(path.read_text()) if path.exists() else {}
        total = sum(map(Counter, by_test.values()), Counter[str]())
        counted = promise.counted.format_map(total) if by_test else "not run"
        lines.append(f"| {promise.promised} | {promise.tested} | {counted} |")
    return "\n".join(lines)


def write(page: Path) -> None:
    """Writes the table between the marks of the page."""
    begin, end = "<!-- promises -->\n", "<!-- end of promises -->"
    page.write_text(with_part(page.read_text(), begin, f"{table()}\n", end))


if __name__ == "__main__":
    print(table())
    if "--write" in sys.argv[1:]:
        write(ROOT / "docs" / "guarantees.md")
