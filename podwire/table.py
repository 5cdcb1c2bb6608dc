"""Fits a table into the width of a terminal. Pure functions.

A row is never broken inside a word. What does not fit is tried in this order: columns without any value and optional
columns are left out; cells with several words continue on the next line; each row becomes a block of lines. A word that
is longer than the terminal is cut with an ellipsis in its middle. Blocks have the optional columns, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

_GAP = 2
_NOTHING = ("", "-")
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True)
class Cell:
    """A text of a table or a line with a style: "good", "bad", "warning", "bold" or "dim"."""

    text: str
    style: str = ""


Line = list[tuple[Cell, int]]  # cells, each with the number of spaces behind it


@dataclass(frozen=True)
class Layout:
    """The lines of a table, and the headers of the columns that were left out although they have values."""

    lines: tuple[Line, ...]
    left_out: tuple[str, ...] = ()


def lay_out(
    headers: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    width: int = 0,
    *,
    optional: Sequence[str] = (),
    title: str = "",
    with_headers: bool = True,
) -> Layout:
    """Returns a table that fits into `width` columns, 0 for any width.

    `optional` are the headers of columns that may be left out, in this order; a column with a "bad" cell stays.
    `title` is the header of the column that is the first line of a block.
    """
    title = title or headers[0]
    columns = list(range(len(headers)))
    left_out = []
    widths = [_widest(header if with_headers else "", rows, number) for number, header in enumerate(headers)]
    if width and _total(widths) > width:
        columns = [number for number in columns if headers[number] == title or _has_value(rows, number)]
        for header in optional:
            number = headers.index(header)
            if _total(widths[each] for each in columns) <= width or number not in columns:
                continue
            if not any(row[number].style == "bad" for row in rows):
                columns.remove(number)
                left_out.append(header)
        for header in reversed(left_out):  # a column that left before a wider one may fit again
            number = headers.index(header)
            if _total(widths[each] for each in (*columns, number)) <= width:
                columns = sorted([*columns, number])
                left_out.remove(header)
    shown_headers = [headers[number] for number in columns]
    shown_rows = [[row[number] for number in columns] for row in rows]
    fitting = _shrink(shown_headers if with_headers else [""] * len(columns), shown_rows, width)
    if fitting is None:
        return Layout(tuple(_blocks(headers, rows, width, headers.index(title))))
    above = [[Cell(header, "bold") for header in shown_headers]] if with_headers else []
    lines = (line for row in (*above, *shown_rows) for line in _row(row, fitting))
    return Layout(tuple(lines), tuple(left_out))


def wrap(text: str, width: int) -> list[str]:
    """Returns lines of whole words; a word longer than `width` is cut in its middle. With a width of 0, one line."""
    if not width or len(text) <= width:
        return [text]
    lines: list[str] = []
    for word in text.split(" "):  # "" between two spaces, which stay
        shown = _cut(word, width)
        if lines and len(lines[-1]) + 1 + len(shown) <= width:
            lines[-1] += f" {shown}"
        elif shown:
            lines.append(shown)
    return [line.rstrip() for line in lines] or [""]


def _widest(header: str, rows: Iterable[Sequence[Cell]], number: int) -> int:
    return max([len(header), *(len(row[number].text) for row in rows)])


def _total(widths: Iterable[int]) -> int:
    listed = list(widths)
    return sum(listed) + _GAP * (len(listed) - 1)


def _has_value(rows: Iterable[Sequence[Cell]], number: int) -> bool:
    return any(row[number].text not in _NOTHING for row in rows)


def _shrink(headers: Sequence[str], rows: Sequence[Sequence[Cell]], width: int) -> list[int] | None:
    """Returns the widths of columns that fit, with cells wrapped at words; None if a word is too long for that."""
    widths = [_widest(header, rows, number) for number, header in enumerate(headers)]
    texts = ([header, *(row[number].text for row in rows)] for number, header in enumerate(headers))
    least = [max(len(word) for text in column for word in [*text.split(), ""]) for column in texts]
    while width and (excess := _total(widths) - width) > 0:
        number = max(range(len(widths)), key=lambda each: widths[each] - least[each])
        spare = widths[number] - least[number]
        if spare <= 0:
            return None
        widths[number] -= min(spare, excess)
    return widths


def _row(row: Sequence[Cell], widths: Sequence[int]) -> Iterator[Line]:
    """Yields the lines of a row."""
    wrapped = [wrap(cell.text, size) for cell, size in zip(row, widths, strict=True)]
    for number in range(max(map(len, wrapped))):
        texts = [lines[number] if number < len(lines) else "" for lines in wrapped]
        yield [
            (replace(cell, text=text), size - len(text) + _GAP)
            for cell, text, size in zip(row, texts, widths, strict=True)
        ]


def _blocks(headers: Sequence[str], rows: Iterable[Sequence[Cell]], width: int, title: int) -> Iterator[Line]:
    """Yields a block of lines for each row: the title, then the other values with their headers, indented."""
    for row in rows:
        if row[title].text:  # a further line of the object above has none
            yield from ([(Cell(text, row[title].style or "bold"), 0)] for text in wrap(row[title].text, width))
        line: Line = []
        for number, (header, cell) in enumerate(zip(headers, row, strict=True)):
            if number == title or cell.text in _NOTHING:
                continue
            label = f"{header.lower()}: " if header else ""
            used = sum(len(each.text) + spaces for each, spaces in line)
            if line and _GAP + used + len(label) + len(cell.text) > width:
                yield [(Cell(""), _GAP), *line]
                line = []
            texts = wrap(cell.text, width - _GAP - len(label))
            for text in texts[:-1]:
                yield [(Cell(""), _GAP), (Cell(label, "dim"), 0), (replace(cell, text=text), 0)]
                label = " " * len(label)
            line += [(Cell(label, "dim"), 0), (replace(cell, text=texts[-1]), _GAP)]
        if line:
            yield [(Cell(""), _GAP), *line]


def _cut(word: str, width: int) -> str:
    """Returns a word of at most `width` characters, without its middle if it is longer."""
    if len(word) <= width or width < 3:
        return word
    head = width // 2
    return word[:head] + _ELLIPSIS + word[len(word) - (width - head - 1) :]
