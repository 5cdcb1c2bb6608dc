"""Exceptions as values, for tests in which success and one kind of failure are both correct.

One rule: only the expected kind of exception is caught.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Error = TypeVar("Error", bound=BaseException)


def failure_of(call: Callable[[], object], kind: type[Error]) -> Error | None:
    """Returns the exception of type `kind` that `call` raises, None when it succeeds."""
    try:
        call()
    except kind as error:
        return error
    return None
