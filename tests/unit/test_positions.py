"""The parser with positions accepts and refuses the same texts as gojson, and reports position and reason."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cni import gojson
from podwire.lint import positions
from podwire.lint.positions import JsonSyntaxError, JsonValue

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
SNIPPETS = ["{", "}", "[", "]", ",", ":", '"a"', '"', "1", "-", "01", "1.", "1e5", "true", "nul", "NaN", "-Infinity"]
SNIPPETS += [" ", "\n", "//x\n", "\ufeff", "\0", "\\", '"\\ud800"', '"\\udc00\\ud800"', '"\\u12"', "\t", "\x0b"]
SNIPPETS += ["1" * 500]


def go_value(node: JsonValue) -> Any:
    """Returns the value as gojson returns it, with the same handling of duplicates and lone surrogates."""
    if node.members is not None:
        return gojson._pairs([(without_surrogates(item.name), go_value(item.node)) for item in node.members])
    if node.elements is not None:
        return [go_value(item) for item in node.elements]
    return without_surrogates(node.value)


def without_surrogates(value: Any) -> Any:
    return gojson._scrub(value)


def assert_same_as_gojson(data: bytes) -> None:
    try:
        expected: Any = gojson.loads(data)
    except ValueError as error:
        expected = error
    if isinstance(expected, ValueError):
        with pytest.raises(JsonSyntaxError) as caught:
            positions.parse(data)
        assert 0 <= caught.value.offset <= len(data.decode("utf-8", "replace"))
        assert positions.position(data, caught.value.offset).column >= 1
        return
    document = positions.parse(data)
    assert repr(go_value(document.root)) == repr(expected)
    for _, node in positions.walk(document.root):
        inner = gojson.loads(document.text[node.start : node.end].encode("utf-8", "replace"))
        assert repr(inner) == repr(go_value(node))


@given(st.binary(max_size=60))
@example(b"")
@example(b" \n")
@example(b"\xef\xbb\xbf{}")
@example(b'{"a":1,"a":null,"A":2}')
@example(b'{"a":"\xff"}')
def test_random_bytes_are_read_as_by_gojson(data):
    """Random bytes are the same value for both parsers, or an error for both."""
    assert_same_as_gojson(data)


@given(st.lists(st.sampled_from(SNIPPETS), max_size=12))
def test_random_snippets_are_read_as_by_gojson(pieces):
    """Random sequences of JSON snippets are the same value for both parsers, or an error for both."""
    assert_same_as_gojson("".join(pieces).encode())


@given(VALUES, st.sampled_from([None, 2]), st.data())
def test_values_with_one_error_are_read_as_by_gojson(value, indent, data):
    """Both parsers agree on a JSON text, and on the same text with a character removed or replaced."""
    text = json.dumps(value, indent=indent, ensure_ascii=data.draw(st.booleans()))
    assert_same_as_gojson(text.encode("utf-8", "replace"))
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(st.sampled_from(["", *SNIPPETS]))
    assert_same_as_gojson((text[:at] + put + text[at + data.draw(st.integers(0, 2)) :]).encode("utf-8", "replace"))


def test_nesting_is_unlimited():
    """Nesting that gojson refuses is parsed without a stack overflow."""
    depth = 20_000
    document = positions.parse(b"[" * depth + b"]" * depth)
    assert document.root.end == 2 * depth


@pytest.mark.parametrize(
    ("text", "position", "problem", "hint"),
    [
        ("", (1, 1), "the file is empty", ""),
        (" \n", (2, 1), "the file contains only white space", ""),
        ("\ufeff{}", (1, 1), "byte order mark", "UTF-8 without"),
        ("---\nname: a\n", (1, 1), "YAML", "JSON only"),
        ('{\n  "a": 1,\n}', (2, 9), 'comma before "}"', "remove the comma"),
        ('{"a": [1, 2,]}', (1, 12), 'comma before "]"', "remove the comma"),
        ('{"a": [,1]}', (1, 8), "comma too many", "remove it"),
        ('{\n  // why\n  "a": 1}', (2, 3), "comment", "no comments"),
        ('{"a": 1} # end', (1, 10), "follows the end", ""),
        ('{"a": 1 # why\n}', (1, 9), "comment", "no comments"),
        ("{'a': 1}", (1, 2), "double quotes", 'write " instead'),
        ("{a: 1}", (1, 2), "name must be in double quotes", ""),
        ('{"a": bridge}', (1, 7), '"bridge" must be in double quotes', ""),
        ('{"a": True}', (1, 7), "True is not JSON", "write true"),
        ('{"a": NaN}', (1, 7), "NaN is not JSON", ""),
        ('{"a": 0x10}', (1, 8), "comma is missing", ""),
        ('{"a": .5}', (1, 7), ".5 is not a JSON number", ""),
        ('{"a": 1\n "b": 2}', (2, 2), "comma is missing", ""),
        ('{"a" 1}', (1, 6), "colon is missing", ""),
        ('{"a": "b\n"}', (1, 9), "line break", ""),
        ('{"a": "b\\x"}', (1, 9), "backslash", ""),
        ('{"a": "b', (1, 7), "no closing double quote", ""),
        ('{"a": {"b": 1', (1, 14), "ends in the middle", 'the "{" in line 1, column 7'),
        ('{"a": 1}\0\0', (1, 9), "follows the end", ""),
        ('{"a":\0', (1, 6), "NUL", "crash"),
        ('{"a":\u00a01}', (1, 6), "no-break space", ""),
        ('{"a": 1}{', (1, 9), "follows the end", ""),
    ],
)
def test_frequent_mistakes_have_position_and_hint(text, position, problem, hint):
    """Each frequent mistake has its own message and hint, with line and column."""
    with pytest.raises(JsonSyntaxError) as caught:
        positions.parse(text.encode())
    assert positions.position(text.encode(), caught.value.offset) == position
    assert problem in caught.value.problem
    assert hint in caught.value.hint


def test_path_has_the_position_of_its_name():
    """A path finds names with dots, in another case and repeated, and returns None for missing ones."""
    text = '{\n "ipam": {"ranges": [[{"subnet": "a"}]]},\n "sysctl": {"net.a": 1},\n "MTU": 1, "mtu": 2}'
    document = positions.parse(text.encode())

    def at(path: str) -> Any:
        offset = document.offset(path)
        return None if offset is None else tuple(document.position(offset))

    assert at("ipam.ranges[0][0].subnet") == (2, 24)
    assert at("ipam.ranges[0]") == (2, 22)
    assert at("sysctl.net.a") == (3, 13)
    assert at("mtu") == (4, 12)
    assert [at("ipam.ranges[1]"), at("ipam.ranges[x]"), at("ipam.x"), at("sysctl.net")] == [None] * 4
