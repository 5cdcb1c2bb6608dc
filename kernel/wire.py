"""Netlink messages as bytes: written and read by the tables of pyroute2's message classes.

One rule: the classes say what is where (`fields`, `nla_map`), and nothing is made of what nobody asks for. pyroute2's
own codec makes an object of each attribute, and looks up each field as a path: that took two thirds of a CHECK's time.
What it writes and reads is what tests/unit/test_codec.py compares this with.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Protocol

from cni.values import dataclass, field

Attributes = list[tuple[str, object]]

_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr (linux/netlink.h)
_ATTRIBUTE = struct.Struct("=HH")
_NESTED, _TYPE_MASK = 0x8000, 0x3FFF  # NLA_F_NESTED, NLA_TYPE_MASK


class AnswerError(OSError):
    """An answer of the kernel that cannot be read, since something is missing in it."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.EBADMSG, f"unreadable answer of the kernel: {what}")


class Decoded(dict[str, Any]):
    """A message, or a nested attribute: a mapping of its fixed fields; attributes are read when they are asked for.

    `["attrs"]` has all that are known, as pairs of name and value.
    """

    __slots__ = ("_found",)

    def __init__(self, fields: dict[str, Any], found: list[tuple[str, Form, bytes]]) -> None:
        super().__init__(fields)
        self._found = found

    def __bool__(self) -> bool:
        return True  # also one without fields

    def __missing__(self, key: str) -> Any:
        if key != "attrs":
            raise KeyError(key)
        return [(name, form.read(content, self)) for name, form, content in self._found]

    def get_attr(self, name: str) -> Any:
        """Returns the first attribute of a name, None when there is none."""
        for own, form, content in self._found:
            if own == name:
                return form.read(content, self)
        return None

    def need_attr(self, name: str) -> Any:
        """Returns the first attribute of a name; raises AnswerError when there is none."""
        value = self.get_attr(name)
        if value is None:
            raise AnswerError(f"{name} is missing")
        return value

    def get_attrs(self, name: str) -> list[Any]:
        """Returns all attributes of a name."""
        return [form.read(content, self) for own, form, content in self._found if own == name]


class Form(Protocol):
    """How an attribute's value is written and read; `message` is that which it is in."""

    def write(self, value: Any, message: _Said) -> bytes:
        """Returns the bytes of a value."""

    def read(self, content: bytes, message: Decoded) -> Any:
        """Returns the value in the bytes; raises AnswerError."""


class _Said:
    """The attributes of a message that is being written."""

    def __init__(self, attributes: Attributes) -> None:
        self._attributes = attributes

    def get_attr(self, name: str) -> object:
        """Returns an attribute, None when there is none."""
        return dict(self._attributes).get(name)


@dataclass(frozen=True)
class Table:
    """What a message class says: its fixed struct, the names of the fields, attributes by number and by name."""

    struct: struct.Struct
    names: tuple[str, ...]
    by_number: dict[int, tuple[str, Form]] = field(default_factory=dict)
    by_name: dict[str, tuple[int, Form]] = field(default_factory=dict)

    def write(self, values: Mapping[str, Any], attributes: Attributes) -> bytes:
        """Returns the bytes of fixed fields, 0 unless given, and attributes; KeyError for one that is not known."""
        said = _Said(attributes)
        parts = [_packed(self.struct, *[values.get(name, 0) for name in self.names]), bytes(-self.struct.size % 4)]
        for name, value in attributes:
            number, form = self.by_name[name]
            content = form.write(value, said)
            parts += [_ATTRIBUTE.pack(_ATTRIBUTE.size + len(content), number), content, bytes(-len(content) % 4)]
        return b"".join(parts)

    def read(self, data: bytes, start: int) -> Decoded:
        """Returns what stands in `data` from `start` on; raises AnswerError when the fixed fields are cut off."""
        try:
            fields = dict(zip(self.names, self.struct.unpack_from(data, start), strict=True))
        except struct.error as error:
            raise AnswerError(str(error)) from error
        found = []
        offset, end, known = start + (self.struct.size + 3 & ~3), len(data), self.by_number
        while offset + _ATTRIBUTE.size <= end:
            length, number = _ATTRIBUTE.unpack_from(data, offset)
            own = known.get(number & _TYPE_MASK)
            if own:
                found.append((*own, data[offset + _ATTRIBUTE.size : offset + length]))
            offset += max(length + 3 & ~3, _ATTRIBUTE.size)
        return Decoded(fields, found)


def encode(kind: type[Any], header: tuple[int, int, int], values: Mapping[str, int], attributes: Attributes) -> bytes:
    """Returns one netlink message: `header` is (type, flags, sequence number), `values` the fixed struct's fields."""
    body = _table(kind).write(values, attributes)
    return _HEADER.pack(_HEADER.size + len(body), *header, 0) + body


def decode(kind: type[Any], data: bytes) -> Decoded:
    """Returns the message of a class in `data`; raises AnswerError when it is cut off."""
    return _table(kind).read(data, _HEADER.size)


def prepare(*kinds: type[Any]) -> None:
    """Makes the tables of message classes and of their nested attributes: at import, so that the image has them."""
    for kind in kinds:
        prepare(*(form.kind for _, form in _table(kind).by_number.values() if isinstance(form, _Nested)))


def _table(kind: type[Any]) -> Table:
    table = _TABLES.get(kind)
    if table is None:
        forms = [form for _, form in kind.fields]
        order = ">" if any(form[0] == ">" for form in forms) else "="  # the others of such a struct are single bytes
        own = struct.Struct(order + "".join(form.lstrip(">") for form in forms))
        table = _TABLES[kind] = Table(own, tuple(name for name, _ in kind.fields))
        for number, name, how in kind.nla_map:
            word, _, nested = how.partition("|")
            form = _ATOMS.get(word) or _form(getattr(kind, word))
            table.by_number[number] = name, form
            table.by_name[name] = number | (_NESTED if nested else 0), form
    return table


def _form(how: Any) -> Form:
    """Returns the form of an attribute for which a message class has a class, or a function that chooses one."""
    if isinstance(how, FunctionType):
        return _Chosen(how)
    return _ATOMS.get(how.__name__) or _Nested(how)


@dataclass(frozen=True)
class _Nested:
    kind: type[Any]

    def write(self, value: Mapping[str, Any], _message: _Said) -> bytes:
        return _table(self.kind).write(value, value.get("attrs", []))

    def read(self, content: bytes, _message: Decoded) -> Decoded:
        return _table(self.kind).read(content, 0)


@dataclass(frozen=True)
class _Chosen:
    choose: Callable[[Any], type[Any]]

    def write(self, value: Any, message: _Said) -> bytes:
        return _form(self.choose(message)).write(value, message)

    def read(self, content: bytes, message: Decoded) -> Any:
        return _form(self.choose(message)).read(content, message)


class _Number:
    def __init__(self, form: str) -> None:
        self._struct = struct.Struct(form)

    def write(self, value: int, _message: _Said) -> bytes:
        return _packed(self._struct, value)

    def read(self, content: bytes, _message: Decoded) -> int:
        try:
            number: int = self._struct.unpack_from(content)[0]
        except struct.error as error:
            raise AnswerError(str(error)) from error
        return number


def _packed(form: struct.Struct, *values: int) -> bytes:
    try:
        return form.pack(*values)
    except struct.error as error:
        raise OSError(errno.ERANGE, f"a number is out of range: {error}") from error


class _Text:
    def write(self, value: str, _message: _Said) -> bytes:
        return value.encode("utf-8", "surrogateescape") + b"\0"

    def read(self, content: bytes, _message: Decoded) -> str:
        return content.rstrip(b"\0").decode("utf-8", "surrogateescape")


class _Bytes:
    def write(self, value: bytes, _message: _Said) -> bytes:
        return bytes(value)

    def read(self, content: bytes, _message: Decoded) -> bytes:
        return content


# By the names of pyroute2's classes.
_ATOMS: dict[str, Form] = {
    "uint8": _Number("=B"),
    "uint16": _Number("=H"),
    "uint32": _Number("=I"),
    "uint64": _Number("=Q"),
    "int32": _Number("=i"),
    "be16": _Number(">H"),
    "be32": _Number(">I"),
    "sbe32": _Number(">i"),
    "be64": _Number(">Q"),
    "asciiz": _Text(),
    "cdata": _Bytes(),
}
_TABLES: dict[type[Any], Table] = {}
