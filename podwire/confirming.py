"""A question to the operator before a change that cannot be undone, or that concerns more than this node."""

from __future__ import annotations

import sys

from cni.errors import CniError, Code
from process.stderr import one_line


def require(question: str, word: str, otherwise: str) -> None:
    """Asks on stderr and reads a line of stdin; raises CniError(4) unless it is `word`.

    `otherwise` is how the command is confirmed without a question.
    """
    print(one_line(question), end=" ", file=sys.stderr, flush=True)
    answer = sys.stdin.readline() if sys.stdin else ""
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    if answer.strip() != word:
        raise CniError(
            Code.INVALID_ENVIRONMENT, "not confirmed: nothing was changed", f"without a question: {otherwise}"
        )
