"""The short suite, `make test`: all tests but those marked `long`, and of each test function a few of its cases.

One rule: what is in it follows from the tests themselves, so it is the same on every machine and kernel.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from itertools import groupby

import pytest

_STEP = 8  # every eighth case of a function is run


def select(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests of the short suite, in their order: every case of a function that is marked `every_case`."""
    chosen: list[pytest.Item] = []
    for name, group in groupby(items, key=_function_of):
        cases = [item for item in group if not item.get_closest_marker("long")]
        chosen += cases if cases and cases[0].get_closest_marker("every_case") else _few(name, cases)
    return chosen


def _function_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _few(name: str, cases: list[pytest.Item]) -> list[pytest.Item]:
    """Returns every _STEP-th case, at least one, beginning with one that depends on the function's name."""
    if not cases:
        return []
    first = zlib.crc32(name.encode()) % min(_STEP, len(cases))
    return cases[first::_STEP]
