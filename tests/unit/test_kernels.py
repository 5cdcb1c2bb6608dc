"""The summary of tests that ran on several kernels, and the problems that fail such a run."""

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.runner import reports
from tests.runner.reports import FAILED, PASSED, Session, by_kernel, failures, problems, ran_nowhere, summary
from tests.support import kernels
from tests.support.kernels import Recorder

LACKS = "this kernel (1.0) has no vlan_filtering"
FIRST = Session("1.0", {"t/test_a.py::one": PASSED, "t/test_a.py::two": LACKS, "t/test_b.py::three": PASSED})
SECOND = Session("2.0", {"t/test_a.py::one": PASSED, "t/test_a.py::two": PASSED, "t/test_b.py::three": "no NAT"})


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


def phase(outcome, reason=""):
    """Returns pytest's report of one phase of a test."""
    longrepr = ("file.py", 1, f"Skipped: {reason}") if reason else None
    return SimpleNamespace(
        nodeid="t",
        failed=outcome == "failed",
        skipped=outcome == "skipped",
        longrepr=longrepr,
        longreprtext="",
        duration=0.5,
    )


@pytest.mark.parametrize(
    ("phases", "outcome"),
    [
        ([phase("passed"), phase("passed"), phase("passed")], PASSED),
        ([phase("skipped", LACKS), phase("passed")], LACKS),
        ([phase("passed"), phase("skipped", LACKS), phase("passed")], LACKS),
        ([phase("failed"), phase("passed")], FAILED),
        ([phase("passed"), phase("failed"), phase("passed")], FAILED),
        ([phase("passed"), phase("passed"), phase("failed")], FAILED),
        ([phase("passed"), phase("failed"), phase("skipped", LACKS)], FAILED),
    ],
)
def test_the_worst_phase_of_a_test_is_its_outcome(tmp_path, phases, outcome):
    """A failure in setup, call or teardown is the outcome, and so is the reason for skipping; their times are added."""
    recorder = Recorder(tmp_path / "new" / "report.json")
    for report in phases:
        recorder.pytest_runtest_logreport(report)
    recorder.pytest_sessionfinish()
    session = Session.load(tmp_path / "new" / "report.json")
    assert session.outcomes == {"t": outcome}
    assert session.seconds == {"t": 0.5 * len(phases)}


def test_tests_that_run_somewhere_are_no_problem():
    """A test that was skipped on one kernel and passed on another is not a problem."""
    assert problems([FIRST, SECOND], is_ci=True) == []


def test_a_test_that_ran_on_no_kernel_is_a_problem():
    """A test that was skipped on every kernel is reported with the reasons."""
    nowhere = Session("2.0", {**SECOND.outcomes, "t/test_a.py::two": "no luck"})
    assert ran_nowhere([FIRST, nowhere]) == [f"ran on no kernel: t/test_a.py::two: {LACKS}; no luck"]


@pytest.mark.parametrize("name", ["t/test_a.py::one", "t/test_a.py::two"])
def test_a_test_that_failed_on_one_kernel_is_a_problem(name):
    """A failure on one kernel is reported, whether or not the test passed on the other."""
    failed = Session("2.0", {**SECOND.outcomes, name: FAILED})
    assert failures([FIRST, failed]) == [f"failed on 2.0: {name}"]


def test_the_summary():
    """The summary has outcomes by kernel, the files of tests that ran on one kernel only, and reasons for skipping."""
    assert summary([FIRST, SECOND]).splitlines() == [
        "kernel                    passed  failed   skipped",
        "1.0                            2       0         1",
        "2.0                            2       0         1",
        "ran on every kernel: 1",
        "ran on 1.0 only: test_b.py 1",
        "ran on 2.0 only: test_a.py 1",
        f"skipped on 1.0: 1: {LACKS}",
        "skipped on 2.0: 1: no NAT",
    ]


@pytest.mark.parametrize(
    ("outcomes", "in_ci", "expected"),
    [
        ({"one": PASSED, "two": LACKS}, False, []),
        ({"one": FAILED, "two": LACKS}, False, ["failed on 1.0: one"]),
        ({"one": FAILED}, True, ["failed on 1.0: one", "only one kernel was tested: CI must test two"]),
    ],
)
def test_one_kernel_is_not_enough_in_ci(outcomes, in_ci, expected):
    """Without a second kernel, skipped tests are a problem only in CI."""
    assert problems([Session("1.0", outcomes)], is_ci=in_ci) == expected


def test_both_kinds_of_problems_are_reported():
    """A run on two kernels reports the tests that failed and those that ran on no kernel."""
    problem_lines = problems(
        [Session("1.0", {"one": FAILED, "two": LACKS}), Session("2.0", {"two": LACKS})], is_ci=False
    )
    assert [line.partition(":")[0] for line in problem_lines] == ["failed on 1.0", "ran on no kernel"]


def test_shares_of_one_kernel_are_merged():
    """Reports of the same kernel are merged, with the failures of all."""
    shares = [Session("2.0", {"one": PASSED}), FIRST, Session("2.0", {"two": FAILED})]
    assert by_kernel(shares) == [Session("2.0", {"one": PASSED, "two": FAILED}), FIRST]


def test_tests_that_run_alone_run_separately():
    """Tests marked `alone` run with --alone only, and no other test then."""
    for is_alone, expected in ((True, ["measures"]), (False, ["other"])):
        items: Any = [Item("measures", "alone"), Item("other")]
        config: Any = SimpleNamespace(getoption={"--alone": is_alone, "--share": "0/1"}.get)
        pytest_collection_modifyitems(config, items)
        assert [item.nodeid for item in items] == expected


@pytest.mark.parametrize("of", [1, 2, 3])
def test_shares_are_all_tests_once(of):
    """Every test is in exactly one share, for any number of shares."""
    selected: list[str] = []
    for number in range(of):
        items: Any = [Item(str(each)) for each in range(10)]
        config: Any = SimpleNamespace(getoption={"--share": f"{number}/{of}"}.get)
        pytest_collection_modifyitems(config, items)
        selected += [item.nodeid for item in items]
    assert sorted(selected) == [str(each) for each in range(10)]


def test_comparisons_with_the_newest_reference_plugins_need_an_option():
    """With --newest-reference only tests of the reference plugins run; without it all but those that need it."""
    every = [Item("newest", "newest_reference", ("reference",)), Item("both", "", ("reference",)), Item("other")]
    for option, expected in ((False, ["both", "other"]), (True, ["newest", "both"])):
        items: Any = every[:]
        config: Any = SimpleNamespace(getoption={"--share": "0/1", "--newest-reference": option}.get)
        pytest_collection_modifyitems(config, items)
        assert [item.nodeid for item in items] == expected


def test_the_second_kernel_repeats_few_tests():
    """With --lacking, tests that need one of the features run, and each AGAIN-th of the others, but `one_kernel`."""
    others = [Item(f"o{number}") for number in range(2 * kernels.AGAIN)]
    items: Any = [Item("slow", "one_kernel"), Item("vlan", needs=("vlan", "nft")), *others, Item("nft", needs=("nft",))]
    config: Any = SimpleNamespace(getoption={"--lacking": frozenset({"vlan"}), "--share": "0/1"}.get)
    pytest_collection_modifyitems(config, items)
    assert [item.nodeid for item in items] == ["vlan", "o1", f"o{1 + kernels.AGAIN}"]


def test_a_sample_has_each_function():
    """With --sample each function runs with some of its cases, or with all if it is marked so; none if it is `long`."""
    many = [Item(f"t.py::many[{number}]") for number in range(20)]
    all_of = [Item(f"t.py::all[{number}]", "every_case") for number in range(20)]
    items: Any = [Item("t.py::one"), *many, *all_of, Item("t.py::slow", "long"), Item("t.py::other", needs=("vlan",))]
    config: Any = SimpleNamespace(getoption={"--sample": True, "--share": "0/1"}.get)
    pytest_collection_modifyitems(config, items)
    functions = Counter(item.nodeid.partition("[")[0] for item in items)
    assert functions.pop("t.py::many") in (2, 3)
    assert functions == {"t.py::one": 1, "t.py::all": 20, "t.py::other": 1}


def test_no_report_at_all_is_a_failure(tmp_path, capsys):
    """A directory without reports fails the run, with a message."""
    assert reports.main(Path(tmp_path)) == 1
    assert "no reports" in capsys.readouterr().err


@pytest.mark.parametrize(("outcome", "status"), [(PASSED, 0), (FAILED, 1)])
def test_the_reports_of_a_directory_decide_the_exit_status(tmp_path, capsys, outcome, status):
    """A failure in any of the reports makes the exit status 1."""
    Session("1.0", {"one": PASSED}).save(tmp_path / "first.json")
    Session("2.0", {"one": outcome}).save(tmp_path / "second.json")
    assert reports.main(tmp_path) == status
    assert "ran on every kernel: 1" in capsys.readouterr().out
