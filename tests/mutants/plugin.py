"""A plugin of pytest for runs in a private copy of the project: it records lines, or runs chosen tests in an order.

One rule: the files in the private copy decide, because tests clean the environment.
"""

import json
import math
from collections.abc import Iterator

import pytest

from tests.mutants import recording

ORDER = recording.ROOT / "build" / "mutants" / "order.json"  # the seconds of each test to run, in their order
KILLER = ORDER.with_name("killer")  # the test that failed, or was running when pytest was killed
TIMES = recording.DIRECTORY / "times.json"


def pytest_configure(config: pytest.Config) -> None:
    """Adds the recorder or the chooser."""
    if recording.DIRECTORY.is_dir():
        config.pluginmanager.register(Recorder())
    if ORDER.exists():
        config.pluginmanager.register(Chooser())


class Recorder:
    """Records the lines of each test in this process, and names the test to the processes that it starts."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}  # nan: failed or skipped

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        recording.CURRENT.write_text(item.nodeid)
        stop = recording.start()
        result = yield
        stop()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds = report.duration if report.passed else math.nan
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0) + seconds

    def pytest_sessionfinish(self) -> None:
        recording.CURRENT.unlink(missing_ok=True)
        good = {test: round(seconds, 2) for test, seconds in self._seconds.items() if not math.isnan(seconds)}
        TIMES.write_text(json.dumps(good))


class Chooser:
    """Runs the chosen tests in the given order, each with its time limit; the file KILLER remains if one fails."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        seconds: dict[str, float] = json.loads(ORDER.read_text())
        by_id = {item.nodeid: item for item in items}
        items[:] = [by_id[test] for test in seconds if test in by_id]
        for item in items:
            item.add_marker(pytest.mark.timeout(10 * seconds[item.nodeid] + 20), append=False)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        KILLER.write_text(nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not session.testsfailed:
            KILLER.unlink(missing_ok=True)
