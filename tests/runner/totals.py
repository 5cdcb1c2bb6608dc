"""What a run of all parts prints: a line for each part, then one total of passed, failed and skipped tests.

One rule: a part that ended without a report, or that could not start, counts as a failure of the run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tests.runner.reports import FAILED, PASSED, Report
from tests.runner.schedule import Result


@dataclass(frozen=True)
class Counts:
    """Numbers of tests."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    @classmethod
    def of(cls, report: Report) -> Self:
        """Counts the tests of a report."""
        outcomes = list(report.outcomes.values())
        passed, failed = outcomes.count(PASSED), outcomes.count(FAILED)
        return cls(passed, failed, len(outcomes) - passed - failed)

    @classmethod
    def total(cls, counts: Iterable[Self]) -> Self:
        """Returns the sum of all counts."""
        each = list(counts)
        return cls(sum(one.passed for one in each), sum(one.failed for one in each), sum(one.skipped for one in each))

    def __str__(self) -> str:
        """Returns "12 passed, 1 failed, 3 skipped"."""
        return f"{self.passed:,} passed, {self.failed:,} failed, {self.skipped:,} skipped"


def report_of(result: Result, directory: Path) -> Report | None:
    """Returns the report of a part: a file of its name below `directory`; None for a part that wrote none."""
    path = next(directory.rglob(f"{result.part.name}.json"), None)
    return Report.load(path) if path else None


def checked(result: Result, report: Report | None) -> Result:
    """Returns the result of a part, failed if it exited with 0 before each of its tests had succeeded."""
    is_whole = report is not None and report.succeeded
    return result if is_whole or not result.succeeded or not result.part.has_report else replace(result, status=1)


def line(result: Result, report: Report | None) -> str:
    """Returns the line that is printed when a part ends: time, name, outcome."""
    counts = str(Counts.of(report)) if report else ""
    if result.status is None:
        outcome = f"NOT RUN: it needs {' and '.join(result.part.needs)}"
    elif result.succeeded:
        outcome = counts or "done"
    else:
        outcome = f"FAILED (exit status {result.status}){f': {counts}' if counts else ''}"
    return f"{minutes(result.seconds)}  {result.part.name:<16} {outcome}"


def summary(
    results: Sequence[Result], reports: Sequence[Report], passed_alone: Sequence[str], seconds: float
) -> list[str]:
    """Returns the last lines: each failed test, each failed part, the total.

    `passed_alone` has the tests that failed in parallel with others, and passed when repeated.
    """
    tests = [f"failed: {test}" for one in reports for test, outcome in one.outcomes.items() if outcome == FAILED]
    failed = [result for result in results if not result.succeeded]
    parts = [f"failed: {result.part.name}, its output: {result.log}" for result in failed if result.status is not None]
    missing = [f"not run: {result.part.name}" for result in failed if result.status is None]
    verdict = f"{len(failed)} of {len(results)} parts failed" if failed else f"all {len(results)} parts succeeded"
    counts = Counts.total(Counts.of(report) for report in reports)
    tests += [f"failed in parallel, passed alone: {test}" for test in passed_alone]
    return [*tests, *parts, *missing, f"total: {counts}; {verdict}; {minutes(seconds)} minutes"]


def minutes(seconds: float) -> str:
    """Returns a duration as "12:05"."""
    whole, rest = divmod(round(seconds), 60)
    return f"{whole:>2}:{rest:02}"
