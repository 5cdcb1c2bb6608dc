"""The summary of tests that ran on several kernels, and the problems that fail such a run."""

import os
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.conftest import pytest_collection_modifyitems, pytest_ignore_collect
from tests.runner import reports
from tests.runner.reports import FAILED, PASSED, Report, problems
from tests.support import kernels
from tests.support.recorder import Recorder

LACKS = "this kernel (1.0) has no vlan_filtering"
FIRST = Report("1.0", {"t/test_a.py::one": PASSED, "t/test_a.py::two": LACKS, "t/test_b.py::three": PASSED})
SECOND = Report("2.0", {"t/test_a.py::one": PASSED, "t/test_a.py::two": PASSED, "t/test_b.py::three": "no NAT"})


class Item(NamedTuple):
    """The attributes of a test that pytest_collection_modifyitems uses."""

    nodeid: str
    marker: str = ""
    fixturenames: tuple[str, ...] = ()
    path: Path = Path(os.devnull)
    needs: tuple[str, ...] = ()

    def get_closest_marker(self, name):
        return name == self.marker

    def iter_markers(self, name):
        assert name == "needs"
        return [SimpleNamespace(args=self.needs)]


def phase(outcome):
    """Returns pytest's report of one phase of a test, which passed, failed, or was skipped for a reason."""
    status = {"failed": outcome == FAILED, "skipped": outcome not in (FAILED, PASSED)}
    longrepr = ("file.py", 1, f"Skipped: {outcome}")
    return SimpleNamespace(nodeid="t", longrepr=longrepr, longreprtext="", duration=0.5, **status)


def select(items: Iterable[Item], **options: object) -> list[str]:
    """Returns the names of the tests that are run with options of pytest, in their order."""
    selected: Any = list(items)
    config: Any = SimpleNamespace(getoption=options.get, hook=SimpleNamespace(pytest_deselected=dict))
    pytest_collection_modifyitems(config, selected)
    return [item.nodeid for item in selected]


@pytest.mark.parametrize(
    ("phases", "outcome"),
    [
        ([PASSED, PASSED, PASSED], PASSED),
        ([LACKS, PASSED], LACKS),
        ([FAILED, PASSED], FAILED),
        ([PASSED, FAILED, LACKS], FAILED),
    ],
)
def test_the_worst_phase_of_a_test_is_its_outcome(tmp_path, phases, outcome):
    """A failure in setup, call or teardown is the outcome, and so is the reason for skipping; their times are added."""
    recorder = Recorder(tmp_path / "new" / "report.json")
    for each in phases:
        recorder.pytest_runtest_logreport(phase(each))
    recorder.pytest_sessionfinish()
    report = Report.load(tmp_path / "new" / "report.json")
    assert report.outcomes == {"t": outcome}
    assert report.seconds == {"t": 0.5 * len(phases)}


TWO_KERNELS = [Report("1.0", {"one": FAILED, "two": LACKS}), Report("2.0", {"two": "no luck"})]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("reports", "in_ci", "expected"),
    [
        ([FIRST, SECOND], True, []),
        (TWO_KERNELS, False, ["failed on 1.0: one", f"ran on no kernel: two: {LACKS}; no luck"]),
        (TWO_KERNELS[:1], False, ["failed on 1.0: one"]),
        (TWO_KERNELS[:1], True, ["failed on 1.0: one", "only one kernel was tested: CI must test two"]),
    ],
    ids=["each ran somewhere", "both kinds", "one kernel", "one kernel in CI"],
)
def test_problems_of_a_run(reports, in_ci, expected):
    """A test that failed on a kernel, or ran on none, is a problem, and in CI a single kernel is."""
    assert problems(reports, is_ci=in_ci) == expected


MEASURES, SLOW, OTHER = Item("measures", "alone"), Item("slow", "one_kernel"), Item("other")
NEWEST, BOTH = Item("newest", "newest_reference", ("reference",)), Item("both", "", ("reference",))


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("items", "options", "expected"),
    [
        ([MEASURES, OTHER], {}, ["other"]),
        ([MEASURES, OTHER], {"--alone": True}, ["measures"]),
        ([NEWEST, BOTH, OTHER], {}, ["both", "other"]),
        ([NEWEST, BOTH, OTHER], {"--newest-reference": True}, ["newest", "both"]),
        ([SLOW, Item("vlan", needs=("vlan", "nft"))], {"--lacking": frozenset({"vlan"})}, ["vlan"]),
    ],
)
def test_options_select_tests(items, options, expected):
    """Tests marked `alone`, of the newest reference plugins and of features that a kernel lacks run with an option."""
    assert select(items, **options) == expected


@pytest.mark.parametrize("of", [1, 2, 3])
def test_each_file_is_in_one_share(tmp_path, of):
    """Every file of tests is in exactly one share, for any number of shares; other files are in all."""
    files, other = [tmp_path / f"test_{number}.py" for number in range(10)], tmp_path / "conftest.py"
    for path in (*files, other):
        path.touch()
    configs: list[Any] = [SimpleNamespace(getoption={"--share": f"{number}/{of}"}.get) for number in range(of)]
    shares = [[path for path in (*files, other) if not pytest_ignore_collect(path, config)] for config in configs]
    assert Counter(chain.from_iterable(shares)) == {**dict.fromkeys(files, 1), other: of}


def test_the_second_kernel_repeats_few_tests():
    """With --lacking each AGAIN-th of the tests runs that need none of the features."""
    items = [Item(f"o{number}") for number in range(2 * kernels.AGAIN)]
    assert select(items, **{"--lacking": frozenset({"vlan"})}) == ["o1", f"o{kernels.AGAIN + 1}"]


def test_the_short_suite_has_each_function():
    """With --short each function runs with some of its cases, or with all if it is marked so; none if it is `long`."""
    many = [Item(f"t.py::many[{number}]") for number in range(20)]
    all_of = [Item(f"t.py::all[{number}]", "every_case") for number in range(20)]
    items = [Item("t.py::one"), *many, *all_of, Item("t.py::slow", "long"), Item("t.py::other", needs=("vlan",))]
    functions = Counter(name.partition("[")[0] for name in select(items, **{"--short": True}))
    assert functions.pop("t.py::many") in (2, 3)
    assert functions == {"t.py::one": 1, "t.py::all": 20, "t.py::other": 1}


@pytest.mark.parametrize(("outcome", "status"), [(PASSED, 0), (FAILED, 1)])
def test_the_reports_of_a_directory_decide_the_exit_status(tmp_path, capsys, outcome, status):
    """A failure in any of the reports makes the exit status 1, and so does a directory without reports."""
    assert reports.main(tmp_path) == 1
    assert "no reports" in capsys.readouterr().err
    Report("1.0", {"one": PASSED}).save(tmp_path / "first.json")
    Report("2.0", {"one": outcome}).save(tmp_path / "second.json")
    assert reports.main(tmp_path) == status
    assert "ran on every kernel: 1" in capsys.readouterr().out
