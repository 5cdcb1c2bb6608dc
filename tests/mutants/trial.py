"""The run of one fault's tests in a private copy of the project, until one fails.

One rule: a test that uses the kernel kills a fault only if it fails twice, because the machine's load may fail it once.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import plugin, private
from tests.mutants.faults import Fault
from tests.mutants.record import Choice
from tests.mutants.recording import ROOT

_BATCHES = (20, 60, 400)  # tests of a run of pytest: a start of pytest takes as long as many unit tests
_INTERRUPTED = 2  # pytest's exit status when a file of tests cannot be imported


@dataclass(frozen=True)
class Result:
    """What became of a fault: the test that failed ("" if it survived), and the number of tests that it met."""

    key: str
    killed_by: str
    short: bool
    met: int


def examine(fault: Fault, choice: Choice, root: Path) -> Result:
    """Runs the tests of a fault, those of the short suite first."""
    met = 0
    for is_short, batch in ((half is choice[0], batch) for half in choice for batch in _batches(half)):
        met += len(batch)
        if killer := _first_failure(fault, batch, root):
            return Result(fault.key, killer, is_short, met)
    return Result(fault.key, "", False, met)


def _batches(tests: dict[str, float]) -> Iterator[dict[str, float]]:
    """Yields the quickest tests in few small runs, in each run file by file."""
    names = list(tests)
    for size in _BATCHES:
        part, names = names[:size], names[size:]
        files = [name.partition("::")[0] for name in part]
        if part:
            yield {name: tests[name] for name in sorted(part, key=lambda name: files.index(name.partition("::")[0]))}


def _first_failure(fault: Fault, batch: dict[str, float], root: Path) -> str:
    """Returns the test that fails, "" if all pass."""
    while batch:
        failed = _run(fault, batch, root)
        if failed not in batch or failed.startswith("tests/unit/") or _run(fault, {failed: batch[failed]}, root):
            return failed
        names = list(batch)
        batch = {name: batch[name] for name in names[names.index(failed) + 1 :]}
    return ""


def _run(fault: Fault, tests: dict[str, float], root: Path) -> str:
    """Returns the first test that fails, never ends, or ends pytest; "" if all pass."""
    with private.copy(root) as copy:
        path = ROOT / fault.path
        place = copy.create(path)
        place.write_bytes(fault.apply(path.read_bytes()))
        os.utime(place, (int(time.time()),) * 2)  # a whole second, as in the bytecode, which is compiled anew
        private.compile_file(place, path, copy.create(private.place_bytecode(path)))
        copy.create(plugin.ORDER).write_text(json.dumps(tests))
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        status = copy.run_pytest(["-x", *files], limit_s=600 + 5 * sum(tests.values()))
        killer = copy.create(plugin.KILLER)
        if status == 0:
            return ""
        if killer.exists():
            return killer.read_text()
        if status == _INTERRUPTED or "while loading conftest" in copy.tail():
            return "an import"
        raise RuntimeError(f"{fault.path}:{fault.line}: pytest ended with status {status}\n{copy.tail()}")
