"""The lines that the firewall applies with iptables (plugins.firewall.iptables_update), and the parsing of rules."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.conf import Attachment
from kernel.netfilter import iptables_listing, nft_rule
from kernel.netfilter.nft import Rule
from plugins.firewall import iptables_rules as rules
from plugins.firewall import iptables_update
from plugins.firewall.spec import FirewallSpec

OPEN = FirewallSpec("net", "cid", "eth0", (ip_address("10.22.0.2"),))
SAME = replace(OPEN, policy="same-bridge", bridge="cni0")
ISOLATED = replace(OPEN, policy="isolated", bridge="cni0")


def never_stale(record):
    return False


class Listing:
    """A fake table that applies lines like iptables-restore."""

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

    def add(self, spec, is_stale=never_stale):
        return self.apply(iptables_update.add_lines(spec, 4, self.lines, is_stale))

    def delete(self, spec, stale_interfaces=(), is_stale=never_stale):
        rules = iptables_update.del_rules(spec, 4, self.lines, stale_interfaces, is_stale)
        return self.apply(iptables_update.lines_to_delete_rules(rules, self.lines))

    def forward_rules(self):
        return [line for line in self.lines if line.startswith("-A FORWARD ")]


ORDERS = st.lists(st.sampled_from([rules.FORWARD_JUMP, rules.ISOLATION_JUMP]), max_size=6)


@given(ORDERS, st.sampled_from([OPEN, SAME, ISOLATED, replace(SAME, accepts=False)]))
def test_add_corrects_any_order_of_the_jumps(order, spec):
    """ADD leaves each jump once and in order, whatever their order was, and a second ADD changes nothing."""
    table = Listing().add(replace(ISOLATED, container_id="first"))
    table.lines = [line for line in table.lines if line not in table.forward_rules()] + order
    table.add(spec)
    forward = table.forward_rules() if spec.accepts else [*dict.fromkeys(table.forward_rules())]
    assert forward in ([rules.ISOLATION_JUMP, rules.FORWARD_JUMP], [rules.FORWARD_JUMP], [rules.ISOLATION_JUMP])
    assert (rules.FORWARD_JUMP in forward) == (spec.accepts or rules.FORWARD_JUMP in order)
    assert (rules.ISOLATION_JUMP in forward) == (spec.policy != "open" or rules.ISOLATION_JUMP in order)
    assert iptables_update.add_lines(spec, 4, table.lines, never_stale) == []


@pytest.mark.parametrize("spec", [OPEN, SAME, ISOLATED])
def test_del_keeps_the_shared_rules(spec):
    """After ADD and DEL the shared rules remain, and no record."""
    table = Listing().add(spec).delete(spec)
    assert not any("10.22.0.2" in line or "OWNERS" in line for line in table.lines)
    assert rules.FORWARD_JUMP in table.lines


def test_only_policies_of_stale_interfaces_are_deleted():
    """DEL deletes the policy rules of a stale interface, and no others."""
    table = Listing().add(SAME).add(replace(ISOLATED, bridge="cni1", container_id="other"))
    table.delete(replace(OPEN, container_id="third"), stale_interfaces={"cni1"})
    assert not any("cni1" in line for line in table.lines)
    assert sum("cni0" in line for line in table.lines) == 2


@pytest.mark.parametrize("is_stale", [True, False])
def test_record_of_another_network(is_stale):
    """A record of another network keeps the rules of its address, unless its attachment is no longer running."""
    other = replace(OPEN, network="other")
    table = Listing().add(other)
    table.add(OPEN, lambda record: is_stale)
    assert len(rules.parse_records(table.lines)) == (1 if is_stale else 2)
    table.delete(OPEN)
    assert len(table.lines) == (4 if is_stale else 8)


def test_foreign_rule_keeps_the_chain_of_records():
    """DEL keeps the chain of the records if it has another program's rule."""
    table = Listing().add(OPEN)
    table.lines.append("-A CNI-FORWARD-OWNERS -s 192.0.2.1/32 -j LOG")
    assert "-N CNI-FORWARD-OWNERS" in table.delete(OPEN).lines


def test_names_in_a_record_are_parsed():
    """A record names network and attachment, or has their hashes if the names are too long for a comment."""
    attachment = Attachment("cid", "a\"'\\b")
    spec = FirewallSpec("net", *attachment)
    (record,) = rules.parse_records([rules.record_rule(spec, ip_address("fd00::1"))])
    assert (record.address, record.owner) == (ip_address("fd00::1"), ("net", attachment))
    long = FirewallSpec("n" * 240, "cid", "eth0")
    (record,) = rules.parse_records([rules.record_rule(long, ip_address("10.0.0.1"))])
    assert record.owner is None
    assert rules.is_of_network(record, "n" * 240)
    assert not rules.is_of_network(record, "n" * 239)
    assert len(rules.owner_text("n" * 240, Attachment("c" * 300, "eth0"))) < 256


@given(st.binary(max_size=200), st.binary(max_size=40))
def test_any_bytes_are_rendered(expressions, userdata):
    """Any bytes of a rule are rendered as a line or as an empty string, without an error."""
    assert isinstance(iptables_listing.render_line("C", Rule(1, expressions, userdata), 4), str)


def test_rules_of_unknown_form_are_not_rendered():
    """A rule with a network, a wildcard, another match, or expressions after its verdict is not rendered."""
    source = nft_rule.source(ip_address("10.22.0.2"))

    def render(expressions):
        return iptables_listing.render_line("C", Rule(1, expressions, b""), 4)

    assert render(source + nft_rule.ACCEPT) == "-A C -s 10.22.0.2/32 -j ACCEPT"
    assert render(source) == "-A C -s 10.22.0.2/32"
    assert render(nft_rule.jump("D")) == "-A C -j D"
    assert render(nft_rule.from_interface("cni0") + nft_rule.DROP) == "-A C -i cni0 -j DROP"
    further = nft_rule.transport("tcp"), nft_rule.goto("D"), nft_rule.masquerade(), source[:52]
    assert [render(source + part) for part in further] == [""] * 4
    assert render(source + nft_rule.ACCEPT + source) == ""
    assert render(source[:-44] + nft_rule.ACCEPT) == ""
