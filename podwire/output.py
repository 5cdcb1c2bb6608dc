"""Prints the output of the operator's tool: lines and tables for people, one JSON document for programs.

Control characters in names, file contents and kernel messages are escaped; colour is for terminals.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from cni import gojson
from cni.errors import CniError
from podwire.table import Cell, lay_out, wrap
from process.stderr import one_line

__all__ = ["Cell", "Output", "Progress", "Text", "format_time", "plural", "print_error", "span"]

# SGR parameters (ECMA-48).
_STYLES = {"good": "32", "bad": "31", "warning": "33", "bold": "1", "dim": "2"}
_PROGRESS_AFTER_S = 2.0  # a command that ends earlier prints no progress
_PROGRESS_EVERY_S = 0.1
_CLEAR_LINE = "\r\033[K"


Text = str | Cell


@dataclass(frozen=True)
class Output:
    """The output of a command: lines and tables or, with `as_json`, only the document of `print_json`.

    `width` is that of the terminal, 0 for a file or a pipe, whose lines may have any length.
    """

    stream: TextIO
    as_json: bool = False
    colour: bool = False
    width: int = 0

    def print(self, *texts: Text) -> None:
        """Prints texts as one line, separated by spaces."""
        self._print_line(" ".join(self._shown(text) for text in texts).rstrip())

    def print_block(self, text: str) -> None:
        """Prints podwire's own text of several lines (a map, a man page) unchanged."""
        self._print_line(text.rstrip("\n"))

    def print_text(self, text: Text, indent: str = "", lead: Text = "") -> None:
        """Prints a text in lines of whole words that fit the terminal, the second and further ones indented.

        `lead` are the words before the text, in another style. Do not use it for commands, which are pasted.
        """
        body, head = _escaped(text), _escaped(lead)
        whole = f"{head.text} {body.text}" if head.text else body.text
        margin = " " * (len(whole) - len(whole.lstrip()))
        room = self.width - max(len(indent), len(margin)) if len(whole) > self.width > 0 else 0
        first, *others = wrap(whole.lstrip(), room)
        title = head.text.rstrip()
        behind_title = f"{margin}{first}"[len(title) :]
        self._print_line((self._shown(Cell(title, head.style)) + self._shown(Cell(behind_title, body.style))).rstrip())
        for line in others:
            self._print_line((indent + self._shown(Cell(line, body.style))).rstrip())

    def print_table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[Text]],
        *,
        optional: Sequence[str] = (),
        title: str = "",
        with_headers: bool = True,
    ) -> tuple[str, ...]:
        """Prints rows under headers, fitted into the terminal, and returns the headers that were left out.

        The options are those of `lay_out`.
        """
        escaped = [[_escaped(text) for text in row] for row in rows]
        layout = lay_out(headers, escaped, self.width, optional=optional, title=title, with_headers=with_headers)
        for line in layout.lines:
            self._print_line("".join(self._shown(cell) + " " * spaces for cell, spaces in line).rstrip())
        return layout.left_out

    def print_json(self, value: object) -> None:
        """Prints the document, with --json only; characters that are not printable are escaped as in JSON."""
        for line in gojson.dumps(value, indent=2).split("\n") if self.as_json else ():
            print(line if line.isprintable() else "".join(map(_in_json, line)), file=self.stream)

    def _print_line(self, line: str) -> None:
        if not self.as_json:
            print(line, file=self.stream)

    def _shown(self, text: Text) -> str:
        cell = _escaped(text)
        style = _STYLES.get(cell.style) if self.colour else None
        return f"\033[{style}m{cell.text}\033[0m" if style and cell.text else cell.text


@dataclass
class Progress:
    """A line on standard error about what a slow command does now; only on a terminal, and only after two seconds."""

    is_on: bool = False
    _next: float = field(default_factory=lambda: time.monotonic() + _PROGRESS_AFTER_S)
    _is_shown: bool = False

    def show(self, text: str) -> None:
        """Replaces the line; cheap enough to be called in a loop."""
        if self.is_on and time.monotonic() >= self._next:
            self._next = time.monotonic() + _PROGRESS_EVERY_S
            self._is_shown = True
            print(f"{_CLEAR_LINE}{one_line(text)}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Removes the line; call it before the command prints anything else."""
        if self._is_shown:
            self._is_shown = False
            print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)


def print_error(error: CniError, out: Output) -> None:
    """Prints the error of a failed command: on stderr with the hint below, with --json as an error object."""
    if out.as_json:
        out.print_json({key: value for key, value in error.to_json("").items() if key != "cniVersion"})
        return
    print(one_line(f"podwire: {error.msg}"), file=sys.stderr)
    if error.details:
        print(one_line(f"  {error.details}"), file=sys.stderr)


def plural(number: int, noun: str) -> str:
    """Returns a number with its noun: "1 file", "2 files", "2 addresses"."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{'' if number == 1 else ending}"


def format_time(seconds: float) -> str:
    """Returns a time in seconds since 1970 as RFC 3339 in UTC, "" for 0."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)) if seconds else ""


def span(texts: Sequence[str]) -> str:
    """Returns the first and the last of sorted texts: "0.1.0 to 1.1.0"."""
    return f"{texts[0]} to {texts[-1]}" if len(texts) > 1 else "".join(texts)


def _in_json(char: str) -> str:
    """Returns a character of a JSON text, escaped if it is not printable: then it is inside a string."""
    code = ord(char)
    if char.isprintable():
        return char
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def _escaped(text: Text) -> Cell:
    cell = Cell(text) if isinstance(text, str) else text
    return Cell(one_line(cell.text), cell.style)
