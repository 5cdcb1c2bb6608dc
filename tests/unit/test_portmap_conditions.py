"""Compiling conditions of nftables (plugins.portmap.conditions): errors, words, sets."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.portmap.conditions import compile_conditions

REFUSED = {
    "frobnicate": "an unsupported match",
    "ip6 saddr fd00::1": 'an unsupported match: "ip6 saddr"',
    "ip saddr": "lacks a value at the end",
    "ip saddr !=": "lacks a value at the end",
    "ip saddr == != 10.0.0.1": 'lacks a value before "!="',
    "ip saddr 10.0.0.1.5": 'needs an IPv4 address, prefix or range, not "10.0.0.1.5"',
    "ip saddr fd00::1": "needs an IPv4 address",
    "ip saddr 10.0.0.9-10.0.0.1": "needs an IPv4 address",
    "ip saddr 10.0.0.1-fd00::1": "needs an IPv4 address",
    "ip saddr host.example": "needs an IPv4 address",
    "ip saddr @blocked": "needs an IPv4 address",
    "ip saddr 10.0.0.1 tcp": 'an unsupported match: "tcp"',
    "ip saddr { 10.0.0.1": 'lacks the "}" of a set',
    "ip saddr { }": 'lacks a value before "}"',
    "ip saddr { 10.0.0.1 10.0.0.2 }": 'lacks the "}" of a set before "10.0.0.2"',
    "ip saddr > 10.0.0.1": "needs an IPv4 address",
    "tcp dport http": 'needs a number from 0 to 65535, not "http"',
    "tcp dport 65536": "needs a number from 0 to 65535",
    "tcp dport 90-80": "end is less than its start",
    "tcp dport 80 udp sport 5": "matches tcp and udp at once",
    "meta l4proto icmp": "needs a number from 0 to 255",
    "meta mark & 0 == 0": "has a mask of 0",
    "meta mark -1": "needs a number",
    "meta skuid 0": 'an unsupported match: "meta skuid"',
    "iifname *": 'needs an interface name, not "*"',
    "iifname sixteen--letters": "needs an interface name",
    "ct state fresh": "needs a connection state",
    "ct direction original": "an unsupported match",
    "fib daddr type far": "needs an address type",
    "fib daddr . iif type local": "an unsupported match",
    "drop": 'an unsupported match: "drop"',
    "accept; add rule ip filter x": "an unsupported match",
}


@pytest.mark.parametrize("words", REFUSED)
def test_unsupported_condition_is_refused(words):
    """A condition that cannot be compiled is refused with an error that quotes the unsupported part."""
    with pytest.raises(ValueError, match=re.escape(REFUSED[words])):
        compile_conditions(words.split(), 4)


def test_no_words_compile_to_one_empty_rule():
    """Conditions without words compile to one rule without expressions."""
    assert compile_conditions((), 4) == compile_conditions(("", " "), 6) == (b"",)


def test_split_of_the_words_does_not_matter():
    """Conditions compile to the same rules however their text is split into strings."""
    whole = compile_conditions(['ip daddr != { 192.0.2.1, 192.0.2.9 } iifname "eth0"'], 4)
    split = ["ip", "daddr", "!=", "{192.0.2.1", ",192.0.2.9}", "iifname", "eth0"]
    assert compile_conditions(split, 4) == whole
    assert compile_conditions(["ip daddr", "!={192.0.2.1,192.0.2.9} iifname eth0"], 4) == whole
    assert len(whole) == 1


def test_each_combination_of_set_values_is_a_rule():
    """Two sets compile to one rule for each pair of values; more than 64 rules are refused."""
    rules = [
        compile_conditions([f"ip saddr 10.0.0.{last} tcp sport {port}"], 4)[0] for last in (1, 2) for port in (5, 6, 7)
    ]
    assert list(compile_conditions(["ip saddr { 10.0.0.1, 10.0.0.2, } tcp sport { 5, 6, 7 }"], 4)) == rules
    with pytest.raises(ValueError, match="more than 64 rules"):
        compile_conditions([f"tcp sport {{ {', '.join(map(str, range(1, 66)))} }}"], 4)


def test_transport_protocol_is_matched_once():
    """A port match adds a match on its transport protocol unless the rule has one; "not udp" is not such a match."""
    assert compile_conditions(["meta l4proto tcp tcp sport 5"], 4) == compile_conditions(["tcp sport 5"], 4)
    lengths = [len(compile_conditions([f"{text}tcp sport 5"], 4)[0]) for text in ("", "meta l4proto != udp ")]
    assert lengths[0] < lengths[1]
    with pytest.raises(ValueError, match="matches udp and tcp at once"):
        compile_conditions(["meta l4proto { tcp, udp } tcp sport 5"], 4)


_WORDS = "ip ip6 saddr daddr tcp dport iif iifname meta mark ct state fib type == != { } , & 10.0.0.1 80 new local x*"
_TEXTS = st.lists(st.text(max_size=12), max_size=6) | st.lists(st.sampled_from(_WORDS.split()), max_size=8)


@given(_TEXTS, st.sampled_from((4, 6)))
def test_any_words_compile_or_are_refused(words, version):
    """Any strings, also known words in any order, compile to rules or raise ValueError."""
    with contextlib.suppress(ValueError):
        assert all(isinstance(rule, bytes) for rule in compile_conditions(words, version))
