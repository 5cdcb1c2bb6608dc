"""The reports of the tests: what each test's outcome was, on which kernel, and a table of the kernels.

As a program it reads the reports of a directory, prints the table, and fails if a test ran on no kernel.

One rule: the standard library only, because the runner starts before there is a virtual environment.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

PASSED, FAILED = "passed", "failed"


def in_ci() -> bool:
    """Returns whether CI=true; then no test may be skipped."""
    return os.environ.get("CI", "").lower() in ("1", "true")


@dataclass(frozen=True)
class Session:
    """The outcomes of the tests on one kernel, by test ID: PASSED, FAILED or the reason why it was skipped.

    `seconds` has their times, with setup and teardown.
    """

    release: str
    outcomes: Mapping[str, str]
    seconds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Session:
        """Reads a report that `save` wrote."""
        return cls(**json.loads(path.read_text()))

    def save(self, path: Path) -> None:
        """Writes the report."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1))

    def ran(self) -> set[str]:
        """Returns the tests that were not skipped."""
        return {test for test, outcome in self.outcomes.items() if outcome in (PASSED, FAILED)}


def by_kernel(sessions: Iterable[Session]) -> list[Session]:
    """Returns one session for each kernel, merged from its shares."""
    outcomes: dict[str, dict[str, str]] = {}
    for session in sessions:
        outcomes.setdefault(session.release, {}).update(session.outcomes)
    return [Session(release, whole) for release, whole in outcomes.items()]


def summary(sessions: Sequence[Session]) -> str:
    """Returns a table of the outcomes on each kernel, and the reasons for skipped tests."""
    lines = [f"{'kernel':<24}{'passed':>8}{'failed':>8}{'skipped':>10}"]
    for session in sessions:
        counts = Counter(session.outcomes.values())
        skipped = len(session.outcomes) - counts[PASSED] - counts[FAILED]
        lines.append(f"{session.release:<24}{counts[PASSED]:>8}{counts[FAILED]:>8}{skipped:>10}")
    everywhere = set.intersection(*(session.ran() for session in sessions))
    lines.append(f"ran on every kernel: {len(everywhere)}")
    for session in sessions:
        only = session.ran().difference(*(other.ran() for other in sessions if other is not session))
        lines += [f"ran on {session.release} only: {_by_file(only)}"] if only and len(sessions) > 1 else []
    for session in sessions:
        reasons = Counter(outcome for outcome in session.outcomes.values() if outcome not in (PASSED, FAILED))
        lines += [f"skipped on {session.release}: {number}: {reason}" for reason, number in reasons.most_common()]
    return "\n".join(lines)


def failures(sessions: Sequence[Session]) -> list[str]:
    """Returns a line for each test that failed, on each kernel."""
    return [
        f"failed on {session.release}: {test}"
        for session in sessions
        for test, outcome in session.outcomes.items()
        if outcome == FAILED
    ]


def ran_nowhere(sessions: Sequence[Session]) -> list[str]:
    """Returns a line for each test that was skipped on every kernel, with the reasons."""
    reasons: dict[str, list[str]] = {}
    for session in sessions:
        for test, outcome in session.outcomes.items():
            reasons.setdefault(test, []).append(outcome)
    ran = set().union(*(session.ran() for session in sessions))
    return [f"ran on no kernel: {test}: {'; '.join(why)}" for test, why in reasons.items() if test not in ran]


def problems(sessions: Sequence[Session], *, is_ci: bool) -> list[str]:
    """Returns the problems of a run; outside CI, a run on one kernel may skip tests that need another one."""
    if len(sessions) > 1:
        return failures(sessions) + ran_nowhere(sessions)
    return failures(sessions) + (["only one kernel was tested: CI must test two"] if is_ci else [])


def _by_file(tests: Iterable[str]) -> str:
    counts = Counter(test.partition("::")[0].rpartition("/")[2] for test in tests)
    return ", ".join(f"{file} {number}" for file, number in sorted(counts.items()))


def main(directory: Path) -> int:
    """Prints the summary of all reports in `directory`; returns 1 if a test failed or ran on no kernel."""
    sessions = by_kernel(Session.load(path) for path in sorted(directory.glob("*.json")))
    if not sessions:
        print(f"no reports of kernels in {directory}", file=sys.stderr)
        return 1
    print(summary(sessions))
    if len(sessions) == 1:
        print("only one kernel made a report", file=sys.stderr)
    for problem in (lines := problems(sessions, is_ci=in_ci())):
        print(problem, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
