"""Encodes and decodes netlink messages by the tables of pyroute2's message classes.

The classes define the layout (`fields`, `nla_map`). An attribute is decoded only when it is read. pyroute2's codec
creates an object for each attribute and looks up each field by a path, which took two thirds of the time of a CHECK.
tests/unit/test_codec.py compares the two codecs. C code (kernel/_netlink.c) iterates over the attributes, since a link
has some 60 of them.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, Protocol

from _podwire import attribute_offsets, encode_attributes, get_attributes

from process.values import dataclass, field

Attributes = list[tuple[str, object]]
Pairs = Sequence[tuple[str, object]]
AttributeSpecs = tuple[tuple[int, str, object], ...]

_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr (linux/netlink.h)
_NESTED = 0x8000  # NLA_F_NESTED


class AnswerError(OSError):
    """An answer of the kernel that cannot be decoded: truncated, or without a required attribute."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.EBADMSG, f"unreadable answer of the kernel: {what}")


class DecodedMessage(dict[str, Any]):
    """A message, or a nested attribute: a mapping of its fixed fields, with methods that decode attributes.

    `["attrs"]` lists all known attributes as (name, value) pairs.
    """

    __slots__ = ("_data", "_start", "_table")

    def __init__(self, fields: dict[str, Any], table: MessageLayout, data: bytes, start: int) -> None:
        super().__init__(fields)
        self._table = table
        self._data = data
        self._start = start

    def __bool__(self) -> bool:
        return True  # even without fields

    def __missing__(self, key: str) -> Any:
        if key != "attrs":
            raise KeyError(key)
        known = {specs[0][0]: name for name, (specs, _) in self._table.readers.items()}
        offsets = attribute_offsets(self._data, self._start)
        return [(known[number], self._first(known[number], start)) for number, start in offsets if number in known]

    def get_attr(self, name: str) -> Any:
        """Returns the first attribute of a name, None when there is none; raises AnswerError, KeyError."""
        return self._first(name, self._start)

    def need_attr(self, name: str) -> Any:
        """Returns the first attribute of a name; raises AnswerError when there is none."""
        value = self.get_attr(name)
        if value is None:
            raise AnswerError(f"{name} is missing")
        return value

    def get_attrs(self, name: str) -> list[Any]:
        """Returns all attributes of a name."""
        number = self._table.by_name[name][0] & ~_NESTED
        return [
            self._first(name, start) for each, start in attribute_offsets(self._data, self._start) if each == number
        ]

    def attribute_numbers(self) -> set[int]:
        """Returns the numbers of all attributes, also of those that the message class lacks."""
        return {number for number, _ in attribute_offsets(self._data, self._start)}

    def get_attributes(self, specs: AttributeSpecs) -> tuple[Any, ...]:
        """Returns the first attribute of each spec (from `attribute_specs`), or its default; raises AnswerError."""
        return _get_attributes(self._data, self._start, specs)

    def _first(self, name: str, start: int) -> Any:
        specs, form = self._table.readers[name]
        (content,) = _get_attributes(self._data, start, specs)
        return content if form is None or content is None else form.read(content, self)


def _get_attributes(data: bytes, start: int, specs: AttributeSpecs) -> tuple[Any, ...]:
    try:
        values: tuple[Any, ...] = get_attributes(data, start, specs)
    except ValueError as error:
        raise AnswerError(str(error)) from error
    return values


class Form(Protocol):
    """Encodes and decodes an attribute that is neither a number, text nor bytes."""

    def write(self, value: Any, message: Pairs) -> bytes:
        """Returns the bytes of a value; `message` has the attributes of the message that contains it."""

    def read(self, content: bytes, message: DecodedMessage) -> Any:
        """Returns the value in the bytes; `message` is the message that contains it. Raises AnswerError."""


@dataclass(frozen=True)
class MessageLayout:
    """The layout of a message class: its fixed struct, the names of the fields, attributes by name.

    An attribute has a number and a form: a number's format in the struct module, "s" for text, "" for bytes, a Form.
    """

    struct: struct.Struct
    zeros: dict[str, int]
    by_name: dict[str, tuple[int, str | Form]] = field(default_factory=dict)
    readers: dict[str, tuple[AttributeSpecs, Form | None]] = field(default_factory=dict)

    def write(self, values: Mapping[str, Any], attributes: Pairs) -> bytes:
        """Returns the bytes of the fixed fields (0 by default) and attributes; KeyError for unknown attributes."""
        try:
            fixed = self.struct.pack(*{**self.zeros, **values}.values())
            return fixed + bytes(encode_attributes(attributes, self.by_name))
        except (struct.error, OverflowError) as error:
            raise OSError(errno.ERANGE, f"a number is out of range: {error}") from error

    def read(self, data: bytes, start: int) -> DecodedMessage:
        """Returns the message at `start` in `data`; raises AnswerError when the fixed fields are truncated."""
        try:
            fields = dict(zip(self.zeros, self.struct.unpack_from(data, start), strict=True))
        except struct.error as error:
            raise AnswerError(str(error)) from error
        return DecodedMessage(fields, self, data, start + self.struct.size)


def encode(kind: type[Any], header: tuple[int, int, int], values: Mapping[str, int], attributes: Pairs) -> bytes:
    """Returns one netlink message: `header` is (type, flags, sequence number), `values` the fixed struct's fields."""
    body = _table(kind).write(values, attributes)
    return _HEADER.pack(_HEADER.size + len(body), *header, 0) + body


def decode(kind: type[Any], data: bytes) -> DecodedMessage:
    """Returns the message of a class in `data`; raises AnswerError when it is truncated."""
    return _table(kind).read(data, _HEADER.size)


def attribute_specs(kind: type[Any], **defaults: object) -> AttributeSpecs:
    """Returns the specs with which DecodedMessage.get_attributes reads attributes, given as name=default.

    Nested attributes come as bytes, for `get_nested_attributes`.
    """
    readers = _table(kind).readers
    return tuple((*readers[name][0][0][:2], default) for name, default in defaults.items())


def get_nested_attributes(content: bytes, specs: AttributeSpecs) -> tuple[Any, ...]:
    """Returns the attributes in the bytes of a nested class without fields; raises AnswerError."""
    return _get_attributes(content, 0, specs)


def prepare(*kinds: type[Any]) -> None:
    """Builds the tables of message classes and their nested attributes, at import, so that the image contains them."""
    for kind in kinds:
        prepare(*(form.kind for _, form in _table(kind).by_name.values() if isinstance(form, _Nested)))


def _table(kind: type[Any]) -> MessageLayout:
    table = _TABLES.get(kind)
    if table is None:
        forms = [form for _, form in kind.fields]
        order = ">" if any(form[0] == ">" for form in forms) else "="  # the others of such a struct are single bytes
        fixed = struct.Struct(order + "".join(form.lstrip(">") for form in forms))
        if fixed.size % 4:
            raise ValueError(f"{kind.__name__}: the fields of a message are padded to 4 bytes")
        table = _TABLES[kind] = MessageLayout(fixed, dict.fromkeys((name for name, _ in kind.fields), 0))
        for number, name, how in kind.nla_map:
            word, _, nested = how.partition("|")
            form = _form(word if word in _ATOMS else getattr(kind, word))
            atom = form if isinstance(form, str) else ""
            table.by_name[name] = number | (_NESTED if nested else 0), form
            table.readers[name] = ((number, atom, None),), None if isinstance(form, str) else form
    return table


def _form(how: Any) -> str | Form:
    """Returns the form of an attribute from its entry in a message class: a type name, a class, or a function."""
    if isinstance(how, FunctionType):
        return _DependentForm(how)
    word = how if isinstance(how, str) else how.__name__
    return _ATOMS[word] if word in _ATOMS else _Nested(how)


@dataclass(frozen=True)
class _Nested:
    kind: type[Any]

    def write(self, value: Mapping[str, Any], _message: Pairs) -> bytes:
        fields = {name: number for name, number in value.items() if name != "attrs"}
        return _table(self.kind).write(fields, value.get("attrs", []))

    def read(self, content: bytes, _message: DecodedMessage) -> DecodedMessage:
        return _table(self.kind).read(content, 0)


@dataclass(frozen=True)
class _EncodedAttributes:
    """The attributes of a message that is being encoded, with the interface that `choose` functions expect."""

    attributes: Pairs

    def get_attr(self, name: str) -> object:
        """Returns an attribute, None when it is missing."""
        return dict(self.attributes).get(name)


@dataclass(frozen=True)
class _DependentForm:
    """An attribute whose class (or bytes) depends on other attributes of the same message."""

    choose: Callable[[Any], type[Any]]

    def write(self, value: Any, message: Pairs) -> bytes:
        form = _form(self.choose(_EncodedAttributes(message)))
        return bytes(value) if isinstance(form, str) else form.write(value, message)

    def read(self, content: bytes, message: DecodedMessage) -> Any:
        form = _form(self.choose(message))
        return content if isinstance(form, str) else form.read(content, message)


# Keys are the names of pyroute2's classes.
_ATOMS = {
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "int32": "i",
    "be16": ">H",
    "be32": ">I",
    "sbe32": ">i",
    "be64": ">Q",
    "asciiz": "s",
    "cdata": "",
}
_TABLES: dict[type[Any], MessageLayout] = {}
