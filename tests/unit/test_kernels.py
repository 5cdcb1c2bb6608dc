"""What is told of the tests that ran on several kernels, and what fails such a run."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.support import kernels
from tests.support.kernels import FAILED, PASSED, Recorder, Session, by_kernel, failures, problems, ran_nowhere, summary

LACKS = "this kernel (1.0) has no vlan_filtering"
FIRST = Session("1.0", {"t/test_a.py::one": PASSED, "t/test_a.py::two": LACKS, "t/test_b.py::three": PASSED})
SECOND = Session("2.0", {"t/test_a.py::one": PASSED, "t/test_a.py::two": PASSED, "t/test_b.py::three": "no NAT"})


class Item(NamedTuple):
    """A test, as far as it is asked here."""

    nodeid: str
    marker: str = ""

    def get_closest_marker(self, name):
        return name == self.marker


def phase(outcome, reason=""):
    """Returns what pytest reports of one phase of a test."""
    longrepr = ("file.py", 1, f"Skipped: {reason}") if reason else None
    return SimpleNamespace(
        nodeid="t", failed=outcome == "failed", skipped=outcome == "skipped", longrepr=longrepr, longreprtext=""
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
    """A failure in set-up, call or tear-down stands, and so does the reason why a test was left out."""
    recorder = Recorder(tmp_path / "new" / "report.json")
    for report in phases:
        recorder.pytest_runtest_logreport(report)
    recorder.pytest_sessionfinish()
    assert Session.load(tmp_path / "new" / "report.json").outcomes == {"t": outcome}


def test_tests_that_run_somewhere_are_no_problem():
    """A test may be left out on one kernel when it passes on another."""
    assert problems([FIRST, SECOND], in_ci=True) == []


def test_a_test_that_ran_on_no_kernel_is_a_problem():
    """A test that every kernel left out is told, with the reason of each."""
    nowhere = Session("2.0", {**SECOND.outcomes, "t/test_a.py::two": "no luck"})
    assert ran_nowhere([FIRST, nowhere]) == [f"ran on no kernel: t/test_a.py::two: {LACKS}; no luck"]


@pytest.mark.parametrize("name", ["t/test_a.py::one", "t/test_a.py::two"])
def test_a_test_that_failed_on_one_kernel_is_a_problem(name):
    """A failure on one kernel counts, whether or not the test passed on the other."""
    failed = Session("2.0", {**SECOND.outcomes, name: FAILED})
    assert failures([FIRST, failed]) == [f"failed on 2.0: {name}"]


def test_the_summary_tells_what_ran_where():
    """The table counts by kernel, names the files of tests that ran on one only, and the reasons."""
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
    ("outcomes", "in_ci", "found"),
    [
        ({"one": PASSED, "two": LACKS}, False, []),
        ({"one": FAILED, "two": LACKS}, False, ["failed on 1.0: one"]),
        ({"one": FAILED}, True, ["failed on 1.0: one", "only one kernel was tested: CI must test two"]),
    ],
)
def test_one_kernel_is_enough_on_a_laptop_and_not_in_ci(outcomes, in_ci, found):
    """Where there is no second kernel, what the first lacks stays untested; CI does not accept that."""
    assert problems([Session("1.0", outcomes)], in_ci=in_ci) == found


def test_both_kinds_of_problem_are_told():
    """A run over two kernels reports what failed and what ran nowhere."""
    found = problems([Session("1.0", {"one": FAILED, "two": LACKS}), Session("2.0", {"two": LACKS})], in_ci=False)
    assert [line.partition(":")[0] for line in found] == ["failed on 1.0", "ran on no kernel"]


def test_shares_of_one_kernel_are_put_together():
    """Reports of the same kernel count as one, and a failure in any of them stands."""
    shares = [Session("2.0", {"one": PASSED}), FIRST, Session("2.0", {"two": FAILED})]
    assert by_kernel(shares) == [Session("2.0", {"one": PASSED, "two": FAILED}), FIRST]


@pytest.mark.parametrize("of", [1, 2, 3])
def test_shares_are_all_tests_once(of):
    """Every test is in exactly one of the shares, whatever their number."""
    found = []
    for number in range(of):
        items = list(range(10))
        pytest_collection_modifyitems(SimpleNamespace(getoption={"--share": f"{number}/{of}"}.get), items)
        found += items
    assert sorted(found) == list(range(10))


def test_what_passed_elsewhere_runs_a_third_again(tmp_path):
    """Of what passed on another kernel each third runs again, but no crowd; what ran on this one says nothing."""
    other = {f"o{number}": PASSED for number in range(6)} | {"left out": LACKS, "failed": FAILED}
    Session("another", other).save(tmp_path / "first.json")
    Session(os.uname().release, {"new": PASSED, "newer": PASSED, "o1": PASSED}).save(tmp_path / "second.json")
    options = {"--besides": tmp_path, "--share": "0/1"}
    items = [Item("o1", "crowd"), *map(Item, (*other, "new", "newer"))]
    pytest_collection_modifyitems(SimpleNamespace(getoption=options.get), items)
    assert [item.nodeid for item in items] == ["o0", "o3", "left out", "failed", "new", "newer"]


def test_no_report_at_all_is_a_failure(tmp_path, capsys):
    """A directory without reports fails the run, with a message."""
    assert kernels.main(Path(tmp_path)) == 1
    assert "no reports" in capsys.readouterr().err


@pytest.mark.parametrize(("outcome", "status"), [(PASSED, 0), (FAILED, 1)])
def test_the_reports_of_a_directory_decide_the_exit_status(tmp_path, capsys, outcome, status):
    """A failure in any of the reports makes the exit status 1."""
    Session("1.0", {"one": PASSED}).save(tmp_path / "first.json")
    Session("2.0", {"one": outcome}).save(tmp_path / "second.json")
    assert kernels.main(tmp_path) == status
    assert "ran on every kernel: 1" in capsys.readouterr().out
