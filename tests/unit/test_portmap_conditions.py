"""Conditions of nftables (plugins.portmap.conditions): what is refused, and how words and sets are read."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.portmap.conditions import compile_conditions

REFUSED = {
    "frobnicate": "not understood",
    "ip6 saddr fd00::1": 'not understood here: "ip6 saddr"',
    "ip saddr": "lacks a value at its end",
    "ip saddr !=": "lacks a value at its end",
    "ip saddr == != 10.0.0.1": 'lacks a value before "!="',
    "ip saddr 10.0.0.1.5": 'no IPv4 address, prefix or range: "10.0.0.1.5"',
    "ip saddr fd00::1": "no IPv4 address",
    "ip saddr 10.0.0.9-10.0.0.1": "no IPv4 address",
    "ip saddr 10.0.0.1-fd00::1": "no IPv4 address",
    "ip saddr host.example": "no IPv4 address",
    "ip saddr @blocked": "no IPv4 address",
    "ip saddr 10.0.0.1 tcp": 'not understood here: "tcp"',
    "ip saddr { 10.0.0.1": "a set without its end",
    "ip saddr { }": 'lacks a value before "}"',
    "ip saddr { 10.0.0.1 10.0.0.2 }": 'a set without its end at "10.0.0.2"',
    "ip saddr > 10.0.0.1": "no IPv4 address",
    "tcp dport http": 'no number up to 65535: "http"',
    "tcp dport 65536": "no number up to 65535",
    "tcp dport 90-80": "ends before it begins",
    "tcp dport 80 udp sport 5": "is about tcp and about udp at once",
    "meta l4proto icmp": "no number up to 255",
    "meta mark & 0 == 0": "mask of no bits",
    "meta mark -1": "no number",
    "meta skuid 0": 'not understood here: "meta skuid"',
    "iifname *": 'no name of an interface: "*"',
    "iifname sixteen--letters": "no name of an interface",
    "ct state fresh": "no state of a connection",
    "ct direction original": "not understood",
    "fib daddr type far": "no type of address",
    "fib daddr . iif type local": "not understood",
    "drop": 'not understood here: "drop"',
    "accept; add rule ip filter x": "not understood",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_not_understood_is_refused(words):
    """What cannot be compiled is refused with the word that is not understood."""
    with pytest.raises(ValueError, match=re.escape(REFUSED[words])):
        compile_conditions(words.split(), 4)


def test_no_words_are_no_condition():
    """Without words there is one rule with nothing before it."""
    assert compile_conditions((), 4) == compile_conditions(("", " "), 6) == (b"",)


def test_words_may_be_split_anyhow():
    """It makes no difference which words stand in one string."""
    whole = compile_conditions(['ip daddr != { 192.0.2.1, 192.0.2.9 } iifname "eth0"'], 4)
    split = ["ip", "daddr", "!=", "{192.0.2.1", ",192.0.2.9}", "iifname", "eth0"]
    assert (
        compile_conditions(split, 4)
        == compile_conditions(["ip daddr", "!={192.0.2.1,192.0.2.9} iifname eth0"], 4)
        == whole
    )
    assert len(whole) == 1


def test_sets_multiply():
    """Of two sets each pair of values is a rule; what would be too many rules is refused."""
    one = [
        compile_conditions([f"ip saddr 10.0.0.{last} tcp sport {port}"], 4)[0] for last in (1, 2) for port in (5, 6, 7)
    ]
    assert list(compile_conditions(["ip saddr { 10.0.0.1, 10.0.0.2, } tcp sport { 5, 6, 7 }"], 4)) == one
    with pytest.raises(ValueError, match="more than 64 rules"):
        compile_conditions([f"tcp sport {{ {', '.join(map(str, range(1, 66)))} }}"], 4)


def test_a_transport_is_demanded_once():
    """What demands a transport already is not followed by that demand again; "not tcp" demands none."""
    assert compile_conditions(["meta l4proto tcp tcp sport 5"], 4) == compile_conditions(["tcp sport 5"], 4)
    assert len(compile_conditions(["meta l4proto != udp tcp sport 5"], 4)[0]) > len(
        compile_conditions(["tcp sport 5"], 4)[0]
    )
    with pytest.raises(ValueError, match="is about udp and about tcp"):
        compile_conditions(["meta l4proto { tcp, udp } tcp sport 5"], 4)


@given(st.lists(st.text(max_size=12), max_size=6), st.sampled_from((4, 6)))
def test_any_words_are_rules_or_refused(words, version):
    """Whatever the words, they are rules or a ValueError."""
    try:
        assert all(isinstance(rule, bytes) for rule in compile_conditions(words, version))
    except ValueError:
        return


_WORDS = "ip ip6 saddr daddr tcp dport iif iifname meta mark ct state fib type == != { } , & 10.0.0.1 80 new local x*"


@given(st.lists(st.sampled_from(_WORDS.split()), max_size=8))
def test_any_order_of_known_words_is_rules_or_refused(words):
    """Whatever the order of words that are known, they are rules or a ValueError."""
    test_any_words_are_rules_or_refused.hypothesis.inner_test(words, 4)
