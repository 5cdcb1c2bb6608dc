"""The run of one fault's tests in a private copy of the project, until one fails.

One rule: a test that uses the kernel kills a fault only if it fails twice, because the machine's load may fail it once.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import launchers, plugin
from tests.mutants.faults import Fault
from tests.mutants.private import copy
from tests.mutants.recording import ROOT
from tests.mutants.selection import Choice

_BATCHES = (20, 60, 400)  # tests of a run of pytest: a start of pytest takes as long as many unit tests
_IN_PROCESS = ("tests/unit/",)


@dataclass(frozen=True)
class Result:
    """What became of a fault: the test that failed ("" if it survived), and the number of tests that it met."""

    key: str
    killed_by: str
    short: bool
    met: int
    seconds: float


def examine(fault: Fault, choice: Choice, root: Path) -> Result:
    """Runs the tests of a fault, those of the short suite first."""
    begun, met = time.monotonic(), 0
    for tests in (choice.short, choice.others):
        for batch in _batches(tests):
            met += len(batch)
            if killer := _first_failure(fault, batch, root):
                seconds = round(time.monotonic() - begun, 1)
                return Result(fault.key, killer, tests is choice.short, met, seconds)
    return Result(fault.key, "", False, met, round(time.monotonic() - begun, 1))


def _first_failure(fault: Fault, batch: dict[str, float], root: Path) -> str:
    """Returns the test that fails, "" if all pass."""
    while batch:
        failed = _run(fault, batch, root)
        if failed not in batch or failed.startswith(_IN_PROCESS):
            return failed
        if _run(fault, {failed: batch[failed]}, root):
            return failed
        names = list(batch)
        batch = {name: batch[name] for name in names[names.index(failed) + 1 :]}
    return ""


def _run(fault: Fault, tests: dict[str, float], root: Path) -> str:
    with copy(root) as private:
        path = ROOT / fault.path
        place = private.create(path)
        place.write_bytes(fault.apply(path.read_bytes()))
        now = int(time.time())
        os.utime(place, (now, now))  # no other version of the file has this time: bytecode is valid for one
        launchers.compile_file(place, path, private.upper)
        private.create(plugin.ORDER).write_text(json.dumps(tests))
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        status = private.run_pytest(["-x", *files], limit_s=600 + 5 * sum(tests.values()))
        outcome = plugin.read_outcome(private.upper)
        if outcome.get("failed"):
            return outcome["failed"]
        if status == 0:
            return ""
        if outcome.get("running"):
            return outcome["running"]  # the test that never ended, or ended pytest
        if "while loading conftest" in private.tail():
            return "tests/conftest.py"
        msg = f"{fault.path}:{fault.line}: pytest ended with status {status}\n{private.tail()}"
        raise RuntimeError(msg)


def _batches(tests: dict[str, float]) -> Iterator[dict[str, float]]:
    """Yields the quickest tests in few small runs, in each run file by file."""
    names, start = list(tests), 0
    for size in _BATCHES:
        part = names[start : start + size]
        start += size
        files = list(dict.fromkeys(name.partition("::")[0] for name in part))
        part.sort(key=lambda name: files.index(name.partition("::")[0]))
        if part:
            yield {name: tests[name] for name in part}
