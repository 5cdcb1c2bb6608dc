"""Marks the fixes that are commands, apart from those that are advice."""

from __future__ import annotations


class ShellCommand(str):
    """A fix that is a command line of a shell: it can be pasted, and `podwire doctor --fix` runs it."""

    __slots__ = ()


def unless_intended(command: str) -> str:
    """Returns advice with a command that removes a restriction, which may be intended."""
    return f"if this restriction is not intended: {command}"
