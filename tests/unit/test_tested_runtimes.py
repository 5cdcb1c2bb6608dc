"""The table of docs/runtimes.md about the tested runtimes."""

from __future__ import annotations

import re

import pytest

from tests.clients import tested
from tests.runner import parts
from tests.runner.reports import FAILED, PASSED, Session
from tests.support.binaries import ROOT
from tests.support.markdown import Document

STATUS = """Package: containerd
Status: install ok installed
Version: 1.7.24~ds1-6+deb13u1

Package: containerd-doc
Version: 9

Package: podman
Version: 5.4.2+ds1-2+b2
"""


def test_page_has_the_rows_and_releases():
    """The page's table has one row for each package and feature, a column for each release, and no failure."""
    (table,) = (table for table in Document(tested.PAGE).tables() if "bookworm" in table[0])
    assert [row["Debian"] for row in table] == [*tested.PACKAGES, *tested.FEATURES]
    assert list(table[0]) == ["Debian", "bookworm", *parts.NEWER]
    cells = {cell for row in table[len(tested.PACKAGES) :] for cell in list(row.values())[1:]}
    assert cells <= {"yes", "no"}


@pytest.mark.parametrize("pattern", tested.FEATURES.values())
def test_each_row_has_a_test(pattern):
    """The file and the beginning of the test's name in a row's pattern exist."""
    file, _, function = pattern.partition("::")
    paths = [path for path in (ROOT / "tests" / "clients").glob("test_*.py") if re.search(file, path.name)]
    assert paths
    names = re.findall(r"^def (test_\w+)", "".join(path.read_text() for path in paths), re.MULTILINE)
    assert any(re.match(function.partition(".*")[0], name) for name in names)


def test_cells_are_read_from_reports_and_packages():
    """A row is "yes" if a test passed, "no" if all were skipped, FAILED if one failed; versions are upstream's."""
    tests = {"passed": PASSED, "failed": FAILED, "skipped": "no CNI"}
    session = Session("6.1", {f"a::{name}": result for name, result in tests.items()})
    words = [tested.outcome(session, pattern) for pattern in ("a::(passed|skipped)", "a::skipped", "a::", "b::")]
    assert words == ["yes", "no", "FAILED", "not run"]
    assert tested.versions(STATUS) == {"containerd": "1.7.24", "runc": "-", "podman": "5.4.2", "apptainer": "-"}
    lines = tested.table({"trixie": (session, STATUS)}).splitlines()
    assert lines[:3] == ["| Debian | trixie |", "|---|---|", "| containerd | 1.7.24 |"]
    assert lines[-1] == "| apptainer: `bridge` and `ptp` of its package | not run |"
