"""Undo: the steps that roll back what a verb has done so far.

Each change is followed on the next line by its undo; steps run in reverse, all of them, whatever fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from process import signals
from process.stderr import one_line


class Undo:
    """A stack of undo steps, run in reverse when the block is left by an exception, dropped when it is not.

    A step that fails is reported on stderr and the others still run; the error that left the block is raised.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[str, Callable[[], object]]] = []

    def push(self, description: str, step: Callable[[], object]) -> None:
        """Registers `step`, described by `description` ("delete veth3f2a") for the message when it fails."""
        self._steps.append((description, step))

    def clear(self) -> None:
        """Drops all steps."""
        self._steps.clear()

    def __enter__(self) -> Undo:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:
            return
        with signals.ignored():
            while self._steps:
                description, step = self._steps.pop()
                try:
                    step()
                except Exception as failure:
                    print(one_line(f"podwire: could not {description}: {failure}"), file=sys.stderr)
