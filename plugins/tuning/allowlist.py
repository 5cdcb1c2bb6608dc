"""The administrator's list of the sysctls that networks may set.

A list that cannot be read or parsed allows nothing. Expressions use Go's syntax; an expression that Python would
interpret differently is refused.
"""

from __future__ import annotations

import re

from cni.errors import CniError, Code, internal
from plugins.tuning.conf import Sysctl
from process import files

PATH = "/etc/cni/tuning/allowlist.conf"

_MAX_BYTES = 1 << 20
# Lookaround, references and conditions do not exist in Go; named classes and "{,n}" mean something else there.
_INCOMPATIBLE = re.compile(r"\(\?[=!#>(]|\(\?<[=!]|\(\?P[=>]|\\[1-9Z]|\[\[:|\[:\w+:\]|\{,")


def require(sysctls: tuple[Sysctl, ...]) -> None:
    """Raises CniError(999) for a sysctl that the list does not allow; without a list all are allowed.

    An expression needs to match only a part of the key as written in the configuration, as in the reference plugin.
    """
    if not sysctls:
        return
    expressions = _read()
    if expressions is None:
        return
    for item in sysctls:
        if not any(expression.search(item.key) for expression in expressions):
            listed = " ".join(expression.pattern for expression in expressions)
            msg = f"Sysctl {item.key} is not allowed. Only the following sysctls are allowed: [{listed}]"
            raise internal(msg, f"the administrator of the node can allow it in {PATH}")


def _read() -> list[re.Pattern[str]] | None:
    """Returns the expressions, one per line, None without a list; the file has no comments."""
    try:
        lines = files.read(PATH, _MAX_BYTES).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise CniError(
            Code.IO_FAILURE, f"cannot read {PATH}: {why}", "make it readable: until then no sysctl can be set"
        ) from error
    return [_compile(line.strip(), number) for number, line in enumerate(lines, 1) if line.strip()]


def _compile(line: str, number: int) -> re.Pattern[str]:
    prefix = f"error parsing regexp: {PATH}, line {number}: {line}"
    if incompatible := _INCOMPATIBLE.search(line):
        hint = f'Go and Python interpret "{incompatible[0]}" differently: write the expression without it'
        raise internal(prefix, hint)
    try:
        return re.compile(line, re.ASCII)
    except (re.error, RecursionError, OverflowError) as error:
        raise internal(f"{prefix}: {error}", "correct the line, or remove it") from None
