"""The reports of the tests: what each test's outcome was, on which kernel, and a table of the kernels.

As a program it reads the reports of a directory, prints the table, and fails if a test ran on no kernel.

One rule: the standard library only, because the runner starts before there is a virtual environment.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

PASSED, FAILED = "passed", "failed"


def in_ci() -> bool:
    """Returns whether CI is set; then only a missing feature of the kernel skips a test."""
    return os.environ.get("CI", "").lower() in ("1", "true")


@dataclass(frozen=True)
class Report:
    """The outcomes of the tests on one kernel, by test ID: PASSED, FAILED or the reason why it was skipped.

    `seconds` has their times, with setup and teardown.
    """

    release: str
    outcomes: Mapping[str, str]
    seconds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a report that `save` wrote."""
        return cls(**json.loads(path.read_text()))

    def save(self, path: Path) -> None:
        """Writes the report."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self), indent=1))
        partial.replace(path)

    @property
    def succeeded(self) -> bool:
        """Whether there are tests, and none failed."""
        return bool(self.outcomes) and FAILED not in self.outcomes.values()

    def ran(self) -> set[str]:
        """Returns the tests that were not skipped."""
        return {test for test, outcome in self.outcomes.items() if outcome in (PASSED, FAILED)}


def merge_by_kernel(reports: Iterable[Report]) -> list[Report]:
    """Returns one report for each kernel, merged from its shares."""
    outcomes: dict[str, dict[str, str]] = {}
    for report in reports:
        outcomes.setdefault(report.release, {}).update(report.outcomes)
    return [Report(release, whole) for release, whole in outcomes.items()]


def summary(reports: Sequence[Report]) -> str:
    """Returns a table of the outcomes on each kernel, and the reasons for skipped tests."""
    lines = [f"{'kernel':<24}{'passed':>8}{'failed':>8}{'skipped':>10}"]
    for report in reports:
        counts = Counter(report.outcomes.values())
        skipped = len(report.outcomes) - counts[PASSED] - counts[FAILED]
        lines.append(f"{report.release:<24}{counts[PASSED]:>8}{counts[FAILED]:>8}{skipped:>10}")
    everywhere = set.intersection(*(report.ran() for report in reports))
    lines.append(f"ran on every kernel: {len(everywhere)}")
    for report in reports:
        only = report.ran().difference(*(other.ran() for other in reports if other is not report))
        lines += [f"ran on {report.release} only: {_by_file(only)}"] if only and len(reports) > 1 else []
    for report in reports:
        reasons = Counter(outcome for outcome in report.outcomes.values() if outcome not in (PASSED, FAILED))
        lines += [f"skipped on {report.release}: {number}: {reason}" for reason, number in reasons.most_common()]
    return "\n".join(lines)


def failures(reports: Sequence[Report]) -> list[str]:
    """Returns a line for each test that failed, on each kernel."""
    return [
        f"failed on {report.release}: {test}"
        for report in reports
        for test, outcome in report.outcomes.items()
        if outcome == FAILED
    ]


def ran_nowhere(reports: Sequence[Report]) -> list[str]:
    """Returns a line for each test that was skipped on every kernel, with the reasons."""
    reasons: dict[str, list[str]] = {}
    for report in reports:
        for test, outcome in report.outcomes.items():
            reasons.setdefault(test, []).append(outcome)
    ran = set().union(*(report.ran() for report in reports))
    return [f"ran on no kernel: {test}: {'; '.join(why)}" for test, why in reasons.items() if test not in ran]


def problems(reports: Sequence[Report], *, is_ci: bool) -> list[str]:
    """Returns the problems of a run; outside CI, a run on one kernel may skip tests that need another one."""
    if len(reports) > 1:
        return failures(reports) + ran_nowhere(reports)
    return failures(reports) + (["only one kernel was tested: CI must test two"] if is_ci else [])


def _by_file(tests: Iterable[str]) -> str:
    counts = Counter(test.partition("::")[0].rpartition("/")[2] for test in tests)
    return ", ".join(f"{file} {number}" for file, number in sorted(counts.items()))


def main(directory: Path) -> int:
    """Prints the summary of all reports in `directory`; returns 1 if a test failed or ran on no kernel."""
    reports = merge_by_kernel(Report.load(path) for path in sorted(directory.glob("*.json")))
    if not reports:
        print(f"no reports of kernels in {directory}", file=sys.stderr)
        return 1
    print(summary(reports))
    if len(reports) == 1:
        print("only one kernel made a report", file=sys.stderr)
    for problem in (lines := problems(reports, is_ci=in_ci())):
        print(problem, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
