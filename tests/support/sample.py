"""The tests of `make test`: all but those marked `long`, and of each test function a few of its cases.

One rule: what is in the sample follows from the tests themselves, so it is the same on every machine and kernel.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from itertools import groupby

import pytest

_STEP = 8  # of so many cases of a function, one is run


def sample(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests of the sample, in their order: every case of a function that is marked `every_case`."""
    chosen: list[pytest.Item] = []
    for name, group in groupby(items, key=_function_of):
        cases = [item for item in group if not item.get_closest_marker("long")]
        chosen += cases if cases and cases[0].get_closest_marker("every_case") else _few(name, cases)
    return chosen


def _function_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _few(name: str, cases: list[pytest.Item]) -> list[pytest.Item]:
    """Returns each _STEP-th case; which is the first depends on the name, so that functions try different values."""
    if not cases:
        return []
    first = zlib.crc32(name.encode()) % min(_STEP, len(cases))
    return cases[first::_STEP]
