"""The promise of docs/compatibility.md: recorded keys, names, options and documents stay; new ones are recorded."""

import pytest

from process.version import __version__
from tests.support import compatibility

RECORDED = compatibility.record()
CURRENT = compatibility.current()
WRITE = "python -m tests.support.compatibility writes the list"


@pytest.mark.parametrize("title", sorted(RECORDED))
def test_promised_names_stay(title):
    """Nothing that was recorded is missing: that would need a new major version (docs/compatibility.md)."""
    assert set(RECORDED[title]) - set(CURRENT.get(title, [])) == set(), f"not compatible with {__version__}"


@pytest.mark.parametrize("title", sorted(title for title, items in CURRENT.items() if items))
def test_new_names_are_recorded(title):
    """A new name is part of the promise from its first release on, so it is recorded in the commit that adds it."""
    assert set(CURRENT[title]) - set(RECORDED.get(title, [])) == set(), WRITE
