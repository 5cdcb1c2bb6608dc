"""JSON as Go reads and prints it (cni.gojson)."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cni import gojson
from cni.errors import Code
from tests.support.errors import failure_of

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b' \t\r\n{"a": 1}\n', {"a": 1}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'{"a": 1, "a": null}', {"a": 1}),
        (b'{"a": null, "a": 1}', {"a": 1}),
        (b"null", None),
        (b'"\xff\xfe"', "��"),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b'"\\ud83d"', "�"),
        (b'"x\\udC00y"', "x�y"),
        (b'{"\\ud800": ["\\uDFFF"]}', {"�": ["�"]}),
        (b"1e2", 100.0),
    ],
)
def test_reads_what_go_reads(text, value):
    """Duplicate keys, invalid UTF-8 and halves of surrogate pairs are read as Go's encoding/json reads them."""
    assert gojson.loads(text) == value


def test_repeated_names_are_told_however_many_there_are():
    """Names that an object has twice are told once each, in their order; the longest text takes no minutes."""
    text = b'{"x": {"a": 1, "b": 2}, "X": {"b": 1, "a": 2, "a": 3, "b": 4, "c": 5}}'
    assert gojson.repeated_keys(text, "x") == ("b", "a")
    names = [f"{number:x}" for number in range(gojson.MAX_BYTES // 12)]
    text = json.dumps({"x": dict.fromkeys(names, "")}).encode()
    assert gojson.repeated_keys(text[:-2] + b', "7": ""}}', "x") == ("7",)


def test_the_last_spelling_of_a_key_stands_last():
    """Of keys that differ in case the last in the text can be told by its place, even when the first is repeated."""
    assert list(gojson.loads(b'{"a": 1, "A": 2, "a": 3}')) == ["A", "a"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" \n",
        b"{",
        b'{"a": 1} x',
        b'{"a": 1}{"a": 1}',
        b"\xef\xbb\xbf{}",
        b'{"a": 1,}',
        b"{'a': 1}",
        b"[1 2]",
        b"01",
        b"+1",
        b".5",
        b"NaN",
        b'{"a": -Infinity}',
        b'"a\nb"',
        b'"\\x41"',
        b"nul",
        b"\x00",
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=lambda text: repr(text[:16]),
)
def test_refuses_what_is_no_json_value(text):
    """Anything but one JSON value, with blanks around it, is a ValueError with a reason."""
    with pytest.raises(ValueError, match=r"."):
        gojson.loads(text)


@pytest.mark.parametrize("depth", range(150, 6000, 150))
def test_no_depth_escapes_as_a_recursion_error(depth):
    """A value nested to any depth is read whole or refused with a ValueError, halves of surrogate pairs included."""
    values = []
    error = failure_of(lambda: values.append(gojson.loads(b"[" * depth + b'"\\ud800"' + b"]" * depth)), ValueError)
    assert error is None or str(error).startswith("nested too deeply")
    for value in values:
        inner = value
        for _ in range(depth):
            (inner,) = inner
        assert inner == "�"


def test_nesting_that_configurations_may_have_is_read():
    """Two hundred levels are no problem."""
    assert gojson.loads(b"[" * 200 + b"]" * 200)


def test_a_text_of_the_greatest_length_is_read():
    """Two MiB are read, and not a byte more."""
    text = b"[" + b" " * (gojson.MAX_BYTES - 2) + b"]"
    assert gojson.loads(text) == []
    with pytest.raises(ValueError, match="the limit is 2 MiB"):
        gojson.loads(text + b" ")


@pytest.mark.parametrize("digits", [20, 4300, 4301, 100_000])
def test_integers_of_any_length_are_read(digits):
    """An integer beyond Python's limit on digits does not fail the whole text: its key may be nobody's business."""
    value = gojson.loads(b'{"unknown": ' + b"9" * digits + b', "name": "net"}')
    assert value["name"] == "net"
    assert value["unknown"] > 10**19


@given(st.binary() | st.text().map(str.encode) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_give_a_value_or_a_value_error(data):
    """Whatever is on stdin, reading it ends in a value that can be printed in UTF-8, or in a ValueError."""
    try:
        value = gojson.loads(data)
    except ValueError:
        return
    json.dumps(value, ensure_ascii=False).encode("utf-8")


@given(JSON_VALUES, st.sampled_from([None, 4]))
def test_printed_text_reads_back(value, indent):
    """What is printed is read back as the same value, compact or indented."""
    text = gojson.dumps(value, indent=indent)
    assert json.loads(text) == value


def test_prints_as_go_prints():
    """Markup characters and line separators are escaped, other text is left as it is; indentation is four blanks."""
    assert gojson.dumps({"a": "<b>&é\u2028"}) == '{"a":"\\u003cb\\u003e\\u0026é\\u2028"}'
    assert gojson.dumps({"a": [1], "b": {}}, indent=4) == '{\n    "a": [\n        1\n    ],\n    "b": {}\n}'


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_never_prints_what_is_not_json(value):
    """NaN and infinity are refused rather than printed."""
    with pytest.raises(ValueError, match="JSON"):
        gojson.dumps(value)


@given(JSON_VALUES, st.sampled_from([None, 4, 1]))
@example([(), {}, [[]], {"a": ()}, {"": ({},)}, Code.INTERNAL, True, 10**30, -0.0, 1e300], 4)
@example({'a"\\\n\x00\x1f\x7f\x80': "\ud800"}, None)
def test_prints_as_the_standard_library_prints(value, indent):
    """Text is the standard library's, but for the characters that Go escapes."""
    separators = (",", ": ") if indent else (",", ":")
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False, allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    assert gojson.dumps(value, indent=indent) == text
