"""Versions of the specification (cni.versions)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni import versions
from tests.support.errors import failure_of


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", (0, 1, 0)), ("1", (1, 0, 0)), ("1.0", (1, 0, 0)), ("0.4.0", (0, 4, 0)), ("10.20.30", (10, 20, 30))],
)
def test_versions_have_one_to_three_numbers(text, numbers):
    """A version has one to three numbers; an empty one is 0.1.0."""
    assert versions.parse(text) == numbers


@pytest.mark.parametrize("text", ["abc", "1.", "1..0", "1.0.0.0", "1.0.x", " 1", "1.0.0\n", "-1", "²", "1" * 5000])
def test_invalid_versions_are_refused(text):
    """Any other text is a ValueError."""
    with pytest.raises(ValueError, match="version"):
        versions.parse(text)


def test_versions_are_ordered_by_number():
    """0.10 is later than 0.9, and the supported versions are in order."""
    assert versions.at_least("0.10.0", "0.9.0")
    assert not versions.at_least("0.3.1", "0.4.0")
    assert list(versions.SUPPORTED) == sorted(versions.SUPPORTED, key=versions.parse)


def test_every_supported_version_has_a_family():
    """Each supported version, and no other, belongs to one of the three shapes of results."""
    assert tuple(name for names in versions.FAMILIES for name in names if name) == versions.SUPPORTED
    assert versions.family("2.0.0") is None
    assert versions.family("") == versions.family("0.2.0")


@given(st.text() | st.text(alphabet="0123456789."))
def test_any_text_is_a_version_or_a_value_error(text):
    """No text causes another exception in the parser."""
    error = failure_of(lambda: versions.parse(text), ValueError)
    assert error is None or "version" in str(error)
