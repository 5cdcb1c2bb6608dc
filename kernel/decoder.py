"""Reading netlink messages: a walk along the attributes, by the tables of pyroute2's message classes.

One rule: the classes say what is where (`fields`, `nla_map`), and nothing is made of what nobody asks for. pyroute2's
own reading makes an object of each attribute, of which the kernel gives a link some forty: it took half the time of
a CHECK.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

_ATTRIBUTE = struct.Struct("=HH")
_HEADER_SIZE = 16  # struct nlmsghdr (linux/netlink.h)
_TYPE_MASK = 0x3FFF  # NLA_TYPE_MASK: the two upper bits are flags

Reader = Callable[[bytes, "Decoded"], Any]


class Decoded(dict[str, Any]):
    """A message, or a nested attribute: a mapping of its fixed fields; attributes are read when they are asked for.

    `["attrs"]` has all that are known, as pairs of name and value.
    """

    __slots__ = ("_found",)

    def __init__(self, fields: dict[str, Any], found: list[tuple[str, Reader, bytes]]) -> None:
        super().__init__(fields)
        self._found = found

    def __bool__(self) -> bool:
        return True  # also one without fields

    def get_attr(self, name: str) -> Any:
        """Returns the first attribute of a name, None when there is none."""
        for own, read, content in self._found:
            if own == name:
                return read(content, self)
        return None

    def get_attrs(self, name: str) -> list[Any]:
        """Returns all attributes of a name."""
        return [read(content, self) for own, read, content in self._found if own == name]

    def __missing__(self, key: str) -> Any:
        if key != "attrs":
            raise KeyError(key)
        return [(name, read(content, self)) for name, read, content in self._found]


@dataclass(frozen=True)
class Table:
    """What a message class says: its fixed struct, the names of the fields, attributes by number."""

    form: struct.Struct
    names: tuple[str, ...]
    attributes: dict[int, tuple[str, Reader]] = field(default_factory=dict)

    def read(self, data: bytes, start: int) -> Decoded:
        """Returns what stands in `data` from `start` on; raises struct.error when the fixed fields are cut off."""
        fields = dict(zip(self.names, self.form.unpack_from(data, start), strict=True))
        found = []
        offset, end, known = start + (self.form.size + 3 & ~3), len(data), self.attributes
        while offset + 4 <= end:
            length, number = _ATTRIBUTE.unpack_from(data, offset)
            own = known.get(number & _TYPE_MASK)
            if own:
                found.append((*own, data[offset + 4 : offset + length]))
            offset += (length + 3 & ~3) or 4
        return Decoded(fields, found)


def decode(kind: type[Any], data: bytes) -> Decoded:
    """Returns the message of a class in `data`; raises struct.error when it is cut off."""
    return _table(kind).read(data, _HEADER_SIZE)


def prepare(kind: type[Any]) -> None:
    """Makes the tables of a message class and of its nested attributes: at import, so that the image has them."""
    for _, read in _table(kind).attributes.values():
        if isinstance(read, _Nested):
            prepare(read.kind)


def form(kind: type[Any]) -> struct.Struct:
    """Returns the fixed struct of a message class."""
    forms = [form for _, form in kind.fields]
    order = ">" if any(form[0] == ">" for form in forms) else "="  # the others of such a struct are single bytes
    return struct.Struct(order + "".join(form.lstrip("=>") for form in forms))


def _table(kind: type[Any]) -> Table:
    table = _TABLES.get(kind)
    if table is None:
        table = _TABLES[kind] = Table(form(kind), tuple(name for name, _ in kind.fields))
        for number, name, how in kind.nla_map:
            table.attributes[number] = name, _reader(kind, how.partition("|")[0])
    return table


def _reader(kind: type[Any], how: str) -> Reader:
    """Returns what reads an attribute: one of a simple type, a nested one, or one whose class a function chooses."""
    if how in _ATOMS:
        return _ATOMS[how]
    chosen = getattr(kind, how)
    return _chosen(chosen) if isinstance(chosen, FunctionType) else _Nested(chosen)


def _chosen(choose: Callable[[Decoded], type[Any]]) -> Reader:
    def read(content: bytes, message: Decoded) -> Any:
        kind = choose(message)
        return (_ATOMS.get(kind.__name__) or _Nested(kind))(content, message)

    return read


class _Nested:
    __slots__ = ("kind",)

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind

    def __call__(self, content: bytes, message: Decoded) -> Decoded:
        return _table(self.kind).read(content, 0)


def _number(form: str) -> Reader:
    own = struct.Struct(form)
    return lambda content, _message: own.unpack_from(content)[0]


def _text(content: bytes, _message: Decoded) -> str:
    return content.rstrip(b"\0").decode("utf-8", "surrogateescape")


def _bytes(content: bytes, _message: Decoded) -> bytes:
    return content


# By the names of pyroute2's classes.
_ATOMS: dict[str, Reader] = {
    "uint8": _number("=B"),
    "uint16": _number("=H"),
    "uint32": _number("=I"),
    "uint64": _number("=Q"),
    "int32": _number("=i"),
    "be16": _number(">H"),
    "be32": _number(">I"),
    "sbe32": _number(">i"),
    "be64": _number(">Q"),
    "asciiz": _text,
    "cdata": _bytes,
}
_TABLES: dict[type[Any], Table] = {}
