"""Formats messages for standard error, which terminals and the runtime's log read line by line.

A message is one line, and no control character reaches a terminal.
"""

from __future__ import annotations


def one_line(text: str) -> str:
    """Returns a text with control characters escaped as Python shows them.

    Python's codec for that, unicode_escape, is not in the executable, which loads no modules at run time.
    """
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
