"""Lines that create and check host ports (plugins.portmap.iptables_*), computed from listings of iptables."""

import struct
from dataclasses import replace
from ipaddress import ip_interface

import pytest

from cni.errors import CniError
from kernel.netfilter.iptables_rule import ChainList
from plugins.portmap import iptables_check, iptables_rules, iptables_state
from plugins.portmap.conf import HostPorts, PortMapping
from plugins.portmap.iptables_rules import (
    desired_chain_rules,
    desired_jump_rules,
    parse_jump_rule,
    parse_jump_rules,
    shared_rules,
)
from tests.support.errors import failure_of
from tests.support.iptables_table import Table

ADDRESSES = {4: ip_interface("10.22.0.2/16"), 6: ip_interface("fd00:22::2/64")}
HOST_PORTS = HostPorts("goldnet", "0123abcdef", "eth0", (PortMapping(8080, 80, "tcp"),), ADDRESSES)
CHAIN = "CNI-DN-f42161b9e0c33131294cd"
NOTHING = ChainList()


def listing_after_add(host_ports, listing=NOTHING):
    """Returns the listing after an ADD."""
    table = Table("PREROUTING", "OUTPUT", "POSTROUTING")
    table.chains |= {chain: [rule.spec for rule in listing.rules(chain)] for chain in listing.chains}
    table.apply(iptables_rules.changes_for_add(host_ports, (), 4, listing))
    return table.listing()


def without(listing, removed):
    return ChainList.of(
        listing.chains, [rule for chain in listing.chains for rule in listing.rules(chain) if rule != removed]
    )


def test_mark_rule_after_the_dnat_rule_is_missing():
    """CHECK reports a mark rule after its DNAT rule as missing, since no packet reaches it."""
    listing = listing_after_add(HOST_PORTS)
    (late,) = (rule for rule in listing.rules(CHAIN) if "-s 127.0.0.1/32" in rule.spec)
    others = without(listing, late)
    changed = others | ChainList.of([CHAIN], [*others.rules(CHAIN), late])
    error = failure_of(lambda: iptables_check.check_rules(HOST_PORTS, 4, changed), CniError)
    assert error
    assert error.msg == f"host ports: rule {late} is missing in table nat (iptables)"


@pytest.mark.parametrize("bit", range(32))
def test_packet_mark_is_one_bit(bit):
    """The packet mark and its mask are one bit, in hexadecimal."""
    assert f"--set-xmark {1 << bit:#x}/{1 << bit:#x}" in shared_rules(replace(HOST_PORTS, mark_bit=bit))[2].spec


def test_prefix_length_zero_marks_every_source():
    """The mark rule of an address with prefix length 0 matches every source, which iptables lists without -s."""
    host_ports = replace(HOST_PORTS, addresses={4: ip_interface("10.22.0.2/0")})
    assert (
        str(desired_chain_rules(host_ports, 4)[0][1][0])
        == f"-A {CHAIN} -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK"
    )


JUMP_RULES = [
    (r"-p tcp -m multiport --dports 80,81 -j X", ("tcp", (80, 81), "X")),
    (r"-s 1.2.3.4/32 ! -d 1.2.3.4/32 -p udp -m multiport --dports 1 -g X", ("udp", (1,), "X")),
    (r'-m comment --comment "dnat name: \"net\" id: \"cid\"" -j CNI-DN-x', ("", (), "CNI-DN-x")),
    (r"! -p tcp -m multiport ! --dports 80 -j X", ("", (), "X")),
    (r"-p tcp -m multiport --dports 80:90 -j X", ("tcp", (), "X")),
    (r"-p tcp", ("tcp", (), "")),
]


@pytest.mark.parametrize(("text", "parsed"), JUMP_RULES)
def test_jump_rules_of_other_programs(text, parsed):
    """Any rule in CNI-HOSTPORT-DNAT is parsed; parts in another form than ours are left empty."""
    (jump_rule,) = parse_jump_rules(ChainList.parse(f"-A CNI-HOSTPORT-DNAT {text}\n-A CNI-HOSTPORT-MASQ -j X"))
    assert (jump_rule.protocol, jump_rule.ports, jump_rule.target) == parsed
    assert jump_rule.conditional == (not text.startswith("-p tcp -m multiport --dports 80,81 "))


def test_ports_of_a_jump_rule():
    """Jump rules contain up to fifteen ports of one protocol, in the alphabetical order of the protocols."""
    ports = [("tcp", port) for port in range(7000, 7060)] + [("udp", port) for port in range(7000, 7040)]
    mappings = tuple(PortMapping(port, 80, protocol) for protocol, port in [*ports, ("sctp", 3)])
    jumps = map(parse_jump_rule, desired_jump_rules(replace(HOST_PORTS, mappings=mappings), 4))
    groups = [(jump.protocol, len(jump.ports)) for jump in jumps]
    assert groups == [("sctp", 1), *[("tcp", 15)] * 4, *[("udp", 15)] * 2, ("udp", 10)]


def test_jump_rules_of_portmap():
    """Owner and conditions of portmap's jump rules are parsed."""
    (jump_rule,) = map(parse_jump_rule, desired_jump_rules(HOST_PORTS, 4))
    assert (jump_rule.network, jump_rule.container_id, jump_rule.conditional) == ("goldnet", "0123abcdef", False)
    (jump_rule,) = map(parse_jump_rule, desired_jump_rules(replace(HOST_PORTS, conditions={4: ("-i", "eth0")}), 4))
    assert jump_rule.conditional


@pytest.mark.parametrize(("chain_line", "count"), [("-N CNI-DN-x", 0), ("", 1)])
def test_port_of_a_jump_rule_conflicts_only_if_its_chain_forwards_it(chain_line, count):
    """A port of a jump rule is no conflict if its chain is listed and does not forward the port."""
    other = '-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "c" -m multiport --dports 8080 -j CNI-DN-x'
    listing = ChainList.parse(f"{chain_line}\n{other}")
    foreign = iptables_rules.foreign_rules(HOST_PORTS, 4, listing, parse_jump_rules(listing))
    assert len(foreign) == count


def test_rule_without_owner_is_a_conflict():
    """A rule that names no container counts as a running container's: with "onConflict" its port is refused."""
    other = "-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 8080 -j MINE"
    host_ports = replace(HOST_PORTS, refuse_conflicts=True)
    error = failure_of(lambda: iptables_rules.changes_for_add(host_ports, (), 4, ChainList.parse(other)), CniError)
    assert error
    assert (error.code, error.msg) == (11, "host port 8080/tcp is in use by a rule that names no container")


def test_container_does_not_conflict_with_itself():
    """A port that the same container publishes on another network is neither refused nor shadowed."""
    listing = listing_after_add(replace(HOST_PORTS, network="other"))
    strict = replace(HOST_PORTS, refuse_conflicts=True)
    iptables_check.check_rules(strict, 4, listing_after_add(strict, listing))


def multiport_message(ports, kind=1, flags=(0,) * 15, invert=0):
    """Returns a multiport match of revision 1 as the kernel lists it."""
    numbers = [*ports, *[0] * (15 - len(ports))]
    blob = struct.pack("=BB15H15BB", kind, len(ports), *numbers, *flags, invert)
    return b"\x0e\0\1\0multiport\0\0\0\x08\0\2\0\0\0\0\1\x34\0\3\0" + blob + b"after"


MULTIPORT_MATCHES = [
    (multiport_message([8080]), True),
    (multiport_message([80, 443, 8080]), True),
    (multiport_message([80, 443]), False),
    (multiport_message(range(1, 16)), False),
    (multiport_message([80], kind=0), True),
    (multiport_message([80], kind=2), True),
    (multiport_message([80], flags=(1, *(0,) * 14)), True),
    (multiport_message([80], invert=1), True),
    (multiport_message([80])[:-20], True),
    (b"no multiport", True),
]


@pytest.mark.parametrize(("message", "expected"), MULTIPORT_MATCHES)
def test_rules_that_may_match_a_port(message, expected):
    """A rule that lists only other ports is skipped; rules with ranges, inversions or unknown forms are not."""
    assert iptables_state._may_match(frozenset({8080}))(message) is expected
