"""The rules that a packet is evaluated with, chosen by its destination port, and the marks that they set."""

import struct
from dataclasses import replace
from ipaddress import ip_address

import pytest

from kernel.device import Device
from kernel.link import Link
from kernel.netfilter import copying
from kernel.netfilter.nft_expression import attribute
from kernel.netfilter.packet import TRANSPORT, UDP, Packet
from kernel.netfilter.ruleset import FilterChain, FilterRule, Ruleset
from podwire.predictions import legacy_rules
from podwire.predictions.conditions import conditions_of
from podwire.predictions.evaluation import traverse
from podwire.predictions.nft_machine import Machine
from podwire.predictions.verdicts import Match

LINK = Link(7, "veth0", "", 1500, 1, "veth", 0, 0, None, 6)
CHAIN = FilterChain(2, "filter", "INPUT", "filter", 1)
PACKET = Packet(4, ip_address("192.0.2.1"), ip_address("192.0.2.2"), UDP, 40000)


def number(value):
    return value.to_bytes(4, "big")


def comparing(port, *, offset=2, operation=0, length=2):
    """Returns a rule that compares two bytes of the transport header with a port, and accepts."""
    payload = ("payload", {1: number(8), 2: number(TRANSPORT), 3: number(offset), 4: number(length)})
    compare = ("cmp", {1: number(8), 2: number(operation), 3: attribute(1, port.to_bytes(length, "big"))})
    verdict = attribute(2, attribute(1, number(1)))
    return FilterRule(CHAIN, port, (payload, compare, ("immediate", {1: number(0), 2: verdict})))


RULES = [
    *(comparing(port) for port in (80, 443, 80)),
    comparing(80, operation=1),
    comparing(80, operation=5),
    comparing(80, offset=0),
    FilterRule(CHAIN, 1),
    FilterRule(CHAIN, 2, (), ("-p", "udp", "--dport", "80", "-j", "ACCEPT")),
    FilterRule(CHAIN, 3, (), ("-p", "udp", "!", "--dport", "80", "-j", "ACCEPT")),
    FilterRule(CHAIN, 4, (), ("-p", "udp", "--dport", "80:90", "-j", "ACCEPT")),
]


def matches(ruleset, rule, packet):
    if rule.words:
        return legacy_rules.evaluate(rule.words, packet)[0] is not Match.NO
    return Machine(ruleset, rule, packet).run() is not Match.NO


@pytest.mark.parametrize("port", [80, 85, 443, 8080, None])
def test_no_matching_rule_is_omitted(port):
    """The candidates are in the rules' order, and contain each rule that may match a packet to the port."""
    ruleset = Ruleset((CHAIN,), {CHAIN.place: RULES})
    packet = Packet(*(PACKET.version, PACKET.source, PACKET.destination, UDP, 40000, port))
    candidates = ruleset.candidates(CHAIN, port)
    positions = [next(number for number, rule in enumerate(RULES) if rule is one) for one in candidates]
    assert positions == sorted(positions)
    assert {id(rule) for rule in RULES if matches(ruleset, rule, packet)} <= {id(rule) for rule in candidates}
    assert len(candidates) == {80: 9, 443: 7, None: 10}.get(port, 6)


def test_random_conditions():
    """A rule of nftables or iptables that chooses packets at random is narrow: it may be why only some are lost."""
    for rule, is_random in (
        (FilterRule(CHAIN, 1, (("numgen", {}), ("cmp", {}))), True),
        (FilterRule(CHAIN, 1, (("match", {1: b"statistic\0"}),)), True),
        (FilterRule(CHAIN, 1, (), ("-m", "statistic", "--mode", "random", "-j", "DROP")), True),
        (RULES[0], False),
    ):
        conditions = conditions_of(rule)
        assert (conditions.is_random, conditions.are_narrow) == (is_random, True)


def test_program_that_copies_rules(monkeypatch, capfd):
    """It finds the extensions where the caller's iptables does; its refusal is in the result, and not on stderr."""
    monkeypatch.setenv("XTABLES_LIBDIR", "/opt/xtables")
    scripts = ('test "$XTABLES_LIBDIR" = /opt/xtables', "echo refused >&2; exit 1")
    rules = copying.CopiedRules(tuple((("sh", "-c", script), b"") for script in scripts))
    assert copying.write(rules) == (f"not all rules could be copied: sh -c {scripts[1]} failed",)
    assert capfd.readouterr().err == ""


def test_cost_of_a_packet_does_not_depend_on_the_rules_of_other_ports(monkeypatch):
    """With a thousand published ports a packet to one of them is evaluated with one rule."""
    runs, run = [], Machine.run

    def count(machine):
        runs.append(machine)
        return run(machine)

    monkeypatch.setattr(Machine, "run", count)
    ruleset = Ruleset((CHAIN,), {CHAIN.place: [comparing(port) for port in range(20000, 21000)]})
    traverse(ruleset, Packet(4, PACKET.source, PACKET.destination, UDP, 40000, 20999), 1)
    assert len(runs) == 1


def test_copy_with_other_rules_has_other_candidates():
    """A ruleset that was copied with other rules of a chain does not use the index of the former ones."""
    ruleset = Ruleset((CHAIN,), {CHAIN.place: [comparing(80)]})
    assert len(ruleset.candidates(CHAIN, 80)) == 1
    other = Ruleset((CHAIN,), {CHAIN.place: []}, _indexes=ruleset._indexes)
    assert other.candidates(CHAIN, 80) == []


def test_mark_of_iptables():
    """A rule of iptables-nft that marks packets sets the mark by which later rules and the route are chosen."""
    info = struct.pack("=II", 9, 0x0F)  # value and mask, linux/netfilter/xt_mark.h
    target = "target", {1: b"MARK\0", 2: number(2), 3: info}
    machine = Machine(Ruleset(), FilterRule(CHAIN, 1, (target,)), replace(PACKET, mark=0x15))
    assert (machine.run(), machine.mark) == (Match.YES, 0x19)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [(1, Match.YES), (3, Match.NO), (4, Match.NO), (12, Match.YES), (5, Match.NO), (9, Match.YES), (0, Match.YES)],
)
def test_groups_of_interfaces(flags, expected):
    """The groups of both interfaces are compared; a flag inverts each; with an unknown interface nothing is certain."""
    info = struct.pack("=5I", flags, 7, 0xFF, 7, 0xFF)  # linux/netfilter/xt_devgroup.h
    interfaces = {name: Device(LINK, "", group) for name, group in (("in0", 0x107), ("out0", 8))}
    match = FilterRule(CHAIN, 1, (("match", {1: b"devgroup\0", 3: info}),))
    packet = replace(PACKET, iif="in0", oif="out0")
    assert Machine(Ruleset(interfaces=interfaces), match, packet).run() is expected
    assert Machine(Ruleset(), match, packet).run() is (Match.MAYBE if flags else Match.YES)
