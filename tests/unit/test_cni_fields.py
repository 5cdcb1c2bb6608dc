"""The typed reader of JSON objects (cni.fields)."""

from ipaddress import ip_address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.errors import CniError
from cni.fields import Fields
from tests.support.errors import error_of, failure_of
from tests.unit.test_cni_gojson import JSON_VALUES

READERS = ("string", "boolean", "integer", "ip", "cidr", "nested", "section", "strings", "objects", "object_lists")

EMPTY = {"string": "", "boolean": False, "strings": (), "objects": (), "object_lists": ()}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("items", [{}, {"key": None}, {"other": 1}], ids=["absent", "null", "other"])
def test_absent_and_null_are_the_default(reader, items):
    """An absent key and `null` have the same effect in every reader."""
    value = getattr(Fields(items), reader)("key")
    if reader == "section":
        assert value.raw("anything") is None
    else:
        assert value == EMPTY.get(reader)
    assert not Fields(items).has("key")


@pytest.mark.parametrize(
    ("reader", "value", "expected"),
    [
        ("string", "x", "x"),
        ("boolean", True, True),
        ("integer", -5, -5),
        ("ip", "::FFFF:10.1.2.3", ip_address("10.1.2.3")),
        ("ip", "", None),
        ("cidr", "10.1.2.5/24", ip_interface("10.1.2.5/24")),
        ("strings", ["a", None], ("a", "")),
    ],
)
def test_keys_match_in_any_case(reader, value, expected):
    """Keys match without regard to case, which containerd's untagged Go structures need."""
    for key in ("hostPort", "HostPort", "HOSTPORT"):
        assert getattr(Fields({key: value}), reader)("hostPort") == expected


@pytest.mark.parametrize(
    ("reader", "value", "problem"),
    [
        ("string", 1, "must be a string, not a number"),
        ("string", ["x"], "must be a string, not a list"),
        ("boolean", "true", "must be true or false, not a string"),
        ("boolean", 1, "must be true or false, not a number"),
        ("integer", "1500", "must be an integer, not a string"),
        ("integer", 1500.5, "must be an integer, not 1500.5"),
        ("integer", 1.0, "must be an integer, not 1.0"),
        ("integer", True, "must be an integer, not a boolean"),
        ("integer", 1 << 63, f"must be between {-(1 << 63)} and {(1 << 63) - 1}, not {1 << 63}"),
        ("ip", "10.1.2", "is not an IP address: 10.1.2"),
        ("ip", 10, "must be a string, not a number"),
        ("cidr", "", "is not an address with prefix: "),
        ("cidr", "10.1.2.0", "is not an address with prefix: 10.1.2.0"),
        ("nested", [], "must be an object, not a list"),
        ("section", "x", "must be an object, not a string"),
        ("strings", {}, "must be a list, not an object"),
        ("objects", False, "must be a list, not a boolean"),
        ("object_lists", "x", "must be a list, not a string"),
    ],
)
def test_types_are_strict(reader, value, problem):
    """A value of another type is refused with code 7, and the message has the key's whole path."""
    error = error_of(lambda: getattr(Fields({"Key": value}, "outer[2]"), reader)("key"), CniError)
    assert (error.code, error.msg) == (7, f'failed to load netconf: "outer[2].key" {problem}')


def test_messages_have_the_path_of_the_element():
    """The message for a nested element has the objects and indexes on its path."""
    whole = Fields({"ipam": {"ranges": [[{}, {"subnet": 5}]], "names": ["a", 5], "items": [None, "x"]}})
    fields = whole.section("ipam")
    element = fields.object_lists("ranges")[0][1]
    for read, text in (
        (lambda: element.cidr("subnet"), '"ipam.ranges[0][1].subnet" must be a string, not a number'),
        (lambda: fields.strings("names"), '"ipam.names[1]" must be a string, not a number'),
        (lambda: fields.objects("items"), '"ipam.items[1]" must be an object, not a string'),
    ):
        assert error_of(read, CniError).msg == f"failed to load netconf: {text}"


def test_last_spelling_of_a_key_is_used():
    """Of keys that differ in case the last one in the text counts, but `null` keeps the earlier value."""
    assert Fields({"MTU": 1, "mtu": 2}).integer("mtu") == 2
    assert Fields({"mtu": 2, "MTU": None}).integer("mtu") == 2


@given(st.sampled_from(READERS), JSON_VALUES)
def test_any_value_is_parsed_or_refused(reader, value):
    """No JSON value causes another error in a reader than code 7."""
    read = getattr(Fields({"key": value}), reader)
    error = failure_of(lambda: read("KEY"), CniError)
    assert error is None or (error.code == 7 and '"KEY' in error.msg)
