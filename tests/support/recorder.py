"""The report of a run of pytest: the outcome and the seconds of each test on the running kernel."""

import os
from pathlib import Path

import pytest

from tests.runner.reports import FAILED, PASSED, Report


class Recorder:
    """A plugin of pytest that records the outcome of each test and writes a report at the end.

    A test that did not come to its end has failed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, str] = {}
        self._seconds: dict[str, float] = {}
        self._selected: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Records the selected tests."""
        self._selected = [item.nodeid for item in session.items]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Records a file that is skipped."""
        if report.skipped:
            self._outcomes[report.nodeid] = _reason(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Records the outcome of one phase (setup, call, teardown): failed overrides skipped, and skipped passed."""
        before = self._outcomes.get(report.nodeid, PASSED)
        self._seconds[report.nodeid] = round(self._seconds.get(report.nodeid, 0) + report.duration, 3)
        if report.failed:
            self._outcomes[report.nodeid] = FAILED
        elif report.skipped and before != FAILED:
            self._outcomes[report.nodeid] = _reason(report)
        else:
            self._outcomes[report.nodeid] = before

    def pytest_sessionfinish(self) -> None:
        """Writes the report."""
        outcomes = dict.fromkeys(self._selected, FAILED) | self._outcomes
        Report(os.uname().release, outcomes, self._seconds).save(self._path)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Returns why a test was skipped: the third item of file, line, reason."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return text.removeprefix("Skipped: ")
