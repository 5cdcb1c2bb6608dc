"""Go's gob (ipam.dhcp.gob): values of any type, and malformed bytes; test_dhcp_rpc has bytes of Go programs."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipam.dhcp import gob
from ipam.dhcp.gob import BYTES, INT, STRING, UINT, MalformedGob, SliceType, Struct, StructType

STRINGS = SliceType("[]string", STRING)
KIND = StructType("Kind", (("Text", STRING), ("Texts", STRINGS), ("Data", BYTES)))


def decode(*chunks: bytes) -> list[Struct]:
    """Returns the values of a stream that arrives in chunks."""
    decoder = gob.Decoder()
    values = []
    for chunk in chunks:
        decoder.feed(chunk)
        while (value := decoder.decode()) is not None:
            values.append(value)
    return values


def encode(values: list[tuple[StructType, Struct]]) -> bytes:
    encoder = gob.Encoder()
    return b"".join(encoder.encode(kind, value) for kind, value in values)


BASICS: dict[gob.Type, st.SearchStrategy[gob.Value]] = {
    INT: st.integers(-(1 << 63), (1 << 63) - 1).filter(bool),
    UINT: st.integers(1, (1 << 64) - 1),
    BYTES: st.binary(min_size=1),
    STRING: st.binary(min_size=1).map(lambda data: data.decode("utf-8", "surrogateescape")),
}


def structs_of(types: st.SearchStrategy[gob.Type]) -> st.SearchStrategy[StructType]:
    """Returns the struct types with fields of some types."""
    fields = st.dictionaries(st.text("cd"), types, max_size=4).map(lambda types: tuple(types.items()))
    return st.builds(StructType, st.text("ab"), fields)


TYPES: st.SearchStrategy[gob.Type] = st.recursive(
    st.sampled_from(list(BASICS)),
    lambda inner: st.builds(SliceType, st.text("ab"), inner) | structs_of(inner),
    max_leaves=8,
)


def values_of(kind: gob.Type) -> st.SearchStrategy[gob.Value]:
    """Returns the values of a type that are not zero; a struct has some of its fields."""
    if isinstance(kind, StructType):
        fields = {name: values_of(part) for name, part in kind.fields}
        return st.fixed_dictionaries({}, optional=fields).map(Struct)
    if isinstance(kind, SliceType):
        return st.lists(values_of(kind.element), min_size=1, max_size=3)
    return BASICS[kind]


@given(st.lists(structs_of(TYPES).flatmap(lambda kind: st.tuples(st.just(kind), values_of(kind))), max_size=4))
def test_any_values_are_decoded_as_they_were(values):
    """Structs of any types, nested ones, slices, numbers and strings that are not UTF-8 survive a stream."""
    assert decode(encode(values)) == [value for _, value in values]


def test_zeros():
    """A field that is zero is left out, and the methods of a struct return zeros for it; a slice keeps its zeros."""
    zero = Struct({"Text": "", "Texts": [], "Data": None})
    assert decode(encode([(KIND, zero)])) == [Struct({})]
    absent = Struct({})
    assert (absent.integer("x"), absent.text("x"), absent.data("x"), absent.struct("x")) == (0, "", b"", Struct({}))
    assert (absent.texts("x"), absent.structs("x")) == ([], [])
    names = StructType("Names", (("Names", STRINGS), ("Numbers", SliceType("[]int", INT))))
    value = Struct({"Names": ["", "a", ""], "Numbers": [0, -1]})
    assert decode(encode([(names, value)])) == [value]


@pytest.mark.parametrize("method", ["integer", "text", "data", "struct", "texts", "structs"])
def test_fields_of_another_type_are_refused(method):
    """A field whose type is not the expected one is Malformed, and so is an element of a list."""
    values: dict[str, gob.Value] = {"integer": 1, "text": "a", "data": b"a", "struct": Struct({})}
    values |= {"texts": ["a"], "structs": [Struct({})]}
    getter = getattr(Struct({**values, "skipped": None, "list": [1]}), method)
    assert getter(method) == values[method]
    for other in values.keys() - {method, "skipped"} | {"skipped", "list"}:
        with pytest.raises(MalformedGob):
            getter(other)


def message(body: str) -> bytes:
    data = bytes.fromhex(body)
    assert len(data) < 128
    return bytes([len(data)]) + data


# Definitions by hand, after the documentation of Go's package encoding/gob: the field of wireType, the distance to
# CommonType, in which field 2 is the ID (twice its value), and the type's parts.
ARRAY = message("ff83 01 01 02ff8400 0104 0104 00 00")  # 66: [2]int
MAP = message("ff85 04 01 02ff8600 010c 0104 00 00")  # 67: map[string]int
OPAQUE = message("ff87 05 01 02ff8800 00 00")  # 68: a type with its encoding
# 65: struct {F float64; C complex128; M map[string]int; A [2]int; G opaque; B bool; X int}
STRANGE = message(
    "ff81 03 01 02ff8200 0107 010146010800 010143010e00 01014d01ff8600 01014101ff8400 01014701ff8800"
    "010142010200 010158010400 00 00"
)
STRANGE_VALUE = message("ff82 01fef03f 01fef03f40 01 02016102016204 01 020204 01 03616263 01 01 01 0a 00")


def test_fields_of_other_types_are_skipped():
    """Numbers with fractions and maps are skipped; arrays, booleans and opaque bytes have values."""
    expected: dict[str, gob.Value] = {"F": None, "C": None, "M": None, "A": [1, 2], "G": b"abc", "B": 1, "X": 5}
    assert decode(STRANGE, MAP, ARRAY, OPAQUE, STRANGE_VALUE) == [Struct(expected)]


LIST = message("ff81 03 01 02ff8200 0101 01014c01ff8400 00 00")  # 65: struct {L type 66}
RECURSIVE = message("ff83 02 01 02ff8400 01ff84 00 00")  # 66: a list of itself
NUMBERS = message("ff83 02 01 02ff8400 0104 00 00")  # 66: []int
ENTRIES = message("ff83 04 01 02ff8400 010c 0104 00 00")  # 66: map[string]int


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (message(""), "ends in a value"),
        (message("81"), "more than 8 bytes"),
        (bytes.fromhex("80"), "more than 8 bytes"),
        (bytes.fromhex("fd100001"), "a message of 1048577 bytes"),
        (bytes.fromhex("f87fffffffffffffff"), "exceeds 1048576"),
        (message("ff82 00"), "type 65 is not defined"),
        (message("06 00 02"), "no struct"),
        (message("10 00"), "type 8 is not defined or not supported"),
        (message("ff81 00"), "definition is empty"),
        (message("0b 03 01 02ff8200 00 00"), "defined twice"),
        (message("7d 03 01 02 7e00 00 00"), "defined twice"),  # 63 is Go's own, as all below 64
        (LIST + LIST, "defined twice"),
        (LIST + message("ff82 00 00"), "1 bytes after the value"),
        (message("ff81 03 01 02ff8200 00 00 00"), "1 bytes after the value"),
        (LIST + message("ff82 02 00"), "has a field 1"),
        (LIST + message("ff82 01 01 00"), "type 66 is not defined"),
        (LIST + message("ff82"), "ends in a value"),
        (LIST + NUMBERS + message("ff82 01 02 00 80"), "more than 8 bytes"),
        (LIST + RECURSIVE + message("ff82 01 05 00 00"), "ends before its 5 elements"),
        (LIST + RECURSIVE + message("ff82 01 f87fffffffffffffff 00 00"), "ends before its"),
        (LIST + RECURSIVE + message("ff82 01" + "01" * 60 + "00 00"), "nested too deeply"),
        (LIST + ENTRIES + message("ff82 01 7f 00"), "ends before its 127 elements"),
        (LIST + ARRAY + message("ff82 01 03 02 02 02 00"), "an array of 2 elements has 3"),
    ],
)
def test_malformed_streams_are_refused(data, reason):
    """A stream that is not gob, or exceeds a limit, is Malformed."""
    with pytest.raises(MalformedGob, match=reason):
        decode(data)


def list_of_zeros(count: int) -> bytes:
    body = b"\xff\x82\1\xfd" + count.to_bytes(3) + bytes(count) + b"\0"
    return b"\xfd" + len(body).to_bytes(3) + body


def test_number_of_values_is_limited():
    """A message has at most 65,536 values, so that a small message does not need much memory."""
    for definition in (NUMBERS, RECURSIVE):
        with pytest.raises(MalformedGob):
            decode(LIST, definition, list_of_zeros(70_000))
    assert decode(LIST, NUMBERS, list_of_zeros(60_000)) == [Struct({"L": [0] * 60_000})]
    tracemalloc.start()
    try:
        (lists,) = decode(LIST, RECURSIVE, list_of_zeros(60_000))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert lists == Struct({"L": [[]] * 60_000})


def test_type_definitions_are_limited():
    """A stream has at most 64 KiB of type definitions."""
    definitions = b"".join(
        b"\x0d\xfe" + (number * 2 - 1).to_bytes(2) + bytes.fromhex("0201 02ff8400 0104 00 00")
        for number in range(128, 8192)
    )
    assert decode(definitions[: 1 << 15]) == []
    with pytest.raises(MalformedGob, match="type definitions exceed"):
        decode(definitions)


def test_large_messages_are_not_sent():
    """A value of more than 1 MiB is Malformed for the sender, too, which can go on with other values."""
    encoder = gob.Encoder()
    with pytest.raises(MalformedGob, match="exceeds 1048576"):
        encoder.encode(KIND, Struct({"Data": bytes(1 << 20)}))
    assert decode(encoder.encode(KIND, Struct({"Text": "a"}))) == [Struct({"Text": "a"})]
