"""Blocks and entries as JSON: they are read as they were written, and nothing else is a free block."""

import json
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.pools import block_protocol as protocol
from agent.pools import documents
from agent.pools.block_protocol import FREE, MISSING, AgentState, BlockRecord, NodeRecord, Token
from agent.pools.documents import DAMAGED_BLOCK, DAMAGED_ENTRY
from agent.pools.store import BlockNote, NodeEntry, Stored

BLOCK = ip_network("10.22.0.64/26")
NODE = "a" * 32
TEXTS = st.text("abc-/.:0123456789 ", max_size=20)
NODES = st.text("abcdef0123456789", min_size=1, max_size=32)
NETWORKS = st.one_of(
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 32)).map(lambda pair: IPv4Network(pair, strict=False)),
    st.tuples(st.integers(0, 2**128 - 1), st.integers(0, 128)).map(lambda pair: IPv6Network(pair, strict=False)),
)
BLOCKS = st.builds(BlockRecord, NODES, st.builds(Token, TEXTS, st.integers(1, 2**53 - 1)))
ENTRIES = st.builds(
    NodeEntry,
    st.builds(NodeRecord, TEXTS, TEXTS, TEXTS, st.booleans()),
    TEXTS,
    st.lists(NETWORKS.map(lambda network: network.network_address), max_size=3).map(tuple),
    st.lists(NETWORKS, max_size=5).map(tuple),
    TEXTS,
)
AGENT = AgentState(NODE, "machine", "boot", "epoch", may_claim=True)


@given(NETWORKS)
def test_names_of_blocks(network):
    """A block has one name, and the name has one block."""
    assert documents.parse_block_name(documents.block_name(network)) == network


POD_KEYS = st.just("") | st.from_regex(r"[-A-Za-z0-9._:/@]{1,512}", fullmatch=True)


@given(NETWORKS, BLOCKS, st.builds(BlockNote, TEXTS, TEXTS, TEXTS, POD_KEYS))
def test_blocks_are_read_as_they_were_written(network, block, note):
    """A block and its note survive the way into bytes and back."""
    raw = documents.encode(documents.format_block(network, block, note))
    assert documents.stored_block(network, raw) == Stored(block, raw, note=note)
    assert documents.parse_note(documents.decode(raw)) == note
    assert documents.names_owner(raw, block.owner)


@given(ENTRIES)
def test_entries_are_read_as_they_were_written(entry):
    """An entry survives the way into bytes and back, also an IPv4-mapped address as the IPv4 address that it is."""
    raw = documents.encode(documents.format_entry(entry))
    stored = documents.stored_entry(NODE, raw)
    again = documents.stored_entry(NODE, documents.encode(documents.format_entry(stored.value)))
    assert (stored.problem, again.value) == ("", stored.value)
    assert stored.value.record == entry.record
    assert stored.value.networks == entry.networks


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = (
    *("cidr", "owner", "epoch", "generation", "pool", "machine"),
    *("instance", "fenced", "name", "addresses", "networks"),
)
OBJECTS = st.dictionaries(st.sampled_from(KEYS), JSON, max_size=len(KEYS))


@given(st.one_of(st.binary(min_size=1, max_size=200), OBJECTS.map(lambda value: json.dumps(value).encode())))
def test_any_bytes_are_a_value_or_a_problem(raw):
    """Any object is valid, or has a problem and the value that belongs to no node; nothing is raised."""
    block, entry = documents.stored_block(BLOCK, raw), documents.stored_entry(NODE, raw)
    assert (block.value == DAMAGED_BLOCK) == bool(block.problem)
    assert (entry.value == DAMAGED_ENTRY) == bool(entry.problem)
    assert all("; fix: " in one for one in (block.problem, entry.problem) if one)
    assert documents.problems_of({f"blocks/{documents.block_name(BLOCK)}": raw}) == [
        one for one in [block.problem] if one
    ]
    documents.problems_of({"space": raw, "nodes/x": raw, "blocks/": raw, "": raw})


def test_the_protocol_leaves_damaged_objects_alone():
    """No agent claims or gives back a damaged block, or registers in a damaged entry."""
    assert protocol.claim(AGENT, None, DAMAGED_BLOCK) is None
    assert protocol.give_back(AGENT, None, DAMAGED_BLOCK) is None
    assert protocol.is_foreign(AGENT, DAMAGED_ENTRY.record)
    assert protocol.register(AGENT, [], DAMAGED_ENTRY.record) is None
    assert DAMAGED_ENTRY.record != MISSING


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"owner": None}, '"owner" is not a text'),
        ({"owner": "A"}, "'A' is not a valid node ID"),
        ({"owner": "a" * 64}, "at most 63"),
        ({"epoch": "a<b"}, '"epoch" is not a text of at most 256 ASCII characters without <, > and &'),
        ({"epoch": "é"}, '"epoch" is not a text'),
        ({"epoch": "x" * 257}, '"epoch" is not a text'),
        ({"generation": "3"}, "\"generation\" '3' is not a number"),
        ({"generation": True}, '"generation" True is not a number'),
        ({"generation": 3.0}, '"generation" 3.0 is not a number'),
        ({"generation": -1}, '"generation" -1 is not a number from 0'),
        ({"generation": 2**53}, "is not a number from 0 to 2^53"),
        ({"generation": 0}, '"generation" is 0, and the block has an owner'),
    ],
)
def test_the_problem_of_a_block_names_its_key(change, text):
    """A value of a wrong type or range is named with its key."""
    document = {**documents.format_block(BLOCK, BlockRecord(NODE, Token("e", 3)), BlockNote()), **change}
    stored = documents.stored_block(BLOCK, documents.encode(document))
    assert stored.value == DAMAGED_BLOCK
    assert stored.problem.startswith("block 10.22.0.64/26 is not valid: ")
    assert text in stored.problem


def test_names_that_are_none():
    """Host bits, leading zeros, capitals, and other lengths are names of no block."""
    for name in ("", "x", "0a160041-26", "0A160040-26", "0a160040-026", "0a160040-33", "0a1600-26", "0a160040", "-26"):
        assert documents.block_of_name(name) is None


def test_without_an_object_a_block_is_free():
    """A missing object is a free block, and a note of other types is empty."""
    assert documents.stored_block(BLOCK, b"") == Stored(FREE)
    assert documents.parse_note({"pool": 1, "nodeName": None}) == BlockNote()
    assert documents.parse_entry(documents.format_entry(NodeEntry(MISSING))) == NodeEntry(MISSING)
    assert documents.format_entry(NodeEntry(MISSING, addresses=(ip_address("fd00::1"),)))["addresses"] == ["fd00::1"]
