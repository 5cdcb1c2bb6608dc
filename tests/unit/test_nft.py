"""nftables messages and rules as bytes (netfilter.nft, netfilter.nft_rule), compared with pyroute2's full classes."""

import importlib
import struct
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.codec_netfilter import ChainMessage, RuleMessage, TableMessage
from kernel.netfilter import nft, nft_expression, nft_rule, nft_set
from kernel.netfilter.nft import Chain, Hook, Table
from kernel.netfilter.nft_set import INTERFACE_NAME, IPV4_ADDRESS, Element, Set
from kernel.wire import decode

# Not by an import statement: kernel.codec must have put its stand-in for the package in place before.
full = importlib.import_module("pyroute2.netlink.nfnetlink.nftsocket")
FULL = {TableMessage: full.nft_table_msg, ChainMessage: full.nft_chain_msg, RuleMessage: full.nft_rule_msg}

TABLE = Table(nft.INET, "t")
CHAIN = Chain(TABLE, "c")
BASE = Chain(TABLE, "base", Hook("nat", 4, -100))
REQUESTS = {
    "table": nft.table_request(TABLE),
    "chain": nft.chain_request(CHAIN),
    "base chain": nft.chain_request(BASE),
    "chain deletion": nft.delete_chain_request(CHAIN),
    "rule deletion": nft.delete_rule_request(CHAIN, 1 << 40),
    "flush": nft.flush_chain_request(CHAIN),
}
IPV4, IPV6 = ip_address("10.22.0.2"), ip_address("fd00:22::2")

# What `nft --debug=mnl add rule inet t c ip saddr 10.22.0.2 ip daddr 10.0.0.0/12 return` sent (nftables 1.0.6).
RULE = bytes.fromhex(
    "24000180 09000100 6d65746100000000 14000280 08000200 0000000f 08000100 00000001"
    "2c000180 08000100 636d7000 20000280 08000100 00000001 08000200 00000000 0c000380 05000100 02000000"
    "34000180 0c000100 7061796c6f616400"
    "24000280 08000100 00000001 08000200 00000001 08000300 0000000c 08000400 00000004"
    "2c000180 08000100 636d7000 20000280 08000100 00000001 08000200 00000000 0c000380 08000100 0a160002"
    "34000180 0c000100 7061796c6f616400"
    "24000280 08000100 00000001 08000200 00000001 08000300 00000010 08000400 00000004"
    "44000180 0c000100 6269747769736500 34000280 08000100 00000001 08000200 00000001 08000300 00000004"
    "0c000480 08000100 fff00000 0c000580 08000100 00000000"
    "2c000180 08000100 636d7000 20000280 08000100 00000001 08000200 00000000 0c000380 08000100 0a000000"
    "30000180 0e000100 696d6d6564696174650000001c000280 08000100 00000000 10000280 0c000280 08000100 fffffffb"
)


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_are_encoded_as_by_the_full_classes(name):
    """Each request without bytes of our own is the same when pyroute2's own class encodes it."""
    request = REQUESTS[name]
    message = FULL[request.kind]()
    message["header"].update({"type": request.type, "flags": request.flags | 1, "sequence_number": 3})
    message["nfgen_family"] = request.values["family"]
    message["attrs"] = [
        (key, {"attrs": value["attrs"]}, 0x8000) if isinstance(value, dict) else (key, value)
        for key, value in request.attributes
    ]
    message.encode()
    assert request.encode(3).hex() == bytes(message.data).hex()


@pytest.mark.parametrize("name", REQUESTS)
def test_messages_are_decoded_as_by_the_full_classes(name):
    """What our classes read from a message is what the full ones read."""
    request = REQUESTS[name]
    ours, theirs = decode(request.kind, request.encode(3)), FULL[request.kind](request.encode(3))
    theirs.decode()
    assert (ours["family"], ours["subsystem"]) == (theirs["nfgen_family"], theirs["res_id"])
    assert request.attributes
    for key, value in request.attributes:
        if isinstance(value, dict):
            for inner, number in value["attrs"]:
                assert ours.get_attr(key).get_attr(inner) == theirs.get_attr(key).get_attr(inner) == number
        else:
            assert ours.get_attr(key) == theirs.get_attr(key) == value


def test_comments_are_encoded_as_by_the_full_classes():
    """A table's, a chain's and a rule's comment is what pyroute2 reads as their comment."""
    commented = Table(nft.INET, "t", "of a table")
    requests = (
        nft.table_request(commented),
        nft.chain_request(Chain(TABLE, "c", comment="of a chain")),
        nft.rule_request(CHAIN, nft_rule.DROP, nft_rule.comment_userdata("of a rule")),
    )
    found = []
    for request in requests:
        message = FULL[request.kind](request.encode(1))
        message.decode()
        found.append(message.get_attr(f"{message.prefix}USERDATA"))
    assert found == ["of a table", "of a chain", "of a rule"]


def test_a_rule_has_the_bytes_that_nft_sends():
    """A rule made of our expressions is byte for byte what nft makes of its text."""
    network = ip_network("10.0.0.0/12")
    ours = nft_rule.of_version(4) + nft_rule.source(IPV4) + nft_rule.destination(network) + nft_rule.RETURN
    assert ours.hex(" ", 4) == RULE.hex(" ", 4)


def test_a_whole_rule_is_read_by_the_full_class_and_by_ours():
    """Table, chain, place, comment and expressions of a rule arrive, in either class."""
    comment = nft_rule.comment_userdata("of a rule")
    data = nft.rule_request(CHAIN, RULE, comment, before=1 << 40).encode(1)
    ours, theirs = decode(RuleMessage, data), FULL[RuleMessage](data)
    theirs.decode()
    for key, value in {"TABLE": "t", "CHAIN": "c", "POSITION": 1 << 40}.items():
        assert ours.get_attr(f"NFTA_RULE_{key}") == theirs.get_attr(f"NFTA_RULE_{key}") == value
    assert (ours.get_attr("NFTA_RULE_EXPRESSIONS"), ours.get_attr("NFTA_RULE_USERDATA")) == (RULE, comment)
    assert theirs.get_attr("NFTA_RULE_USERDATA") == "of a rule"
    assert ours.get_attr("NFTA_RULE_HANDLE") is None


def test_sets_are_read_by_the_full_classes():
    """What a set is and what is in it arrives, with comments, in pyroute2's classes."""
    own = Set(TABLE, "s", (INTERFACE_NAME, IPV4_ADDRESS), "of a set")
    key = nft_set.interface_key("cni0") + IPV4.packed
    made = full.nft_set_msg(nft_set.set_request(own).encode(1))
    made.decode()
    found = {name: made.get_attr(f"NFTA_SET_{name}") for name in ("TABLE", "NAME", "KEY_TYPE", "KEY_LEN")}
    assert found == {"TABLE": "t", "NAME": "s", "KEY_TYPE": 41 << 6 | 7, "KEY_LEN": 20}
    assert ("NFTNL_UDATA_SET_COMMENT", b"of a set") in made.get_attr("NFTA_SET_USERDATA")
    (request,) = nft_set.add_element_requests(own, [Element(key, nft_rule.comment_userdata("of an element"))])
    added = full.nft_set_elem_list_msg(request.encode(1))
    added.decode()
    (element,) = added.get_attr("NFTA_SET_ELEM_LIST_ELEMENTS")
    assert element.get_attr("NFTA_SET_ELEM_KEY").get_attr("NFTA_DATA_VALUE") == key
    assert element.get_attr("NFTA_SET_ELEM_USERDATA") == [("NFTNL_UDATA_SET_ELEM_COMMENT", b"of an element")]


def test_thousands_of_elements_are_several_messages():
    """What has no room in one attribute is shared out, in order."""
    own = Set(TABLE, "s", (IPV4_ADDRESS,))
    elements = [Element(number.to_bytes(4, "big"), bytes(256)) for number in range(1000)]
    messages = [request.encode(1) for request in nft_set.add_element_requests(own, elements)]
    assert max(map(len, messages)) < 1 << 16 < sum(map(len, messages))
    assert nft_set.add_element_requests(own, []) == []


def described(expressions):
    """Returns what pyroute2's full class reads: name and attributes of each expression, in order."""
    message = FULL[RuleMessage](nft.rule_request(CHAIN, expressions).encode(1))
    message.decode()
    return [
        (item.get_attr("NFTA_EXPR_NAME"), item.get_attr("NFTA_EXPR_DATA"))
        for item in message.get_attr("NFTA_RULE_EXPRESSIONS")
    ]


def test_expressions_are_read_by_the_full_classes():
    """What pyroute2 reads from our expressions is what we put there."""
    (name, meta), (_, compared) = described(nft_rule.of_version(6))
    assert (name, meta.get_attr("NFTA_META_KEY"), meta.get_attr("NFTA_META_DREG")) == (
        "meta",
        "NFT_META_NFPROTO",
        "NFT_REG_1",
    )
    assert compared.get_attr("NFTA_CMP_DATA").get_attr("NFTA_DATA_VALUE") == bytes([full.NFPROTO_IPV6])
    (_, payload), (_, compared) = described(nft_rule.source(IPV6))
    assert (payload.get_attr("NFTA_PAYLOAD_OFFSET"), payload.get_attr("NFTA_PAYLOAD_LEN")) == (8, 16)
    assert payload.get_attr("NFTA_PAYLOAD_BASE") == "NFT_PAYLOAD_NETWORK_HEADER"
    assert compared.get_attr("NFTA_CMP_OP") == "NFT_CMP_EQ"
    ((name, verdict),) = described(nft_rule.goto("other"))
    verdict = verdict.get_attr("NFTA_IMMEDIATE_DATA").get_attr("NFTA_DATA_VERDICT")
    assert (verdict.get_attr("NFTA_VERDICT_CODE"), verdict.get_attr("NFTA_VERDICT_CHAIN")) == ("NFT_GOTO", "other")
    verdicts = {"ACCEPT": "NF_ACCEPT", "DROP": "NF_DROP", "RETURN": "NFT_RETURN"}
    for name, code in verdicts.items():
        ((_, immediate),) = described(getattr(nft_rule, name))
        verdict = immediate.get_attr("NFTA_IMMEDIATE_DATA").get_attr("NFTA_DATA_VERDICT")
        assert verdict.get_attr("NFTA_VERDICT_CODE") == code


def test_a_rule_is_the_same_whatever_the_kernel_adds():
    """Other order and further attributes make no difference; another value, another expression or one more do."""
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


def test_comments_are_cut_at_what_nft_reads():
    """A comment has at most 128 bytes, and what follows it in the userdata stays."""
    data = nft_rule.comment_userdata("c" * 200, (0x70, b"more"))
    assert nft_rule.parse_userdata(data) == {0: b"c" * 128 + b"\0", 0x70: b"more"}
    assert nft_rule.parse_comment(data) == "c" * 128
    assert nft_rule.parse_comment(b"") == ""


@given(st.binary(max_size=64))
def test_any_userdata_is_read(data):
    """Whatever stands in a rule's userdata, it is read without an error."""
    assert isinstance(nft_rule.parse_comment(data), str)


def said(kind, content, wrong=0):
    """Returns an attribute whose length is wrong by so much, as far as there is such a length."""
    length = max(0, 4 + len(content) + wrong)
    return struct.pack("=HH", length, kind) + content + bytes(-len(content) % 4)


KINDS, CONTENTS = st.sampled_from([1, 2, 0x8001, 0x8002, 0x4001]), st.binary(max_size=6)
LEAVES = st.builds(said, KINDS, CONTENTS, st.sampled_from([0] * 9 + [-9, 1, 99]))
LISTS = st.recursive(
    st.lists(LEAVES, max_size=3).map(b"".join),
    lambda inner: st.lists(st.builds(said, KINDS, inner), max_size=3).map(b"".join),
)


def read(data):
    return [(kind, nested, content) for kind, nested, content in nft_expression.attributes(data)]


def has_all(theirs, ours):
    """Says what same_attributes does with nested attributes."""
    found = {kind: content for kind, _, content in read(theirs)}
    return all(
        kind in found and (has_all(found[kind], content) if nested else found[kind] == content)
        for kind, nested, content in read(ours)
    )


@given(LISTS | st.binary(max_size=64), LISTS | st.binary(max_size=64), st.booleans())
def test_any_expressions_are_compared(ours, theirs, alike):
    """Whatever the bytes, also lengths beyond the end, they are compared as it is said in Python."""
    theirs = ours.replace(b"\x80", b"\0") if alike else theirs
    pairs = list(zip(read(ours), read(theirs), strict=False))
    same = len(read(ours)) == len(read(theirs)) and all(
        kind == other and (has_all(content, own) if nested else content == own)
        for (kind, nested, own), (other, _, content) in pairs
    )
    assert nft_rule.is_same_rule(ours, theirs) == same


def test_expressions_in_expressions_without_end_are_not_the_same():
    """What is nested deeper than any rule is not gone into."""
    data = b""
    for _ in range(10000):
        data = said(0x8001, data) if len(data) < 60000 else data
    assert not nft_rule.is_same_rule(data, data)
    assert nft_rule.is_same_rule(b"", b"")


@given(st.binary(max_size=96))
def test_any_expressions_are_read(data):
    """Whatever the bytes of a rule, whom it is for is read without an error."""
    assert nft_rule.parse_destination(data).port in range(1 << 16)
    assert data.startswith(b"".join(nft_rule.split_expressions(data)))


def test_ports_are_seen_without_decoding():
    """The pairs of bytes that a rule compares something with have its port, and not the one that it leads to."""
    rule = nft_rule.transport("tcp") + nft_rule.destination_port(8080) + nft_rule.dnat(IPV4, 9090)
    assert nft_rule.compared_byte_pairs(nft.rule_request(CHAIN, rule).encode(1)) == [(8080).to_bytes(2, "big")]
