"""A part of an undo: an object of the kernel, its state as lines, and the commands that restore an earlier state."""

from __future__ import annotations

import json
from collections.abc import Callable

from cni.errors import CniError, Code
from podwire.node.programs import find_program, get_output_lines


class UndoPart:
    """An object that a command changes; equal to another one of the same `key`.

    `read` returns its state as lines; `revert` returns the commands from the state after to that before.
    """

    def __init__(
        self,
        key: tuple[str, ...],
        read: Callable[[], list[str]] | None = None,
        revert: Callable[[list[str], list[str]], list[str]] = lambda before, after: [],
    ) -> None:
        self.key = key
        self.read = read
        self.revert = revert

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UndoPart) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def lines(self) -> list[str]:
        """Returns the state; raises CniError if it cannot be read."""
        return self.read() if self.read else []


def read_lines(prefix: tuple[str, ...], program: str, *options: str) -> list[str]:
    """Returns the lines that a program prints, in the namespace of `prefix`; raises CniError."""
    words = [*prefix, program]
    paths = [find_program(word) if number in (0, len(prefix)) else word for number, word in enumerate(words)]
    if not all(paths):
        raise CniError(Code.IO_FAILURE, f"{program} is not installed")
    return get_output_lines(*paths, *options)


def read_objects(prefix: tuple[str, ...], program: str, *options: str) -> list[dict[str, object]]:
    """Returns the objects that a program of iproute2 prints as JSON; raises CniError."""
    text = "\n".join(read_lines(prefix, program, "-json", *options)) or "[]"
    try:
        document = json.loads(text)
    except ValueError as error:
        raise CniError(Code.IO_FAILURE, f"{program} printed no JSON: {error}") from error
    return [one for one in document if isinstance(one, dict)] if isinstance(document, list) else []
