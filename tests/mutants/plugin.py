"""A plugin of pytest for runs in a private copy of the project: it records lines, or runs chosen tests in an order.

One rule: the files in the private copy decide, because tests clean the environment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants import recording

ORDER = recording.ROOT / "build" / "mutants" / "order.json"  # the seconds of each test to run, in their order
OUTCOME = ORDER.with_name("outcome.json")
TIMES = recording.DIRECTORY / "times.json"


def pytest_configure(config: pytest.Config) -> None:
    """Adds the recorder or the chooser."""
    if recording.DIRECTORY.is_dir():
        config.pluginmanager.register(Recorder())
    if ORDER.exists():
        config.pluginmanager.register(Chooser(json.loads(ORDER.read_text())))


class Recorder:
    """Records the lines of each test in this process, and names the test to the processes that it starts."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._bad: set[str] = set()  # failed or skipped

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        recording.CURRENT.write_text(item.nodeid)
        stop = recording.start()
        result = yield
        stop()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0) + report.duration
        if report.outcome != "passed":
            self._bad.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        recording.CURRENT.unlink(missing_ok=True)
        good = {test: round(time, 2) for test, time in self._seconds.items() if test not in self._bad}
        TIMES.write_text(json.dumps(good))


class Chooser:
    """Runs the chosen tests in the given order, each with its time limit, until one fails."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._failed = ""
        self._running = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        places = {test: place for place, test in enumerate(self._seconds)}
        items[:] = sorted((item for item in items if item.nodeid in places), key=lambda item: places[item.nodeid])
        for item in items:
            item.add_marker(pytest.mark.timeout(10 * self._seconds[item.nodeid] + 20), append=False)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Names the running test, for a run that is killed."""
        self._running = nodeid
        self._write()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)  # a file that cannot be imported has failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_sessionfinish(self) -> None:
        self._running = ""
        self._write()

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.failed and not self._failed:
            self._failed = report.nodeid

    def _write(self) -> None:
        OUTCOME.write_text(json.dumps({"failed": self._failed, "running": self._running}))


def read_outcome(upper: Path) -> dict[str, str]:
    """Returns the outcome of a run from the changed files of its private copy; {} if it did not begin."""
    path = upper / OUTCOME.relative_to(recording.ROOT)
    return json.loads(path.read_text()) if path.exists() else {}
