"""A JSON parser that records the position of every value, for messages with line and column.

json's decoder, on which cni.gojson is built, reports neither the positions of values nor a hint about an error, so
`podwire lint` needs this parser. Plugins do not use it: it is written in Python, and they need speed and no positions.

The parser accepts and refuses the same texts as cni.gojson, except for gojson's limits of length and depth; its error
messages are for the author of the text.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from cni import gojson

_BLANKS = re.compile(r"[ \t\n\r]*")
_WORD = re.compile(r"[\w.+-]*")
_DIGITS = 400  # the digits of a number that gojson keeps
_DECODER = json.JSONDecoder(parse_int=lambda text: int(text[:_DIGITS]))
_LITERALS = {"True": "true", "False": "false", "None": "null", "TRUE": "true", "FALSE": "false", "NULL": "null"}
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
_QUOTES = "'`\u2018\u2019\u201c\u201d"
_BOM = "\ufeff"


class Position(NamedTuple):
    """A position in a text, line and column counted from 1; a column is a character."""

    line: int
    column: int


class JsonSyntaxError(ValueError):
    """A text that is not JSON: `offset` is the character of the error, `hint` the fix."""

    def __init__(self, offset: int, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.offset = offset
        self.problem = problem
        self.hint = hint


@dataclass
class JsonValue:
    """A JSON value with its offsets; it has `value` for a scalar, `members` for an object, `elements` for a list.

    `members` are in the order of the text, including repeated names.
    """

    start: int
    end: int = -1
    value: object = None
    members: list[Member] | None = None
    elements: list[JsonValue] | None = None

    def get(self, name: str) -> Member | None:
        """Returns the member that Go uses for `name`: the last in any case that is not null."""
        members = [item for item in self.members or () if item.name.casefold() == name.casefold()]
        return next((item for item in reversed(members) if not item.node.is_null), None)

    @property
    def is_null(self) -> bool:
        """Whether it is null, which plugins treat as absent."""
        return self.value is None and self.members is None and self.elements is None


class Member(NamedTuple):
    """A member of an object; `start` is the offset of its name."""

    start: int
    name: str
    node: JsonValue


@dataclass(frozen=True)
class Document:
    """A parsed text."""

    text: str
    root: JsonValue
    _lines: list[int] = field(repr=False, compare=False)

    def position(self, offset: int) -> Position:
        """Returns the position of a character."""
        return _position(self._lines, offset)

    def offset(self, path: str, node: JsonValue | None = None) -> int | None:
        """Returns the offset of the key `path` ("ipam.ranges[0][1].subnet") of an object, None if it is absent.

        The offset of a member is that of its name.
        """
        match = _find(node or self.root, path)
        return match[0] if match else None

    def node(self, path: str, node: JsonValue | None = None) -> JsonValue | None:
        """Returns the value of the key `path`, None if it is absent."""
        match = _find(node or self.root, path)
        return match[1] if match else None


def parse(data: bytes) -> Document:
    """Parses a text; raises JsonSyntaxError."""
    text = data.decode("utf-8", "replace")
    return Document(text, _Reader(text).document(), _line_starts(text))


def loads(data: bytes) -> object:
    """Returns the value of a JSON text; raises ValueError with line, column and fix of a syntax error."""
    try:
        return gojson.loads(data)
    except ValueError as error:
        try:
            parse(data)
        except JsonSyntaxError as syntax_error:
            line, column = position(data, syntax_error.offset)
            hint = f"; {syntax_error.hint}" if syntax_error.hint else ""
            raise ValueError(f"line {line}, column {column}: {syntax_error.problem}{hint}") from error
        raise  # too long, or nested too deeply


def position(data: bytes, offset: int) -> Position:
    """Returns the position of a character of a text, which need not be JSON."""
    return _position(_line_starts(data.decode("utf-8", "replace")), offset)


def _line_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in re.finditer("\n", text))]


def _position(lines: list[int], offset: int) -> Position:
    line = bisect_right(lines, offset)
    return Position(line, offset - lines[line - 1] + 1)


def _find(node: JsonValue, path: str) -> tuple[int, JsonValue] | None:
    """Returns offset and value of a key path, None if absent; of names with dots the longest existing one is used."""
    start = node.start
    while path:
        if path[0] == "[" and node.elements is not None:
            number, bracket, rest = path[1:].partition("]")
            if not bracket or not number.isascii() or not number.isdigit() or int(number[:9]) >= len(node.elements):
                return None
            node = node.elements[int(number[:9])]
            start, path = node.start, rest.removeprefix(".")
            continue
        names = sorted({item.name for item in node.members or ()}, key=len, reverse=True)
        name = next((name for name in names if _begins(path, name)), None)
        member = node.get(name) if name is not None else None
        if name is None or member is None:
            return None
        start, node, path = member.start, member.node, path[len(name) :].removeprefix(".")
    return start, node


def _begins(path: str, name: str) -> bool:
    return bool(name) and path[: len(name)].casefold() == name.casefold() and path[len(name) : len(name) + 1] in "[."


class _Reader:
    """Parses without recursion: `_open` is the stack of open objects and lists, so that depth costs nothing."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._open: list[JsonValue] = []

    def document(self) -> JsonValue:
        self._refuse_beginning()
        self._skip()
        root = self._value()
        while self._open:
            self._next(self._open[-1])
        self._skip()
        if self._at < len(self._text):
            self._refuse("something follows the end of the JSON value", "one file holds one object")
        return root

    def _next(self, container: JsonValue) -> None:
        """Parses one element or member of an open object or list, or its end."""
        is_object = container.members is not None
        closing, content = ("}", container.members) if is_object else ("]", container.elements)
        self._skip()
        if content and self._peek() != closing:
            comma = self._at
            if self._peek() != ",":
                self._refuse_missing_comma(closing)
            self._at += 1
            self._skip()
            if self._peek() == closing:
                raise JsonSyntaxError(comma, f'there is a comma before "{closing}"', "remove the comma")
        if self._peek() == closing:
            self._at += 1
            container.end = self._at
            self._open.pop()
        elif container.members is not None:
            start, name = self._at, self._name()
            self._skip()
            if self._peek() != ":":
                self._refuse(f'a colon is missing after the name "{name[:40]}"', 'write "name": value')
            self._at += 1
            self._skip()
            container.members.append(Member(start, name, self._value()))
        elif container.elements is not None:
            container.elements.append(self._value())

    def _value(self) -> JsonValue:
        """Parses a scalar, or opens an object or a list."""
        node = JsonValue(self._at)
        first = self._peek()
        if first in ("{", "["):
            node.members, node.elements = ([], None) if first == "{" else (None, [])
            self._at += 1
            self._open.append(node)
            return node
        if not first or self._text.startswith(_NO_NUMBERS, self._at):
            self._refuse_value()
        node.value = self._scalar()
        node.end = self._at
        return node

    def _name(self) -> str:
        if self._peek() != '"':
            if _WORD.match(self._text, self._at, self._at + 1)[0]:  # type: ignore[index] # it matches nothing, too
                self._refuse("a name must be in double quotes", 'write "name": value')
            self._refuse_character("a name in double quotes")
        return str(self._scalar())

    def _scalar(self) -> object:
        try:
            value, self._at = _DECODER.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            self._refuse_scalar(error)
        return value

    def _skip(self) -> None:
        self._at = _BLANKS.match(self._text, self._at).end()  # type: ignore[union-attr] # it matches nothing, too

    def _peek(self) -> str:
        """Returns the next character without consuming it, "" at the end."""
        return self._text[self._at : self._at + 1]

    def _refuse(self, problem: str, hint: str = "") -> NoReturn:
        raise JsonSyntaxError(self._at, problem, hint)

    def _refuse_beginning(self) -> None:
        if self._text.startswith(_BOM):
            self._refuse("the file begins with a byte order mark", "save it as UTF-8 without one (BOM)")
        self._skip()
        if not self._peek():
            self._refuse("the file is empty" if not self._text else "the file contains only white space")
        if self._text.startswith(("---", "%YAML"), self._at):
            self._refuse("this is YAML, not JSON", "runtimes read JSON only")

    def _refuse_value(self) -> NoReturn:
        if self._peek():
            self._refuse(f"{_WORD.match(self._text, self._at)[0]} is not JSON")  # type: ignore[index] # as above
        self._refuse_end()

    def _refuse_end(self) -> NoReturn:
        if not self._open:
            self._refuse("the text ends where a value should begin")
        opened = self._open[-1].start
        line, column = _position(_line_starts(self._text), opened)
        hint = f'the "{self._text[opened]}" in line {line}, column {column} is never closed'
        self._refuse("the text ends in the middle", hint)

    def _refuse_missing_comma(self, closing: str) -> NoReturn:
        following = self._peek()
        if following and (following in '"{[' or following.isalnum()):
            self._refuse("a comma is missing before this", "values and members are separated by commas")
        self._refuse_character(f'a comma or "{closing}"')

    def _refuse_character(self, expected: str) -> NoReturn:
        """Raises JsonSyntaxError for the next character, with a hint about frequent mistakes."""
        char = self._peek()
        if not char:
            self._refuse_end()
        if char in "#/":
            self._refuse("this looks like a comment", "JSON has no comments: remove it")
        if char in _QUOTES:
            self._refuse("a string must be in double quotes", f'write " instead of {char}')
        if char == "\0":
            self._refuse("there is a NUL character", "the file may have been cut off by a crash: write it again")
        if char == ",":
            self._refuse("there is one comma too many", "remove it")
        if char == "\u00a0":
            self._refuse("there is a no-break space", "replace it by an ordinary space")
        self._refuse(f"{char!r} is here instead of {expected}")

    def _refuse_scalar(self, error: json.JSONDecodeError) -> NoReturn:
        start = self._at
        if self._peek() == '"':
            self._refuse_string(error)
        word = _WORD.match(self._text, start)[0]  # type: ignore[index] # as above
        if word in _LITERALS:
            self._refuse(f"{word} is not JSON", f"write {_LITERALS[word]}")
        if word[:1].isalpha() or word[:1] == "_":
            self._refuse(f'"{word[:40]}" must be in double quotes', "only true, false, null and numbers have none")
        if word:
            self._refuse(f"{word[:40]} is not a JSON number")
        self._refuse_character("a value")

    def _refuse_string(self, error: json.JSONDecodeError) -> NoReturn:
        char = self._text[error.pos : error.pos + 1]
        if error.msg.startswith("Unterminated"):
            raise JsonSyntaxError(self._at, "a string has no closing double quote")
        if error.msg.startswith("Invalid control character"):
            character = "a line break" if char in "\r\n" else f"a control character, {char!r}"
            raise JsonSyntaxError(
                error.pos,
                f"a string contains {character}",
                "close it with a double quote, or write the character as \\n, \\t, \\u..",
            )
        raise JsonSyntaxError(error.pos, "a string has an invalid backslash escape", "write a backslash as \\\\")


def walk(root: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    """Yields a value and all values in it with their paths, in the order of the text."""
    stack = [("", root)]
    while stack:
        path, node = stack.pop()
        yield path, node
        dot = f"{path}." if path else ""
        if node.members is not None:
            stack.extend((dot + item.name, item.node) for item in reversed(node.members))
        elif node.elements is not None:
            stack.extend((f"{path}[{index}]", item) for index, item in reversed(list(enumerate(node.elements))))
