"""A reader that knows places takes and refuses what the plain one does, and says where and why."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cni import gojson
from podwire.lint import positions
from podwire.lint.positions import JsonSyntaxError, Node

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
SNIPPETS = ["{", "}", "[", "]", ",", ":", '"a"', '"', "1", "-", "01", "1.", "1e5", "true", "nul", "NaN", "-Infinity"]
SNIPPETS += [
    " ",
    "\n",
    "//x\n",
    "\ufeff",
    "\0",
    "\\",
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\u12"',
    "\t",
    "\x0b",
    "1" * 500,
]


def plain(node: Node) -> Any:
    """Returns the value as gojson has it, duplicates and lone surrogates treated alike."""
    if node.members is not None:
        return gojson._pairs([(scrubbed(item.name), plain(item.node)) for item in node.members])
    if node.elements is not None:
        return [plain(item) for item in node.elements]
    return scrubbed(node.value)


def scrubbed(value: Any) -> Any:
    return gojson._scrub(value)


def agree(data: bytes) -> None:
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
    assert repr(plain(document.root)) == repr(expected)
    for _, node in positions.walk(document.root):
        inner = gojson.loads(document.text[node.start : node.end].encode("utf-8", "replace"))
        assert repr(inner) == repr(plain(node))


@given(st.binary(max_size=60))
@example(b"")
@example(b" \n")
@example(b"\xef\xbb\xbf{}")
@example(b'{"a":1,"a":null,"A":2}')
@example(b'{"a":"\xff"}')
def test_any_bytes_are_taken_or_refused_as_by_the_plain_reader(data):
    """Bytes at random are a value to both readers, the same, or to none."""
    agree(data)


@given(st.lists(st.sampled_from(SNIPPETS), max_size=12))
def test_pieces_of_json_in_any_order_are_taken_or_refused_as_by_the_plain_reader(pieces):
    """What nearly is JSON is a value to both readers, the same, or to none."""
    agree("".join(pieces).encode())


@given(VALUES, st.sampled_from([None, 2]), st.data())
def test_values_and_values_with_a_fault_are_read_alike(value, indent, data):
    """A JSON text, and one of which a character was removed, replaced or doubled, are read alike."""
    text = json.dumps(value, indent=indent, ensure_ascii=data.draw(st.booleans()))
    agree(text.encode("utf-8", "replace"))
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(st.sampled_from(["", *SNIPPETS]))
    agree((text[:at] + put + text[at + data.draw(st.integers(0, 2)) :]).encode("utf-8", "replace"))


def test_depth_is_no_limit():
    """Nesting that the plain reader refuses is read without an end of the stack."""
    depth = 100_000
    document = positions.parse(b"[" * depth + b"]" * depth)
    assert document.root.end == 2 * depth


@pytest.mark.parametrize(
    ("text", "place", "problem", "hint"),
    [
        ("", (1, 1), "the file is empty", ""),
        (" \n", (2, 1), "the file contains only blanks", ""),
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
def test_what_is_no_json_is_told_with_its_place(text, place, problem, hint):
    """The usual mistakes are told with line and column, in words of their own."""
    with pytest.raises(JsonSyntaxError) as caught:
        positions.parse(text.encode())
    assert positions.position(text.encode(), caught.value.offset) == place
    assert problem in caught.value.problem
    assert hint in caught.value.hint


def test_a_path_leads_to_the_place_of_its_name():
    """Names may have dots, another case and repetitions; what does not exist is not found."""
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
