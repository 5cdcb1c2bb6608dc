"""The table of docs/runtimes.md about the tested runtimes."""

import re

import pytest

from tests.clients import tested
from tests.runner import parts
from tests.support.binaries import ROOT
from tests.support.markdown import Document


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
