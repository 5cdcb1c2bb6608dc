"""Exceptions as values.

One rule: only the expected kind of exception is caught.
"""

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


def error_of(call: Callable[[], object], kind: type[Error]) -> Error:
    """Returns the exception of type `kind` that `call` raises; fails when it succeeds."""
    error = failure_of(call, kind)
    assert error is not None, "no error"
    return error
