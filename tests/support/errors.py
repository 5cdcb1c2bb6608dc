"""Failures as values, for tests where both a value and an error are right.

One rule: only the expected kind of failure is caught.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Error = TypeVar("Error", bound=BaseException)


def failure_of(call: Callable[[], object], kind: type[Error]) -> Error | None:
    """Returns the failure of `call` when it is of `kind`, None when it succeeds."""
    try:
        call()
    except kind as error:
        return error
    return None
