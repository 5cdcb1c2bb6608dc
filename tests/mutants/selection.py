"""The tests that a fault meets: those that reach its statement, the quickest first.

One rule: a statement that only an import executes is reached by the tests that execute a function of its file.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

from tests.mutants import record
from tests.mutants.faults import Fault
from tests.mutants.recording import ROOMS, ROOT


@dataclass(frozen=True)
class Choice:
    """The seconds of the tests of a fault in the order of the run, first those of the short suite."""

    short: dict[str, float]
    others: dict[str, float]


def select(faults: Sequence[Fault], short: Collection[str], seconds: float, tests: int) -> dict[str, Choice]:
    """Returns the tests of each fault, in each half at most so many, of so many seconds."""
    targets = {fault.key: _targets(fault) for fault in faults}
    reached: dict[str, dict[str, float]] = {fault.key: {} for fault in faults}
    for test in record.read():
        for key, files in targets.items():
            if any(path in test.lines and not lines.isdisjoint(test.lines[path]) for path, lines in files.items()):
                reached[key][test.test] = test.seconds
    choices = {}
    for key, times in reached.items():
        ordered = dict(sorted(times.items(), key=lambda item: item[1]))
        halves = [{test: time for test, time in ordered.items() if (test in short) is which} for which in (True, False)]
        choices[key] = Choice(*(_limit(half, seconds, tests) for half in halves))
    return choices


def _limit(times: dict[str, float], seconds: float, tests: int) -> dict[str, float]:
    chosen: dict[str, float] = {}
    for test, time in times.items():
        if len(chosen) == tests or (chosen and seconds < time):
            break
        chosen[test] = time
        seconds -= time
    return chosen


def _targets(fault: Fault) -> dict[str, frozenset[int]]:
    """Returns the lines of files of which a test must have executed one."""
    lines = frozenset(fault.lines) & record.lines_of_functions(fault.path)
    if lines:
        return {fault.path: lines}
    if record.lines_of_functions(fault.path):
        return {fault.path: record.lines_of_functions(fault.path)}
    return {path: record.lines_of_functions(path) for path in _importers(fault.path)}


@cache
def _importers(path: str) -> list[str]:
    """Returns the files that import this one."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    files = [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]
    return [str(file.relative_to(ROOT)) for file in files if name in _imports(file.read_bytes())]


def _imports(source: bytes) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names
