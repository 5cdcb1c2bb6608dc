"""Error codes of the CNI specification and the one exception that carries them.

One rule: a CniError is for what an operator can act on; anything else passes through and becomes code 999 in skel.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import IntEnum
from functools import partial

_MOST_TOLD = 10  # a store of 10,000 addresses on a disk that has become read-only has one cause


class Code(IntEnum):
    """Error codes (CNI specification 1.1.0, section "Error"; 8 and 999 are the reference library's)."""

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
    """One CNI error object: `code` (int), `msg` (what was wrong with what), `details` (the hint, may be empty).

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
    """What failed had changed nothing yet: there is nothing to undo, and what was there before is to stay."""


def combined(errors: list[CniError]) -> CniError | None:
    """Returns one error that tells all of `errors` (messages joined by "; "), or None when there are none.

    Teardown goes on after a failure and reports everything at its end (specification, section "GC").
    The code is the first error's. Of many the first ones are told and the rest is counted; a hint is given once.
    """
    if not errors:
        return None
    if len(errors) == 1:
        return errors[0]
    told = errors[:_MOST_TOLD]
    further = [f"and {len(errors) - len(told)} more"] if len(errors) > len(told) else []
    details = "; ".join(dict.fromkeys(e.details for e in told if e.details))
    return CniError(errors[0].code, "; ".join([*(e.msg for e in told), *further]), details)


def from_os_error(error: OSError) -> CniError:
    """Returns the error of a system call that nobody had more to say about: its reason, and the file, code 5."""
    where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "a system call failed"
    return CniError(Code.IO_FAILURE, f"{where}: {error.strerror or error}")


def run_all(*steps: Callable[[], object]) -> None:
    """Runs every step whatever became of the others, then raises what failed as one CniError (see `collected`)."""
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
    """Runs the parts of a STATUS as `all_of` does; what fails means code 50, unless it says 51 (section "STATUS")."""
    run_all(*(partial(_as_unready, step) for step in steps))


def _as_unready(step: Callable[[], object]) -> None:
    try:
        step()
    except CniError as error:
        if error.code == Code.LIMITED_CONNECTIVITY:
            raise
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, error.msg, error.details) from error
