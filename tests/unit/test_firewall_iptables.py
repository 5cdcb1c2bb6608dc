"""The rules of the firewall: lines of iptables, their parsing, and the owners of elements in nftables' sets."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.conf import Attachment
from kernel.netfilter import iptables_listing, nft, nft_rule
from kernel.netfilter.iptables_rule import ChainList, IptablesRule
from kernel.netfilter.nft_set import Element
from plugins.firewall import iptables_rules
from plugins.firewall import iptables_rules as rules
from plugins.firewall.nftables_rules import ElementFilter, userdata
from plugins.firewall.spec import FirewallSpec
from tests.support.iptables_table import Table

OPEN = FirewallSpec("net", "cid", "eth0", (ip_address("10.22.0.2"),))
SAME = replace(OPEN, policy="same-bridge", bridge="cni0")
ISOLATED = replace(OPEN, policy="isolated", bridge="cni0")


def never_stale(record):
    return False


class Filter(Table):
    """The table filter, to which the firewall's changes are applied."""

    def __init__(self):
        super().__init__("FORWARD")

    def add(self, spec, is_stale=never_stale):
        self.apply(iptables_rules.changes_for_add(spec, 4, self.listing(), is_stale))
        return self

    def delete(self, spec, stale_interfaces=(), is_stale=never_stale):
        rules = iptables_rules.rules_for_del(spec, 4, self.listing(), stale_interfaces, is_stale)
        self.apply(iptables_rules.changes_to_delete_rules(rules, self.listing()))
        return self


ORDERS = st.lists(st.sampled_from([rules.FORWARD_JUMP, rules.ISOLATION_JUMP]), max_size=6)


@given(ORDERS, st.sampled_from([OPEN, SAME, ISOLATED, replace(SAME, accepts=False)]))
def test_add_corrects_any_order_of_the_jumps(order, spec):
    """ADD leaves each jump once and in order, whatever their order was, and a second ADD changes nothing."""
    table = Filter().add(replace(ISOLATED, container_id="first"))
    table.chains["FORWARD"] = [rule.spec for rule in order]
    table.add(spec)
    forward = table.listing().rules("FORWARD")
    forward = forward if spec.accepts else [*dict.fromkeys(forward)]
    assert forward in ([rules.ISOLATION_JUMP, rules.FORWARD_JUMP], [rules.FORWARD_JUMP], [rules.ISOLATION_JUMP])
    assert (rules.FORWARD_JUMP in forward) == (spec.accepts or rules.FORWARD_JUMP in order)
    assert (rules.ISOLATION_JUMP in forward) == (spec.policy != "open" or rules.ISOLATION_JUMP in order)
    assert iptables_rules.changes_for_add(spec, 4, table.listing(), never_stale) == []


def test_foreign_rule_keeps_the_chain_of_records():
    """DEL keeps the chain of the records if it has another program's rule."""
    table = Filter().add(OPEN)
    table.chains["CNI-FORWARD-OWNERS"].append("-s 192.0.2.1/32 -j LOG")
    assert "CNI-FORWARD-OWNERS" in table.delete(OPEN).chains


def test_names_in_a_record_are_parsed():
    """A record names network and attachment, or has their hashes if the names are too long for a comment."""
    attachment = Attachment("cid", "a\"'\\b")
    spec = FirewallSpec("net", *attachment)
    (record,) = rules.parse_records(ChainList.of((), [rules.record_rule(spec, ip_address("fd00::1"))]))
    assert (record.address, record.owner) == (ip_address("fd00::1"), ("net", attachment))
    long = FirewallSpec("n" * 240, "cid", "eth0")
    (record,) = rules.parse_records(ChainList.of((), [rules.record_rule(long, ip_address("10.0.0.1"))]))
    assert record.owner is None
    assert rules.is_of_network(record, "n" * 240)
    assert not rules.is_of_network(record, "n" * 239)
    assert len(rules.owner_text("n" * 240, Attachment("c" * 300, "eth0"))) < 256


@given(st.binary(max_size=200), st.binary(max_size=40))
def test_any_bytes_are_parsed(expressions, userdata):
    """Any bytes of a rule are parsed as a rule or as none, without an error."""
    assert isinstance(iptables_listing.parse_rule("C", nft.NftRule(1, expressions, userdata), 4), IptablesRule | None)


def test_rules_of_unknown_form_are_not_parsed():
    """A rule with a wildcard, another match, or expressions after its verdict is not parsed."""
    source = nft_rule.source(ip_address("10.22.0.2"))

    def parse(expressions):
        rule = iptables_listing.parse_rule("C", nft.NftRule(1, expressions, b""), 4)
        return rule and str(rule)

    assert parse(source + nft_rule.ACCEPT) == "-A C -s 10.22.0.2/32 -j ACCEPT"
    assert parse(source) == "-A C -s 10.22.0.2/32"
    assert parse(nft_rule.jump("D")) == "-A C -j D"
    assert parse(nft_rule.from_interface("cni0") + nft_rule.DROP) == "-A C -i cni0 -j DROP"
    further = nft_rule.transport("tcp"), nft_rule.goto("D"), nft_rule.masquerade(), source[:52]
    assert [parse(source + part) for part in further] == [None] * 4
    assert parse(source + nft_rule.ACCEPT + source) is None
    assert parse(source[:-44] + nft_rule.ACCEPT) is None


def test_ipv6_addresses_are_written_as_iptables_lists_them():
    """An IPv6 address with an IPv4 address in it is written as iptables lists it, or CHECK would not find its rules."""
    assert all("::1.2.3.5/128" in rule.spec for rule in rules.address_rules(ip_address("::1.2.3.5")))


@pytest.mark.parametrize(("comment_bytes", "has_owner"), [(127, True), (128, False), (129, False)])
def test_comment_that_may_be_truncated_names_no_owner(comment_bytes, has_owner):
    """GC keeps an element that `nft` has loaded with a truncated comment, since its pod may be running."""
    container_id = "c" * (comment_bytes - len("net: net, if: eth0, id: "))
    data = userdata(FirewallSpec("net", container_id, "eth0"))
    loaded = Element(b"key", data[: 2 + data[1]])  # `nft` drops the owner ID after the comment
    assert not ElementFilter.stale("net", [Attachment(container_id, "eth0")]).has(loaded)
    assert ElementFilter.stale("net", []).has(loaded) is has_owner
