"""The runner of `make test`: the order of the parts, failures, totals, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.runner import parts, repeat, totals
from tests.runner.__main__ import has_passed, mark_passed, prepare_reports
from tests.runner.reports import FAILED, PASSED, Report
from tests.runner.schedule import Part, Result, Schedule
from tests.support.binaries import ROOT
from tests.support.machine import eventually

RUNNER = """
import sys
from dataclasses import asdict, replace
from pathlib import Path
from tests.runner.__main__ import start
from tests.runner.schedule import Part, Schedule

part = Part("part", ("sh", "-c", sys.argv[1]), isolated=False)
for _ in Schedule([part], 1, start).results(Path(sys.argv[2])):
    pass
"""


def start(part: Part, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(part.command, stdout=output, stderr=output, cwd=log.parent, start_new_session=True)


def run(tmp_path, chosen, parallel=4):
    """Runs parts; returns their results by name, in the order in which they ended."""
    return {result.part.name: result for result in Schedule(chosen, parallel, start).results(tmp_path) if result}


def shell(name, script, **order):
    return Part(name, ("sh", "-ec", script), **order)


def test_parts_start_after_their_dependencies(tmp_path):
    """A part starts after the parts in its `needs` and `after` have ended."""
    chosen = [
        shell("last", "test -e second", after=("second",)),
        shell("second", "test -e first; touch second", needs=("first",)),
        shell("first", "sleep 0.1; touch first"),
    ]
    results = run(tmp_path, chosen)
    assert list(results) == ["first", "second", "last"]
    assert all(result.succeeded for result in results.values())


def test_failed_part_stops_only_parts_that_need_it(tmp_path):
    """Parts that need a failed part, directly or not, are not run; those that come after it, or after none, are run."""
    chosen = [
        shell("broken", "exit 3"),
        shell("needs", "true", needs=("broken",)),
        shell("needs that", "true", needs=("needs",)),
        shell("after", "true", after=("broken", "needs", "not chosen")),
    ]
    status = {name: result.status for name, result in run(tmp_path, chosen).items()}
    assert status == {"broken": 3, "needs": None, "needs that": None, "after": 0}


def has_ended(pid):
    return eventually(lambda: not os.path.exists(f"/proc/{pid}/exe"))


@pytest.mark.every_case
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_runner_leaves_no_part(tmp_path, number):
    """Ctrl-C ends the running part and the processes that it started; a part ends if its runner is killed."""
    script = f"sleep 1000 & echo $$ $! >{tmp_path}/new; mv {tmp_path}/new {tmp_path}/pids; wait"
    command = [sys.executable, "-c", RUNNER, script, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as runner:
        assert eventually((tmp_path / "pids").exists)
        runner.send_signal(number)
    part, child = (tmp_path / "pids").read_text().split()
    if number == signal.SIGKILL:
        os.kill(int(child), signal.SIGKILL)
    assert has_ended(part)
    assert has_ended(child)


@pytest.mark.parametrize("suite", parts.SUITES)
def test_dependencies_of_parts_exist(suite):
    """Every part of a suite has a unique name, and the dependencies exist and have no cycle."""
    chosen = parts.named([suite])
    names = [part.name for part in chosen]
    assert len(set(names)) == len(names)
    assert {name for part in chosen for name in (*part.needs, *part.after)} <= set(names)
    unordered = list(chosen)
    finished: set[str] = set()
    while unordered:
        ready = [part for part in unordered if {*part.needs, *part.after} <= finished]
        assert ready, [part.name for part in unordered]
        finished |= {part.name for part in ready}
        unordered = [part for part in unordered if part.name not in finished]


def test_named_part_is_run_with_its_dependencies():
    """A name selects a part or all of its shares, with the parts that they need."""
    needed = ["test-root", "binaries", "agent-base", "build-arm64", "venv", "debian-roots", "release"]
    assert [part.name for part in parts.named(["release"])] == needed
    shares = [part.name for part in parts.named(["hard"])]
    assert shares == ["test-root", "binaries", "venv", "hard-0", "hard-1", "hard-2"]
    groups = {part.group for part in parts.named(["second-kernel"])}
    assert groups == {"", "second-kernel"}
    roots = {part.name: part.root for part in parts.named(["newer-clients"]) if part.isolated}
    assert roots == {f"newer-clients-{release}": f"build/runtimes/{release}" for release in ("trixie", "sid")}
    for name in ("releases", "build", "agent", "test"):
        with pytest.raises(KeyError, match=name):
            parts.named(["clients", name])


def directory(path: Path) -> str:
    return f"tests/{path.parent.name}"


def test_every_directory_of_tests_is_run():
    """Each directory with tests is an argument of a part of `make test-all`, and of the part "alone" if it has such.

    A target of make runs the others.
    """
    files = list((ROOT / "tests").glob("*/test_*.py"))
    words = {word for part in parts.test_all() for word in part.command}
    assert {directory(path) for path in files} - {*parts.RUN_BY_MAKE} <= words
    assert {directory(path) for path in files if "mark.alone" in path.read_text()} - {"tests/unit"} == set(
        parts.WITH_ALONE
    )


@pytest.mark.every_case
@pytest.mark.parametrize("end", ["os._exit(0)", "pytest.exit('enough', returncode=0)", "None"])
def test_part_with_tests_that_did_not_end_has_failed(tmp_path, end):
    """Exit status 0 is no success of tests that did not come to their end."""
    tests = tmp_path / "test_it.py"
    tests.write_text(f"import os, pytest\ndef test_first(): {end}\ndef test_second(): pass\n")
    report = f"--report={tmp_path}/part.json"
    command = (sys.executable, "-m", "pytest", "-p", "tests.conftest", f"--rootdir={ROOT}", report, str(tests))
    part = Part("part", ("env", f"PYTHONPATH={ROOT}", *command))
    (result,) = run(tmp_path, [part]).values()
    assert result.succeeded, result.log.read_text()
    assert totals.checked(result, totals.report_of(result, tmp_path)).succeeded == (end == "None")


def test_part_leaves_no_process(tmp_path):
    """What a part has started ends with it."""
    assert run(tmp_path, [shell("part", "sleep 1000 & echo $! >pid")])["part"].succeeded
    assert has_ended((tmp_path / "pid").read_text().strip())


def test_total_of_all_parts(tmp_path):
    """The total counts passed, failed and skipped tests of all reports, and each failure has a line."""
    good = Report("1.0", {"t::a": PASSED, "t::b": "no such feature"})
    bad = Report("1.0", {"t::c": FAILED, "t::d": PASSED})
    good.save(tmp_path / "kernels" / "good.json")
    bad.save(tmp_path / "bad.json")
    results = [
        Result(Part("good", ()), 0, 61, Path("good.log")),
        Result(Part("bad", ()), 1, 2, Path("bad.log")),
        Result(Part("absent", (), needs=("x",)), None, 0, Path("absent.log")),
    ]
    reports = [totals.report_of(result, tmp_path) for result in results]
    assert reports == [good, bad, None]
    assert totals.line(results[0], reports[0]) == " 1:01  good             1 passed, 0 failed, 1 skipped"
    assert totals.line(results[1], reports[1]) == (
        " 0:02  bad              FAILED (exit status 1): 1 passed, 1 failed, 0 skipped"
    )
    assert totals.line(results[2], None) == " 0:00  absent           NOT RUN: it needs x"
    assert totals.summary(results, [good, bad], ["t::e"], 63) == [
        "failed: t::c",
        "failed in parallel, passed alone: t::e",
        "failed: bad, its output: bad.log",
        "not run: absent",
        "total: 2 passed, 1 failed, 1 skipped; 2 of 3 parts failed;  1:03 minutes",
    ]


def test_nightly_repeats_no_part_that_passed(tmp_path, monkeypatch):
    """Parts that passed at this commit are not repeated; another commit, or a changed file, begins again."""
    monkeypatch.setattr(parts, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr(parts, "KERNELS", tmp_path / "reports" / "kernels")
    good, bad = Part("good", ()), Part("bad", ())

    def run_at(commit: str) -> list[str]:
        with prepare_reports(commit):
            passed = [part.name for part in (good, bad) if has_passed(part)]
            mark_passed([Result(good, 0, 1, tmp_path / "log"), Result(bad, 1, 1, tmp_path / "log")])
            return passed

    commits = ("one", "one", "two", "one", "", "", "one")
    assert [run_at(commit) for commit in commits] == [[], ["good"], [], [], [], [], []]


SKIPPED = 5  # the number of a test that is skipped when it is repeated


@pytest.fixture
def ended(tmp_path):
    """Ends parts with reports of failed tests, each with a number; an odd test passes when it is repeated."""

    def end(*numbers: int):
        ended = {}
        for number in numbers:
            name, test = f"part-{number}", f"t::{number}"
            report = Report("1.0", {test: FAILED, "t::good": PASSED})
            report.save(tmp_path / "kernels" / f"{name}.json")
            repeated = tmp_path / f"{name}-repeated.json"
            outcome = Report("1.0", {test: PASSED if number != SKIPPED else "no such feature"})
            expected = f"--report={repeated} --nightly {test}"
            script = (
                f'test "$*" = "{expected}" && echo \'{json.dumps(asdict(outcome))}\' >{repeated}; exit {1 - number % 2}'
            )
            part = Part(
                name, ("sh", "-c", script, "sh", f"--report=kernels/{name}.json", "--nightly", "--share=0/2", "tests")
            )
            ended[name] = Result(part, 1, 1, tmp_path / f"{name}.log"), report
        return ended

    return end


def test_failed_tests_are_repeated_alone(ended, tmp_path):
    """Of the failed parts, those succeed whose failed tests pass, not skipped, when repeated; their reports say so.

    Nothing is repeated if many tests failed, or a part in another way than by a failed test.
    """

    def repeated(results):
        return list(repeat.repeat(results, tmp_path, lambda again: run(tmp_path, again, 1).values()))

    result, report = ended(1)["part-1"]
    assert repeated({"part-1": (replace(result, status=-9), report)}) == []
    assert repeated(ended(*range(1, 2 * repeat.MOST_TESTS + 3, 2))) == []
    results = ended(1, 2, 3, SKIPPED)
    assert repeated(results) == ["t::1", "t::3"]
    assert [result.status for result, _ in results.values()] == [0, 1, 0, 1]
    assert results["part-3"][1].outcomes == {"t::3": PASSED, "t::good": PASSED}
    for name, (result, report) in results.items():
        assert totals.report_of(result, tmp_path) == report, name
