"""What the firewall writes and takes away with iptables (plugins.firewall.iptables_update), and how rules are read."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.conf import Attachment
from kernel.netfilter import iptables_listing, nft_rule
from kernel.netfilter.nft import Rule
from plugins.firewall import iptables_rules as rules
from plugins.firewall import iptables_update as plan
from plugins.firewall.spec import FirewallSpec

OPEN = FirewallSpec("net", "cid", "eth0", (ip_address("10.22.0.2"),))
SAME = replace(OPEN, policy="same-bridge", bridge="cni0")
ISOLATED = replace(OPEN, policy="isolated", bridge="cni0")


def nobody(record):
    return False


class Listing:
    """A table that takes lines as iptables-restore does."""

    def __init__(self):
        self.lines = []

    def apply(self, lines):
        for line in lines:
            command, chain = line.split()[:2]
            rule = "-A" + line[2:]
            if command == "-N":
                assert line not in self.lines
                self.lines.insert(0, line)
            elif command == "-A":
                self.lines.append(line)
            elif command == "-I":
                self.lines.insert(sum(old.startswith("-N") for old in self.lines), rule)
            elif command == "-D":
                self.lines.remove(rule)
            else:
                assert command == "-X"
                assert not any(old.startswith(f"-A {chain} ") for old in self.lines)
                self.lines.remove(f"-N {chain}")
        return self

    def add(self, wanted, judge=nobody):
        return self.apply(plan.add_lines(wanted, 4, self.lines, judge))

    def delete(self, wanted, dead=(), judge=nobody):
        return self.apply(plan.removal_lines(plan.del_rules(wanted, 4, self.lines, dead, judge), self.lines))

    def forward(self):
        return [line for line in self.lines if line.startswith("-A FORWARD ")]


ORDERS = st.lists(st.sampled_from([rules.FORWARD_JUMP, rules.ISOLATION_JUMP]), max_size=6)


@given(ORDERS, st.sampled_from([OPEN, SAME, ISOLATED, replace(SAME, accepts=False)]))
def test_one_add_mends_any_order(order, wanted):
    """However both jumps stood there before, ADD leaves each once and in order, and a second one has nothing to do."""
    table = Listing().add(replace(ISOLATED, container_id="first"))
    table.lines = [line for line in table.lines if line not in table.forward()] + order
    table.add(wanted)
    forward = table.forward() if wanted.accepts else [*dict.fromkeys(table.forward())]
    assert forward in ([rules.ISOLATION_JUMP, rules.FORWARD_JUMP], [rules.FORWARD_JUMP], [rules.ISOLATION_JUMP])
    assert (rules.FORWARD_JUMP in forward) == (wanted.accepts or rules.FORWARD_JUMP in order)
    assert (rules.ISOLATION_JUMP in forward) == (wanted.policy != "open" or rules.ISOLATION_JUMP in order)
    assert plan.add_lines(wanted, 4, table.lines, nobody) == []


@pytest.mark.parametrize("wanted", [OPEN, SAME, ISOLATED])
def test_del_leaves_what_all_share(wanted):
    """After ADD and DEL there is what all share, and no record."""
    table = Listing().add(wanted).delete(wanted)
    assert not any("10.22.0.2" in line or "OWNERS" in line for line in table.lines)
    assert rules.FORWARD_JUMP in table.lines


def test_only_dead_interfaces_lose_their_policy():
    """The rules of an interface that is dead go, and no others."""
    table = Listing().add(SAME).add(replace(ISOLATED, bridge="cni1", container_id="other"))
    table.delete(replace(OPEN, container_id="third"), dead={"cni1"})
    assert not any("cni1" in line for line in table.lines)
    assert sum("cni0" in line for line in table.lines) == 2


@pytest.mark.parametrize("gone", [True, False])
def test_another_networks_record(gone):
    """Another network's record keeps an address, unless whose it is is gone."""
    theirs = replace(OPEN, network="other")
    table = Listing().add(theirs)
    table.add(OPEN, lambda record: gone)
    assert len(rules.records(table.lines)) == (1 if gone else 2)
    table.delete(OPEN)
    assert len(table.lines) == (4 if gone else 8)


def test_what_stands_among_the_records():
    """A rule in their chain that is none keeps the chain."""
    table = Listing().add(OPEN)
    table.lines.append("-A CNI-FORWARD-OWNERS -s 192.0.2.1/32 -j LOG")
    assert "-N CNI-FORWARD-OWNERS" in table.delete(OPEN).lines


def test_the_names_in_a_record_can_be_read():
    """A record tells network and attachment, unless they are too long for a comment; then hashes tell them apart."""
    attachment = Attachment("cid", "a\"'\\b")
    wanted = FirewallSpec("net", *attachment)
    (record,) = rules.records([rules.record(wanted, ip_address("fd00::1"))])
    assert (record.address, record.owner) == (ip_address("fd00::1"), ("net", attachment))
    long = FirewallSpec("n" * 240, "cid", "eth0")
    (record,) = rules.records([rules.record(long, ip_address("10.0.0.1"))])
    assert record.owner is None
    assert rules.is_of_network(record, "n" * 240)
    assert not rules.is_of_network(record, "n" * 239)
    assert len(rules.owner_text("n" * 240, Attachment("c" * 300, "eth0"))) < 256


@given(st.binary(max_size=200), st.binary(max_size=40))
def test_any_bytes_are_a_rule_or_none(expressions, userdata):
    """Whatever a kernel lists, it is a line or nothing."""
    assert isinstance(iptables_listing.render_line("C", Rule(1, expressions, userdata), 4), str)


def test_only_what_is_understood_is_told():
    """Networks, wildcards, other conditions and what stands behind a verdict are not told."""
    own = nft_rule.source(ip_address("10.22.0.2"))

    def told(expressions):
        return iptables_listing.render_line("C", Rule(1, expressions, b""), 4)

    assert told(own + nft_rule.ACCEPT) == "-A C -s 10.22.0.2/32 -j ACCEPT"
    assert told(own) == "-A C -s 10.22.0.2/32"
    assert told(nft_rule.jump("D")) == "-A C -j D"
    assert told(nft_rule.from_interface("cni0") + nft_rule.DROP) == "-A C -i cni0 -j DROP"
    further = nft_rule.transport("tcp"), nft_rule.goto("D"), nft_rule.masquerade(), own[:52]
    assert [told(own + part) for part in further] == [""] * 4
    assert told(own + nft_rule.ACCEPT + own) == ""
    assert told(own[:-44] + nft_rule.ACCEPT) == ""
