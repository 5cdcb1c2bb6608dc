"""nftables rules as bytes (netfilter.nft_rule): comparison, userdata, and parsing of any bytes."""

import struct
from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from kernel.netfilter import nft, nft_expression, nft_rule
from kernel.netfilter.nft import Chain, Table

TABLE = Table(nft.INET, "t")
CHAIN = Chain(TABLE, "c")
IPV4 = ip_address("10.22.0.2")


def test_is_same_rule():
    """Rules are equal with another order of attributes or more of them, but not with other values or expressions."""
    accept, drop = nft_rule.ACCEPT, nft_rule.DROP
    source = nft_rule.source(IPV4)
    meta = bytes.fromhex("1c000100 09000100 6d65746100000000 0c000200 08000100 00000001")  # without a key
    reordered = bytes.fromhex(
        "2c000100 1c000200 08000900 00000007 08000100 00000001 08000200 00000006 09000100 6d65746100000000"
    )
    assert nft_rule.is_same_rule(source + accept, source + accept)
    assert not nft_rule.is_same_rule(source + accept, source + drop)
    assert not nft_rule.is_same_rule(source + accept, source)
    assert not nft_rule.is_same_rule(source, source + accept)
    assert not nft_rule.is_same_rule(source, nft_rule.source(ip_address("10.22.0.3")))
    iifname = nft_rule.from_interface("eth0")[:36]
    assert nft_rule.is_same_rule(iifname, reordered)
    assert not nft_rule.is_same_rule(iifname, meta)


def test_comments_are_truncated():
    """A comment has at most 128 bytes, and the following items of the userdata are complete."""
    data = nft_rule.comment_userdata("c" * 200, (0x70, b"more"))
    assert nft_rule.parse_userdata(data) == {0: b"c" * 128 + b"\0", 0x70: b"more"}
    assert nft_rule.parse_comment(data) == "c" * 128
    assert nft_rule.parse_comment(b"") == ""


@given(st.binary(max_size=64))
def test_any_userdata_is_read(data):
    """Any userdata is parsed without an error."""
    assert isinstance(nft_rule.parse_comment(data), str)


def with_length(kind, content, wrong=0):
    """Returns an attribute whose length field is wrong by `wrong` bytes, but not negative."""
    length = max(0, 4 + len(content) + wrong)
    return struct.pack("=HH", length, kind) + content + bytes(-len(content) % 4)


KINDS, CONTENTS = st.sampled_from([1, 2, 0x8001, 0x8002, 0x4001]), st.binary(max_size=6)
LEAVES = st.builds(with_length, KINDS, CONTENTS, st.sampled_from([0] * 9 + [-9, 1, 99]))
LISTS = st.recursive(
    st.lists(LEAVES, max_size=3).map(b"".join),
    lambda inner: st.lists(st.builds(with_length, KINDS, inner), max_size=3).map(b"".join),
)


def read(data):
    return [(kind, nested, content) for kind, nested, content in nft_expression.attributes(data)]


def has_all(existing, desired):
    """Compares nested attributes as same_attributes does."""
    by_kind = {kind: content for kind, _, content in read(existing)}
    return all(
        kind in by_kind and (has_all(by_kind[kind], content) if nested else by_kind[kind] == content)
        for kind, nested, content in read(desired)
    )


@given(LISTS | st.binary(max_size=64), LISTS | st.binary(max_size=64), st.booleans())
def test_any_expressions_are_compared(desired, existing, alike):
    """Any bytes, also with lengths beyond the end, are compared as by the Python implementation."""
    existing = desired.replace(b"\x80", b"\0") if alike else existing
    pairs = list(zip(read(desired), read(existing), strict=False))
    same = len(read(desired)) == len(read(existing)) and all(
        kind == other and (has_all(content, content_of_desired) if nested else content == content_of_desired)
        for (kind, nested, content_of_desired), (other, _, content) in pairs
    )
    assert nft_rule.is_same_rule(desired, existing) == same


def test_deeply_nested_expressions_are_not_equal():
    """Expressions nested more deeply than in any rule are not compared and count as different."""
    data = b""
    for _ in range(10000):
        data = with_length(0x8001, data) if len(data) < 60000 else data
    assert not nft_rule.is_same_rule(data, data)
    assert nft_rule.is_same_rule(b"", b"")


@given(st.binary(max_size=96))
def test_any_expressions_are_read(data):
    """The destination of a rule of any bytes is parsed without an error."""
    assert nft_rule.parse_destination(data).port in range(1 << 16)
    assert data.startswith(b"".join(nft_rule.split_expressions(data)))


def test_ports_are_read_without_decoding():
    """The function compared_byte_pairs returns the port that a rule matches, and not its DNAT target's."""
    rule = nft_rule.transport("tcp") + nft_rule.destination_port(8080) + nft_rule.dnat(IPV4, 9090)
    assert nft_rule.compared_byte_pairs(nft.rule_request(CHAIN, rule).encode(1)) == [(8080).to_bytes(2, "big")]
