"""Go's gob encoding, as far as the protocol of the DHCP daemon needs it (the format: pkg.go.dev/encoding/gob).

A stream consists of messages, each with its length. A message defines a type, or holds the ID of a defined type and a
value of it. A struct holds only its fields that are not zero; each begins with the distance from the previous one, and
pointers are replaced by what they point to. So a pointer to zero arrives as no pointer.

The decoder uses the type definitions of the sender, whose fields may differ from ours. Any bytes give values or
Malformed, with bounded memory and recursion. Not supported: values of interface types; values of floating-point,
complex and map types are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from process.values import dataclass

MESSAGE_BYTES = 1 << 20
_DEFINITION_BYTES = 1 << 16  # of all type definitions in a stream; those of the protocol have about 1,000
_MAX_VALUES = 1 << 16  # in a message, nested ones included
_MAX_DEPTH = 32
_MAX_LENGTH_BYTES = 9  # of the length before a message
_MIN_ID, _FIRST_ID = 64, 65  # of types that a stream defines; Go uses 64 or 65 for the first one
_NAMES = ("utf-8", "surrogateescape")  # a string of Go has any bytes, such as those of a path

Expected = TypeVar("Expected")


class MalformedGob(ValueError):  # noqa: N818 - a state of the input, as in packet.py
    """A violation: the received bytes are not gob, exceed a limit, or are not of the expected type."""


@dataclass(frozen=True)
class Basic:
    """A predefined type with its ID."""

    id: int


BOOL, INT, UINT, FLOAT, BYTES, STRING, COMPLEX = map(Basic, range(1, 8))


@dataclass(frozen=True)
class SliceType:
    """A list of values of one type; `length` is that of an array."""

    name: str
    element: Type
    length: int | None = None


@dataclass(frozen=True)
class MapType:
    """A map; it can only be received."""

    key: Type
    element: Type


@dataclass(frozen=True)
class StructType:
    """A struct: its name, and the names and types of its fields in their order."""

    name: str
    fields: tuple[tuple[str, Type], ...]


@dataclass(frozen=True)
class Reference:
    """A type by its ID in a stream; it can only be received."""

    id: int


Type = Basic | SliceType | MapType | StructType | Reference


@dataclass(frozen=True)
class Struct:
    """A value of a struct type: the fields that are not zero; the methods raise Malformed for another type."""

    fields: Mapping[str, Value]

    def integer(self, name: str) -> int:
        """Returns a signed or unsigned integer, 0 when it is absent."""
        return self._get(name, int, 0)

    def text(self, name: str) -> str:
        """Returns a string, "" when it is absent."""
        return self._get(name, str, "")

    def data(self, name: str) -> bytes:
        """Returns a byte slice, b"" when it is absent."""
        return self._get(name, bytes, b"")

    def struct(self, name: str) -> Struct:
        """Returns a struct, an empty one when it is absent."""
        return self._get(name, Struct, Struct({}))

    def texts(self, name: str) -> list[str]:
        """Returns a list of strings, an empty one when it is absent."""
        return [_checked(item, str, name) for item in self._get(name, list, [])]

    def structs(self, name: str) -> list[Struct]:
        """Returns a list of structs, an empty one when it is absent."""
        return [_checked(item, Struct, name) for item in self._get(name, list, [])]

    def _get(self, name: str, kind: type[Expected], default: Expected) -> Expected:
        return _checked(self.fields[name], kind, name) if name in self.fields else default


# None is a value of a type that is skipped; booleans are 0 and 1.
Value = int | str | bytes | list["Value"] | Struct | None


# The types of type definitions; Go's names (encoding/gob/type.go).
_COMMON = StructType("CommonType", (("Name", STRING), ("Id", INT)))
_FIELD = StructType("fieldType", (("Name", STRING), ("Id", INT)))
_OPAQUE = StructType("gobEncoderType", (("CommonType", _COMMON),))
_DEFINITION = StructType(
    "wireType",
    (
        ("ArrayT", StructType("arrayType", (("CommonType", _COMMON), ("Elem", INT), ("Len", INT)))),
        ("SliceT", StructType("sliceType", (("CommonType", _COMMON), ("Elem", INT)))),
        ("StructT", StructType("structType", (("CommonType", _COMMON), ("Field", SliceType("", _FIELD))))),
        ("MapT", StructType("mapType", (("CommonType", _COMMON), ("Key", INT), ("Elem", INT)))),
        ("GobEncoderT", _OPAQUE),
        ("BinaryMarshalerT", _OPAQUE),
        ("TextMarshalerT", _OPAQUE),
    ),
)
_PREDEFINED = (BOOL, INT, UINT, FLOAT, BYTES, STRING, COMPLEX)


class Encoder:
    """The sending side of a stream: sends the definition of a type before its first value."""

    def __init__(self) -> None:
        self._ids: dict[Type, int] = {}
        self._defined: set[Type] = set()

    def encode(self, kind: StructType, value: Struct) -> bytes:
        """Returns the bytes of a value, to be sent in the order of the calls; raises Malformed if it is too large."""
        body = _encode_int(self._get_id(kind)) + _encode(kind, value)
        if len(body) > MESSAGE_BYTES:
            raise MalformedGob(f"a message of {len(body)} bytes exceeds {MESSAGE_BYTES}")
        return self._define(kind) + _encode_uint(len(body)) + body

    def _get_id(self, kind: Type) -> int:
        """Returns the ID of a type; creates those of the type and its parts in Go's order."""
        if isinstance(kind, Basic):
            return kind.id
        if kind not in self._ids and isinstance(kind, SliceType):
            self._get_id(kind.element)
        new = kind not in self._ids
        number = self._ids.setdefault(kind, _FIRST_ID + len(self._ids))
        if new and isinstance(kind, StructType):
            for _, part in kind.fields:
                self._get_id(part)
        return number

    def _define(self, kind: Type) -> bytes:
        """Returns the definitions of a type and its parts that were not sent yet."""
        if isinstance(kind, Basic) or kind in self._defined:
            return b""
        self._defined.add(kind)
        number = self._get_id(kind)
        if isinstance(kind, SliceType):
            common = Struct({"Name": kind.name, "Id": number})
            definition = Struct({"SliceT": Struct({"CommonType": common, "Elem": self._get_id(kind.element)})})
            parts = [kind.element]
        elif isinstance(kind, StructType):
            common = Struct({"Name": kind.name, "Id": number})
            fields: list[Value] = [Struct({"Name": name, "Id": self._get_id(part)}) for name, part in kind.fields]
            definition = Struct({"StructT": Struct({"CommonType": common, "Field": fields})})
            parts = [part for _, part in kind.fields]
        else:
            raise TypeError(kind)
        body = _encode_int(-number) + _encode(_DEFINITION, definition)
        return _encode_uint(len(body)) + body + b"".join(map(self._define, parts))


class Decoder:
    """The receiving side of a stream; after Malformed the stream cannot be used any longer."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._types: dict[int, Type] = {kind.id: kind for kind in _PREDEFINED}
        self._definition_bytes = 0

    def feed(self, data: bytes) -> None:
        """Adds received bytes; `decode` returns the values."""
        self._buffer += data

    def decode(self) -> Struct | None:
        """Returns the next value, None if more bytes are needed; raises Malformed."""
        while (message := self._next_message()) is not None:
            reader = _Reader(message, self._types)
            number = reader.read_int()
            if number >= 0:
                kind = reader.resolve(number)
                if not isinstance(kind, StructType):
                    raise MalformedGob(f"the value is no struct, but of type {number}")
                value = reader.read_struct(kind)
                reader.finish()
                return value
            self._definition_bytes += len(message)
            if self._definition_bytes > _DEFINITION_BYTES:
                raise MalformedGob(f"type definitions exceed {_DEFINITION_BYTES} bytes")
            if -number < _MIN_ID or -number in self._types:
                raise MalformedGob(f"type {-number} is defined twice")
            self._types[-number] = _defined_type(reader.read_struct(_DEFINITION))
            reader.finish()
        return None

    def _next_message(self) -> bytes | None:
        """Removes a message from the buffer and returns it, None if it is not complete."""
        head = _Reader(bytes(self._buffer[:_MAX_LENGTH_BYTES]), self._types)
        if not head.has_uint():
            return None
        length = head.read_uint()
        if length > MESSAGE_BYTES:
            raise MalformedGob(f"a message of {length} bytes exceeds {MESSAGE_BYTES}")
        end = head.position + length
        if len(self._buffer) < end:
            return None
        message = bytes(self._buffer[head.position : end])
        del self._buffer[:end]
        return message


class _Reader:
    """Reads a message from its beginning to its end."""

    def __init__(self, data: bytes, types: Mapping[int, Type]) -> None:
        self.position = 0
        self._data = data
        self._types = types
        self._values = 0

    def finish(self) -> None:
        """Raises Malformed unless everything was read."""
        if self.position != len(self._data):
            raise MalformedGob(f"{len(self._data) - self.position} bytes after the value")

    def has_uint(self) -> bool:
        """Returns whether the bytes of an unsigned integer are complete; raises Malformed."""
        return self.position < len(self._data) and self.position + self._uint_bytes() < len(self._data)

    def read_uint(self) -> int:
        """Reads an unsigned integer: one byte below 128, or the negated count of the bytes that follow."""
        if self.position >= len(self._data):
            raise MalformedGob("the message ends in a value")
        first, more = self._data[self.position], self._uint_bytes()
        self.position += 1
        return int.from_bytes(self.read_bytes(more)) if more else first

    def read_int(self) -> int:
        """Reads a signed integer, whose sign is the lowest bit."""
        value = self.read_uint()
        return ~(value >> 1) if value & 1 else value >> 1

    def read_bytes(self, count: int) -> bytes:
        """Reads `count` bytes."""
        if count > len(self._data) - self.position:
            raise MalformedGob("the message ends in a value")
        self.position += count
        return self._data[self.position - count : self.position]

    def read_struct(self, kind: StructType, depth: int = 0) -> Struct:
        """Reads the fields of a struct."""
        fields: dict[str, Value] = {}
        number = -1
        while step := self.read_uint():
            number += step
            if number >= len(kind.fields):
                raise MalformedGob(f"a struct of {len(kind.fields)} fields has a field {number}")
            name, part = kind.fields[number]
            fields[name] = self._value(part, depth + 1)
        return Struct(fields)

    def resolve(self, number: int) -> Type:
        """Returns a type by its ID; raises Malformed."""
        if number not in self._types:
            raise MalformedGob(f"type {number} is not defined or not supported")
        return self._types[number]

    def _uint_bytes(self) -> int:
        first = self._data[self.position]
        if 128 <= first < 248:
            raise MalformedGob("an integer of more than 8 bytes")
        return 256 - first if first >= 128 else 0

    def _value(self, kind: Type, depth: int) -> Value:
        self._values += 1
        if depth > _MAX_DEPTH or self._values > _MAX_VALUES:
            raise MalformedGob("the value is nested too deeply or has too many parts")
        if isinstance(kind, Reference):
            kind = self.resolve(kind.id)
        if isinstance(kind, StructType):
            return self.read_struct(kind, depth)
        if isinstance(kind, SliceType):
            count = self.read_uint()
            if kind.length is not None and count != kind.length:
                raise MalformedGob(f"an array of {kind.length} elements has {count}")
            return [self._value(kind.element, depth + 1) for _ in range(self._fitting(count))]
        if isinstance(kind, MapType):
            for _ in range(self._fitting(self.read_uint())):
                self._value(kind.key, depth + 1)
                self._value(kind.element, depth + 1)
            return None
        return self._basic(kind)

    def _fitting(self, count: int) -> int:
        """Returns a number of elements; raises Malformed when they cannot fit: each has at least one byte."""
        if count > len(self._data) - self.position:
            raise MalformedGob(f"the message ends before its {count} elements")
        return count

    def _basic(self, kind: Type) -> Value:
        if kind == INT:
            return self.read_int()
        if kind == STRING:
            return self.read_bytes(self.read_uint()).decode(*_NAMES)
        if kind == BYTES:
            return self.read_bytes(self.read_uint())
        number = self.read_uint()
        if kind == COMPLEX:
            self.read_uint()
        return None if kind in (FLOAT, COMPLEX) else number


def _checked(value: Value, kind: type[Expected], name: str) -> Expected:
    if not isinstance(value, kind):
        raise MalformedGob(f"{name} is of another type than {kind.__name__}")
    return value


def _defined_type(definition: Struct) -> Type:
    """Returns the type that a received definition describes."""
    for name in definition.fields:
        body = definition.struct(name)
        type_name = body.struct("CommonType").text("Name")
        element = Reference(body.integer("Elem"))
        if name == "StructT":
            fields = tuple((item.text("Name"), Reference(item.integer("Id"))) for item in body.structs("Field"))
            return StructType(type_name, fields)
        if name == "SliceT":
            return SliceType(type_name, element)
        if name == "ArrayT":
            return SliceType(type_name, element, body.integer("Len"))
        return MapType(Reference(body.integer("Key")), element) if name == "MapT" else BYTES
    raise MalformedGob("a type definition is empty")


def _encode(kind: Type, value: Value) -> bytes:
    """Returns a value without its type; raises TypeError for a value of another type."""
    if isinstance(kind, StructType) and isinstance(value, Struct):
        return _encode_struct(kind, value)
    if isinstance(kind, SliceType) and isinstance(value, list):
        return _encode_uint(len(value)) + b"".join(_encode(kind.element, item) for item in value)
    if kind == INT and isinstance(value, int):
        return _encode_int(value)
    if kind == UINT and isinstance(value, int):
        return _encode_uint(value)
    if kind == STRING and isinstance(value, str):
        value = value.encode(*_NAMES)
    elif kind != BYTES:
        raise TypeError(kind)
    if not isinstance(value, bytes):
        raise TypeError(kind)
    return _encode_uint(len(value)) + value


def _encode_struct(kind: StructType, value: Struct) -> bytes:
    parts: list[bytes] = []
    previous = -1
    for number, (name, part) in enumerate(kind.fields):
        if field := value.fields.get(name):  # a Struct is always true, and Go sends structs without fields, too
            parts += [_encode_uint(number - previous), _encode(part, field)]
            previous = number
    return b"".join([*parts, b"\0"])


def _encode_int(value: int) -> bytes:
    return _encode_uint(~value << 1 | 1 if value < 0 else value << 1)


def _encode_uint(value: int) -> bytes:
    if value < 128:
        return bytes((value,))
    data = value.to_bytes((value.bit_length() + 7) // 8)
    return bytes((256 - len(data),)) + data
