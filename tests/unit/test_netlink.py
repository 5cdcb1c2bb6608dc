"""Netlink messages in C (kernel/_netlink.c), compared with Python for any bytes, and as objects (kernel.wire)."""

import contextlib
import struct

import pytest
from _podwire import attribute_offsets, encode_attributes, get_attributes, messages
from hypothesis import example, given
from hypothesis import strategies as st

from kernel.codec import LinkMessage, VlanMessage
from kernel.codec_netfilter import ConntrackMessage, RuleMessage
from kernel.codec_traffic import FilterMessage, QdiscMessage
from kernel.wire import AnswerError, decode

NUMBERS = {"B": "=B", "H": "=H", "I": "=I", "Q": "=Q", "i": "=i", ">H": ">H", ">I": ">I", ">Q": ">Q", ">i": ">i"}
FORMS = (*NUMBERS, "s", "")
LENGTHS = st.sampled_from((0, 1, 3, 4, 5, 8, 11, 12, 20, 0x7FFF, 0xFFFF))
TYPES = st.sampled_from((1, 2, 3, 0x8001, 0x4002, 0xC003))


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """Attributes with mostly wrong lengths, mixed with other bytes."""
    parts = draw(
        st.lists(
            st.one_of(
                st.builds(lambda *header: struct.pack("=HH", *header), LENGTHS, TYPES),
                st.builds(lambda text, number: attribute(number, text), st.binary(max_size=9), TYPES),
                st.binary(max_size=7),
            ),
            max_size=8,
        )
    )
    return b"".join(parts)


def attribute(number: int, content: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(content), number) + content + bytes(-len(content) % 4)


def split_in_python(data: bytes, start: int) -> list[tuple[int, int, bytes]]:
    attributes = []
    while start + 4 <= len(data):
        length, number = struct.unpack_from("=HH", data, start)
        attributes.append((number & 0x3FFF, start, data[start + 4 : start + length]))
        start += max(length + 3 & ~3, 4)
    return attributes


def read_in_python(content: bytes, form: str) -> object:
    if form == "":
        return content
    if form == "s":
        return content.rstrip(b"\0").decode("utf-8", "surrogateescape")
    return struct.unpack_from(NUMBERS[form], content)[0]


@given(hostile(), st.integers(0, 40))
@example(b"", 0)
@example(bytes(8), 2)
@example(b"\4\0\1\0", 0)
@example(b"\5\0\1\0", 0)
def test_attribute_offsets(data, start):
    """With any lengths, C and Python return the same attributes, none beyond the end."""
    assert attribute_offsets(data, start) == [(number, offset) for number, offset, _ in split_in_python(data, start)]


@given(hostile(), st.integers(0, 40), st.lists(st.tuples(st.integers(0, 4), st.sampled_from(FORMS)), max_size=24))
def test_get_attributes(data, start, forms):
    """The first of several attributes is returned, the default for a missing one; a truncated number is an error."""
    first = {number: content for number, _, content in reversed(split_in_python(data, start))}
    specs = tuple((number, form, offset) for offset, (number, form) in enumerate(forms))
    try:
        expected = tuple(
            read_in_python(first[number], form) if number in first else offset for number, form, offset in specs
        )
    except struct.error:
        with pytest.raises(ValueError, match=r"a number has \d of \d bytes"):
            get_attributes(data, start, specs)
    else:
        assert get_attributes(data, start, specs) == expected


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.builds(
                lambda length, kind, flags, content: struct.pack("=IHHII", length, kind, flags, 7, 0) + content,
                st.sampled_from((0, 1, 15, 16, 17, 20, 36, 1 << 31, (1 << 32) - 1)),
                st.integers(0, 0xFFFF),
                st.integers(0, 0xFFFF),
                st.binary(max_size=20),
            ),
        ),
        max_size=4,
    )
)
def test_messages(parts):
    """With any lengths, C and Python return the same messages, none beyond the end."""
    data = b"".join(parts)
    expected = []
    offset = 0
    while offset + 16 <= len(data):
        length, kind, flags, sequence, _ = struct.unpack_from("=IHHII", data, offset)
        expected.append((kind, flags, sequence, data[offset : offset + length]))
        offset += max(16, length + 3 & ~3)
    assert messages(data) == expected


@given(st.sampled_from(list(NUMBERS)), st.integers(-(1 << 65), 1 << 65))
@example("i", -(1 << 31))
@example("i", -(1 << 31) - 1)
@example("I", 1 << 32)
@example("Q", 1 << 64)
def test_numbers_are_encoded_as_by_the_struct_module(form, number):
    """A number has the bytes of the struct module, or is refused as out of range."""
    try:
        expected = attribute(5, struct.pack(NUMBERS[form], number))
    except struct.error:
        with pytest.raises(OverflowError):
            encode_attributes([("X", number)], {"X": (5, form)})
    else:
        assert encode_attributes([("X", number)], {"X": (5, form)}) == expected


@given(st.lists(st.tuples(st.sampled_from("ab"), st.binary(max_size=300)), max_size=9))
def test_attributes_are_encoded_in_order(pairs):
    """Each attribute has its length and number, and is padded to four bytes."""
    assert encode_attributes(pairs, {"a": (1, ""), "b": (0x8002, "")}) == b"".join(
        attribute({"a": 1, "b": 0x8002}[name], content) for name, content in pairs
    )


class Twice:
    """A form with a method `write`."""

    def write(self, value: object, pairs: object) -> object:
        return value * 2 if isinstance(value, bytes) else pairs


def test_other_values():
    """Text gets a final NUL and may contain bytes that are not UTF-8; other forms encode with their method."""
    assert encode_attributes([("T", "a")], {"T": (1, "s")}) == attribute(1, b"a\0")
    assert encode_attributes([("T", "\udce9")], {"T": (1, "s")}) == attribute(1, b"\xe9\0")
    assert encode_attributes([("N", b"ab")], {"N": (1, Twice())}) == attribute(1, b"abab")
    assert encode_attributes([("L", bytes(0xFFFB))], {"L": (1, "")}) == attribute(1, bytes(0xFFFB))


@pytest.mark.parametrize(
    ("pairs", "known", "error"),
    [
        ([("X", 1)], {}, KeyError),
        ([("X", bytes(0xFFFC))], {"X": (1, "")}, OverflowError),
        ([("X", "1")], {"X": (1, "I")}, TypeError),
        ([("X", 1)], {"X": (1, "s")}, TypeError),
        ([("X", 1)], {"X": (1, "")}, TypeError),
        ([("X", None)], {"X": (1, Twice())}, TypeError),
        ([("X", b"")], {"X": (1, 2)}, AttributeError),
        ([("X", b"")], {"X": 1}, TypeError),
        ([("X",)], {"X": (1, "")}, TypeError),
        (["X"], {"X": (1, "")}, TypeError),
        (None, {}, TypeError),
    ],
)
def test_invalid_pairs(pairs, known, error):
    """Invalid and unknown attributes are an error."""
    with pytest.raises(error):
        encode_attributes(pairs, known)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("call", "arguments", "error"),
    [
        *((get_attributes, (b"", *rest), ValueError) for rest in ((-1, ()), (0, ((1, "", None),) * 25))),
        *((get_attributes, (b"", 0, (each,)), TypeError) for each in ((1, ""), 1, (1, 2, 3), ("1", "", None))),
        (attribute_offsets, (b"", -1), ValueError),
        (messages, ("text",), TypeError),
    ],
)
def test_invalid_arguments(call, arguments, error):
    """Negative offsets, too many or invalid attributes, and arguments that are not bytes are errors."""
    with pytest.raises(error):
        call(*arguments)


def test_a_single_message_is_not_copied():
    """A single received message is returned as the same object."""
    data = struct.pack("=IHHII", 20, 2, 0, 1, 0) + bytes(4)
    assert messages(data)[0][3] is data


KINDS = (LinkMessage, VlanMessage, QdiscMessage, FilterMessage, RuleMessage, ConntrackMessage)
HEADER = 16


def link_message(*attributes: bytes) -> bytes:
    return bytes(HEADER) + bytes(16) + b"".join(attributes)


def test_an_unknown_attribute_is_ignored():
    """Unknown attributes in a message are ignored, with any content."""
    message = decode(LinkMessage, link_message(attribute(999, b"?" * 7), attribute(4, struct.pack("=I", 1400))))
    assert message["attrs"] == [("IFLA_MTU", 1400)]


def test_attributes_of_a_name():
    """`get_attr` returns the first of several attributes, None without one, `get_attrs` all; fields must exist."""
    message = decode(LinkMessage, link_message(*(attribute(4, struct.pack("=I", mtu)) for mtu in (1400, 1500))))
    assert (message.get_attr("IFLA_MTU"), message.get_attrs("IFLA_MTU")) == (1400, [1400, 1500])
    assert message.get_attr("IFLA_IFNAME") is None
    with pytest.raises(KeyError):
        message["nonsense"]


def test_a_nested_attribute_without_content_is_not_missing():
    """A nested attribute without attributes is not None and is true."""
    info = decode(LinkMessage, link_message(attribute(18, b""))).get_attr("IFLA_LINKINFO")
    assert info
    assert info.get_attr("IFLA_INFO_KIND") is None


def test_a_truncated_message_is_an_error():
    """A message shorter than its fixed fields, or a number than its type, raises AnswerError."""
    with pytest.raises(AnswerError):
        decode(LinkMessage, bytes(HEADER + 15))
    with pytest.raises(AnswerError, match="a number has 2 of 4 bytes"):
        decode(LinkMessage, link_message(attribute(4, b"\0\0"))).get_attr("IFLA_MTU")


@given(st.sampled_from(KINDS), st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(kind, data):
    """Any bytes are decoded completely or raise AnswerError, without an endless loop or another error."""

    def walk(message):
        for _, value in message["attrs"]:
            if isinstance(value, dict):
                walk(value)

    with contextlib.suppress(AnswerError):
        walk(decode(kind, data))
