"""The administrator's list of the sysctls that networks may set.

One rule: what cannot be read or understood allows nothing. The language is Go's; where Python's means something else
by the same text, the line is refused.
"""

from __future__ import annotations

import re

from cni.errors import CniError, Code
from plugins.tuning.conf import Sysctl
from process import files

PATH = "/etc/cni/tuning/allowlist.conf"

_MOST_BYTES = 1 << 20
# Lookaround, references and conditions, which Go has not; classes by name and "{,n}", which are something else there.
_OTHERS = re.compile(r"\(\?[=!#>(]|\(\?<[=!]|\(\?P[=>]|\\[1-9Z]|\[\[:|\[:\w+:\]|\{,")


def require(sysctls: tuple[Sysctl, ...]) -> None:
    """Refuses what the list does not allow; without a list everything is. Raises CniError(999).

    An expression needs to match a part of the key only, as the key is written (reference).
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
            raise CniError(Code.INTERNAL, msg, f"the administrator of the node allows more in {PATH}")


def _read() -> list[re.Pattern[str]] | None:
    """Returns the expressions, None without a list; one to each line, and no comments."""
    try:
        lines = files.read(PATH, _MOST_BYTES).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise CniError(Code.IO_FAILURE, f"cannot read {PATH}: {why}", "until then no sysctl is set") from error
    return [_compiled(line.strip(), number) for number, line in enumerate(lines, 1) if line.strip()]


def _compiled(line: str, number: int) -> re.Pattern[str]:
    doing = f"error parsing regexp: {PATH}, line {number}: {line}"
    if other := _OTHERS.search(line):
        hint = f'Go and Python do not mean the same by "{other[0]}": write it otherwise'
        raise CniError(Code.INTERNAL, doing, hint)
    try:
        return re.compile(line, re.ASCII)
    except (re.error, RecursionError, OverflowError) as error:
        raise CniError(Code.INTERNAL, f"{doing}: {error}", "correct the line, or remove it") from None
