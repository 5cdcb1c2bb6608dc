"""JSON parsed and printed as by Go (cni.gojson)."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cni import gojson
from cni.errors import Code
from tests.support.errors import failure_of

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda element: st.lists(element, max_size=4) | st.dictionaries(st.text(), element, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b' \t\r\n{"a": 1}\n', {"a": 1}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'{"a": 1, "a": null}', {"a": 1}),
        (b'{"a": null, "a": 1}', {"a": 1}),
        (b'{"a": 1, "A": 2, "a": 3}', {"A": 2, "a": 3}),
        (b"null", None),
        (b'"\xff\xfe"', "��"),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b'"\\ud83d"', "�"),
        (b'"x\\udC00y"', "x�y"),
        (b'{"\\ud800": ["\\uDFFF"]}', {"�": ["�"]}),
        (b"1e2", 100.0),
    ],
)
def test_json_is_parsed_as_by_go(text, value):
    """Duplicate keys (the last one counts, and is last), invalid UTF-8 and lone surrogates are parsed as by Go."""
    parsed: Any = gojson.loads(text)
    assert parsed == value
    assert not isinstance(value, dict) or list(parsed) == list(value)


def test_repeated_keys_are_listed_once():
    """Keys that an object has twice are listed once, in their order, and the longest text takes no minutes."""
    text = b'{"x": {"a": 1, "b": 2}, "X": {"b": 1, "a": 2, "a": 3, "b": 4, "c": 5}}'
    assert gojson.repeated_keys(text, "x") == ("b", "a")
    names = [f"{number:x}" for number in range(gojson.MAX_BYTES // 12)]
    text = json.dumps({"x": dict.fromkeys(names, "")}).encode()
    assert gojson.repeated_keys(text[:-2] + b', "7": ""}}', "x") == ("7",)


DEEP = (b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000)


@pytest.mark.parametrize("text", [b"[1 2]", b"+1", b".5", b"nul", *DEEP], ids=lambda text: repr(text[:16]))
def test_invalid_json_is_refused(text):
    """Anything but one JSON value, with white space around it, is a ValueError with a reason."""
    with pytest.raises(ValueError, match=r"."):
        gojson.loads(text)


@pytest.mark.parametrize("depth", range(150, 6000, 150))
def test_deep_nesting_is_no_recursion_error(depth):
    """A value of 200 levels, with lone surrogates, is parsed; one with more is, or is refused with a ValueError."""
    values: list[Any] = []
    error = failure_of(lambda: values.append(gojson.loads(b"[" * depth + b'"\\ud800"' + b"]" * depth)), ValueError)
    assert values or (depth > 200 and str(error).startswith("nested too deeply"))
    for value in values:
        inner = value
        for _ in range(depth):
            (inner,) = inner
        assert inner == "�"


def test_longest_text_is_parsed():
    """Two MiB are parsed, and not a byte more."""
    text = b"[" + b" " * (gojson.MAX_BYTES - 2) + b"]"
    assert gojson.loads(text) == []
    with pytest.raises(ValueError, match="the limit is 2 MiB"):
        gojson.loads(text + b" ")


@pytest.mark.parametrize("digits", [20, 4300, 4301, 100_000])
def test_integers_of_any_length_are_parsed(digits):
    """An integer beyond Python's limit of digits does not fail the whole text, since its key may be unknown."""
    value: Any = gojson.loads(b'{"unknown": ' + b"9" * digits + b', "name": "net"}')
    assert value["name"] == "net"
    assert value["unknown"] > 10**19


@given(st.binary() | st.text().map(str.encode) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_value_or_a_value_error(data):
    """Any input is parsed to a value that can be printed in UTF-8, or causes a ValueError."""
    try:
        value = gojson.loads(data)
    except ValueError:
        return
    json.dumps(value, ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_are_not_printed(value):
    """NaN and infinity are refused, since they are no JSON."""
    with pytest.raises(ValueError, match="JSON"):
        gojson.dumps(value)


@given(JSON_VALUES, st.sampled_from([None, 4, 1]))
@example([(), {}, [[]], {"a": ()}, {"": ({},)}, Code.INTERNAL, True, 10**30, -0.0, 1e300], 4)
@example("<b>&é\u2028\u2029", None)
@example({'a"\\\n\x00\x1f\x7f\x80': "\ud800"}, None)
def test_text_equals_the_standard_librarys(value, indent):
    """The text is the standard library's, except for the characters that Go escapes."""
    separators = (",", ": ") if indent else (",", ":")
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False, allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    assert gojson.dumps(value, indent=indent) == text
