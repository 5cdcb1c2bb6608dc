"""The figures of a soak: growth of memory."""

import pytest

from tests.support.soak import Sample, growth_mib


def samples(*mib):
    """Returns samples, one a minute, with these values of unreclaimable memory."""
    return [
        Sample(float(minute), 1000 * minute, {"links": 4}, {"SUnreclaim": each}, 7) for minute, each in enumerate(mib)
    ]


@pytest.mark.parametrize(
    ("mib", "growth"),
    [
        ((100,), 0),
        ((100, 100, 100, 100, 100, 100), 0),
        ((100, 110, 120, 130, 140, 150), 40),
        ((100, 100, 900, 900, 100, 900), 0),
        ((150, 120, 100, 100, 90, 90), -30),
    ],
    ids=["one sample", "constant", "growing", "other programs", "shrinking"],
)
def test_growth_of_memory(mib, growth):
    """Growth is the difference of the least values at both ends, which other programs disturb least."""
    assert growth_mib(samples(*mib), "SUnreclaim") == growth
