"""The short suite, `make test`: all tests but those marked `long`, and of each test function a few of its cases.

One rule: what is in it follows from the tests themselves, so it is the same on every machine and kernel.
"""

import zlib
from collections.abc import Iterable

import pytest

_STEP = 8  # every eighth case of a function is run


def select(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests of the short suite, in their order: every case of a function that is marked `every_case`."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("long"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = {item for name, group in cases.items() for item in _few(name, group)}
    return [item for item in items if item in chosen]


def _few(name: str, cases: list[pytest.Item]) -> list[pytest.Item]:
    """Returns every _STEP-th case of a function, at least one; the first depends on the function's name."""
    if cases[0].get_closest_marker("every_case"):
        return cases
    first = zlib.crc32(name.encode()) % min(_STEP, len(cases))
    return cases[first::_STEP]
