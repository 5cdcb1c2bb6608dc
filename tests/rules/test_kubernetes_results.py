"""The results of upstream's tests on a cluster, in tests/data/kubernetes.json and docs/kubernetes.md."""

import json

from tests.kubernetes import e2e, results


def test_page_has_the_results() -> None:
    """The page has the table of the last run, in which each test passed."""
    assert results.table() in results.PAGE.read_text()
    assert set(json.loads(results.DATA.read_text())["outcomes"].values()) == {e2e.PASSED}


def test_each_reason_leaves_out_a_test() -> None:
    """Each pattern of left_out.toml is that of a test which did not run, and of none that ran."""
    last_run = json.loads(results.DATA.read_text())
    assert {*last_run["left_out"].values()} == {*e2e.left_out().values()}
    assert [name for name in last_run["outcomes"] if e2e.reason_to_leave_out(name)] == []
