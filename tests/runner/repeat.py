"""Repeats the failed tests of a run, one after the other, when all parts have ended.

Parts run in parallel, on few processors, and some machines stall for seconds: a test that fails then and passes alone
is listed, but does not fail the run.

One rule: a run repeats few tests, and each only once; a part without a report of its failure stays failed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.runner.reports import FAILED, PASSED, Report
from tests.runner.schedule import REPORT_OPTION, Part, Result
from tests.runner.totals import report_of

_TESTS_FAILED = 1  # the exit status of pytest
MOST_TESTS = 5  # more failures have one cause, which is not the machine's load
_KEPT_OPTIONS = ("--newest-reference", "--alone", "--nightly")  # without them other tests or fewer cases are repeated
_SUFFIX = "-repeated"


def failed_tests(report: Report) -> list[str]:
    """Returns the IDs of the tests that failed."""
    return [test for test, outcome in report.outcomes.items() if outcome == FAILED]


def to_repeat(ended: Mapping[str, tuple[Result, Report | None]], directory: Path) -> list[Part]:
    """Returns a part for each failed part, with its failed tests only; none if the run has other or many failures."""
    failed = [(result, report) for result, report in ended.values() if not result.succeeded]
    tests = [failed_tests(report) if report and result.status == _TESTS_FAILED else [] for result, report in failed]
    if not all(tests) or sum(map(len, tests)) > MOST_TESTS:
        return []
    return [_with_tests(result.part, names, directory) for (result, _), names in zip(failed, tests, strict=True)]


def repeat(
    ended: dict[str, tuple[Result, Report | None]],
    directory: Path,
    run: Callable[[Sequence[Part]], Iterable[Result]],
) -> Iterator[str]:
    """Runs failed tests again and yields those that pass; updates `ended` and the reports.

    `ended` has the result and the report of each part, by its name; `run` runs parts, one after the other.
    """
    for again in run(to_repeat(ended, directory)):
        if not again.succeeded:
            continue
        name = again.part.name.removesuffix(_SUFFIX)
        result, report = ended[name]
        assert report is not None  # to_repeat() needs it
        repeated = report_of(again, directory)
        tests = failed_tests(report)
        if repeated is None or any(repeated.outcomes.get(test) != PASSED for test in tests):
            continue  # a test that was not selected or skipped this time has not passed
        report = replace(report, outcomes={**report.outcomes, **dict.fromkeys(tests, PASSED)})
        report.save(next(directory.rglob(f"{name}.json")))
        ended[name] = replace(result, status=0), report
        yield from tests


def _with_tests(part: Part, tests: list[str], directory: Path) -> Part:
    """Returns a part that repeats these tests of a part: they replace its paths and its options for selecting tests."""
    arguments = next(number for number, word in enumerate(part.command) if word.startswith(REPORT_OPTION))
    name = f"{part.name}{_SUFFIX}"
    options = [word for word in part.command[arguments + 1 :] if word in _KEPT_OPTIONS]
    command = (*part.command[:arguments], f"{REPORT_OPTION}{directory}/{name}.json", *options, *tests)
    return replace(part, name=name, command=command, needs=(), after=())
