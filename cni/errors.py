"""Error codes of the CNI specification, and CniError, the exception that carries them.

A CniError is for what an operator can act on; any other exception becomes code 999 in skel.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import IntEnum
from functools import partial

_MAX_REPORTED = 10  # a store of 10,000 addresses on a disk that has become read-only has one cause


class Code(IntEnum):
    """The error codes (CNI specification 1.1.0, section "Error"; 8 and 999 are the reference library's)."""

    INCOMPATIBLE_VERSION = 1
    UNSUPPORTED_FIELD = 2
    UNKNOWN_CONTAINER = 3
    INVALID_ENVIRONMENT = 4
    IO_FAILURE = 5
    DECODING_FAILURE = 6
    INVALID_NETWORK_CONFIG = 7
    INVALID_NETNS = 8
    TRY_AGAIN_LATER = 11
    PLUGIN_NOT_AVAILABLE = 50
    LIMITED_CONNECTIVITY = 51
    INTERNAL = 999


class CniError(Exception):
    """A CNI error object: `code` (int), `msg` (what was wrong with what), `details` (the hint, may be empty).

    `code` is a plain int, since a delegate's code is passed on whatever it is.
    """

    def __init__(self, code: int, msg: str, details: str = "") -> None:
        super().__init__(msg)
        self.code = int(code)
        self.msg = msg
        self.details = details

    def __str__(self) -> str:
        return f"{self.msg}; {self.details}" if self.details else self.msg

    def to_json(self, cni_version: str) -> dict[str, object]:
        """Returns the error object of the specification; an empty `details` is left out as the reference does."""
        body: dict[str, object] = {"cniVersion": cni_version, "code": self.code, "msg": self.msg}
        if self.details:
            body["details"] = self.details
        return body

    def prefixed(self, prefix: str) -> CniError:
        """Returns the same error with `prefix` before its message."""
        return CniError(self.code, prefix + self.msg, self.details)


def invalid_conf(msg: str, details: str = "") -> CniError:
    """Returns the error of a network configuration with a wrong value, code 7."""
    return CniError(Code.INVALID_NETWORK_CONFIG, msg, details)


def internal(msg: str, details: str = "") -> CniError:
    """Returns the error of a state that is not as it should be, code 999, as the reference plugins report it."""
    return CniError(Code.INTERNAL, msg, details)


class UnchangedError(CniError):
    """The operation failed before it changed anything: there is nothing to roll back."""


def combined(errors: list[CniError]) -> CniError | None:
    """Returns one error with the messages of all `errors`, joined by "; ", or None for an empty list.

    Teardown goes on after a failure and reports everything at its end (specification, section "GC").
    The code is the first error's. After _MAX_REPORTED errors the rest is counted; equal hints appear once.
    """
    if not errors:
        return None
    if len(errors) == 1:
        return errors[0]
    reported = errors[:_MAX_REPORTED]
    further = [f"and {len(errors) - len(reported)} more"] if len(errors) > len(reported) else []
    details = "; ".join(dict.fromkeys(e.details for e in reported if e.details))
    return CniError(errors[0].code, "; ".join([*(e.msg for e in reported), *further]), details)


def from_os_error(error: OSError) -> CniError:
    """Returns the error of a failed system call, code 5: the file and the reason."""
    where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "a system call failed"
    return CniError(Code.IO_FAILURE, f"{where}: {error.strerror or error}")


def run_all(*steps: Callable[[], object]) -> None:
    """Runs all steps, even if some fail, then raises their errors as one CniError (see `combined`)."""
    problems = []
    for step in steps:
        try:
            step()
        except CniError as error:
            problems.append(error)
        except OSError as error:
            problems.append(from_os_error(error))
    failure = combined(problems)
    if failure:
        raise failure


def run_status_checks(*steps: Callable[[], object]) -> None:
    """Runs the checks of STATUS as `run_all` does; a failure has code 50, or 51 if the check says so."""
    run_all(*(partial(_as_unready, step) for step in steps))


def _as_unready(step: Callable[[], object]) -> None:
    try:
        step()
    except CniError as error:
        if error.code == Code.LIMITED_CONNECTIVITY:
            raise
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, error.msg, error.details) from error
