"""NAT rules in tables of one IP version (netfilter.nft_rule): equal to the `nft` tool's, and their positions."""

from ipaddress import ip_address, ip_network

import pytest

from kernel.errors import KernelError
from kernel.netfilter import nft, nft_rule
from kernel.netfilter.nft import Chain, Hook, Table
from tests.support.netstate import nft_rules

pytestmark = pytest.mark.needs("nft_nat")

PREROUTING, POSTROUTING = Hook("nat", 0, -100), Hook("nat", 4, 100)
CHAINS = {
    version: {
        hook: Chain(Table(family, "t"), name, hook)
        for name, hook in (("prerouting", PREROUTING), ("postrouting", POSTROUTING))
    }
    for version, family in ((4, nft.IPV4), (6, nft.IPV6))
}
POD, POD6 = ip_address("10.22.0.2"), ip_address("fd00:22::2")
SUBNET = nft_rule.source(ip_network("10.0.0.0/8"))
TCP, UDP, SCTP = (nft_rule.transport(name) for name in ("tcp", "udp", "sctp"))

RULES = {
    (4, PREROUTING): {
        "tcp dport 8080 dnat to 10.22.0.2:80": TCP + nft_rule.destination_port(8080) + nft_rule.dnat(POD, 80),
        "ip daddr 192.0.2.1 udp dport 53 dnat to 10.22.0.2:5353": nft_rule.destination(ip_address("192.0.2.1"))
        + UDP
        + nft_rule.destination_port(53)
        + nft_rule.dnat(POD, 5353),
        "ip saddr 10.0.0.0/8 sctp dport 1 meta mark set meta mark | 0x00002000 dnat to 10.22.0.2:9": SUBNET
        + SCTP
        + nft_rule.destination_port(1)
        + nft_rule.mark_statement(13)
        + nft_rule.dnat(POD, 9),
        "meta mark set meta mark | 0x80000000": nft_rule.mark_statement(31),
        "fib daddr type local accept": nft_rule.to_this_host() + nft_rule.ACCEPT,
    },
    (6, PREROUTING): {
        "tcp dport 8080 dnat to [fd00:22::2]:80": TCP + nft_rule.destination_port(8080) + nft_rule.dnat(POD6, 80),
    },
    (4, POSTROUTING): {
        "ip saddr 10.22.0.0/17 ip daddr 10.22.0.2 meta mark & 0x00002000 == 0x00002000 masquerade": nft_rule.source(
            ip_network("10.22.0.0/17")
        )
        + nft_rule.destination(POD)
        + nft_rule.mark_match(13)
        + nft_rule.masquerade(),
        "ip saddr 0.0.0.0/0 ip daddr 10.22.0.2 masquerade": nft_rule.source(ip_network("0.0.0.0/0"))
        + nft_rule.destination(POD)
        + nft_rule.masquerade(),
    },
    (6, POSTROUTING): {
        "ip6 saddr fd00:22::/64 ip6 daddr fd00:22::2 masquerade": nft_rule.source(ip_network("fd00:22::/64"))
        + nft_rule.destination(POD6)
        + nft_rule.masquerade(),
    },
}
CASES = [(version, hook, text) for (version, hook), texts in RULES.items() for text in texts]


@pytest.fixture
def prepared(netfilter):
    """A netfilter socket on a host with a table of each IP version."""
    for chains in CHAINS.values():
        nft.change(netfilter, nft.table_request(chains[PREROUTING].table), *map(nft.chain_request, chains.values()))
    return netfilter


@pytest.mark.parametrize(("version", "hook", "text"), CASES)
def test_rules_are_those_of_the_tool(prepared, host, version, hook, text):
    """A rule of this module and the one that `nft` creates from its text have the same bytes in kernel and listing."""
    chain, expressions = CHAINS[version][hook], RULES[version, hook][text]
    host.run("nft", "add", "rule", "ip" if version == 4 else "ip6", "t", chain.name, text)
    nft.change(prepared, nft.rule_request(chain, expressions))
    rule_of_tool, created = nft.list_rules(prepared, chain)
    assert created.expressions == rule_of_tool.expressions
    assert nft_rule.is_same_rule(expressions, rule_of_tool.expressions)
    assert [line.strip() for line in nft_rules(host)].count(text) == 2


TARGETS = {
    "ip daddr 192.0.2.1 tcp dport 8080 accept": ("tcp", 8080, ip_address("192.0.2.1")),
    "ip protocol udp udp dport 53 accept": ("udp", 53, None),
    "meta l4proto sctp sctp dport 7 accept": ("sctp", 7, None),
    "ip saddr 10.0.0.0/8 tcp dport 80 ip daddr 192.0.2.1 accept": ("tcp", 80, ip_address("192.0.2.1")),
    "ip daddr != 192.0.2.1 tcp dport != 80 accept": ("tcp", 0, None),
    "ip daddr 192.0.2.0/24 tcp dport 80-90 accept": ("tcp", 0, None),
    "ip daddr & 255.255.254.0 == 192.0.2.0 th dport 80 accept": ("", 80, None),
    "ip saddr 192.0.2.1 tcp sport 80 accept": ("tcp", 0, None),
    "tcp dport { 80, 443 } accept": ("tcp", 0, None),
    "accept": ("", 0, None),
}


@pytest.mark.parametrize("text", TARGETS)
def test_the_destination_of_a_rule_is_parsed(prepared, host, text):
    """Protocol, port and address that a rule compares for equality are parsed; other matches are not."""
    chain = CHAINS[4][PREROUTING]
    host.run("nft", "add", "rule", "ip", "t", chain.name, text)
    (rule,) = nft.list_rules(prepared, chain)
    assert nft_rule.parse_destination(rule.expressions)[:3] == TARGETS[text]
    assert b"".join(nft_rule.split_expressions(rule.expressions)) == rule.expressions
    port = TARGETS[text][1]
    if port:
        assert nft.list_rules(
            prepared, chain, lambda message: port.to_bytes(2, "big") in nft_rule.compared_byte_pairs(message)
        )


OTHER_MATCHES = {
    "ip daddr 192.0.2.1 tcp dport 8080 counter log accept": "",
    "tcp dport 80 iifname lo accept": "iifname lo",
    "ip daddr 192.0.2.0/24 tcp dport 80 accept": "ip daddr 192.0.2.0/24",
    "tcp dport 80 ip daddr != 192.0.2.1 accept": "ip daddr != 192.0.2.1",
    "tcp dport 80-90 accept": "th dport 80-90",
    "ct state new tcp dport 80 ip saddr 10.0.0.0/9 accept": "ct state new ip saddr 10.0.0.0/9",
}


@pytest.mark.parametrize("text", OTHER_MATCHES)
def test_other_matches_of_a_rule_are_parsed(prepared, host, text):
    """The other matches of a rule are the expressions without those for protocol, port and address."""
    chain = CHAINS[4][PREROUTING]
    host.run("nft", "add", "rule", "ip", "t", chain.name, text)
    host.run("nft", "add", "rule", "ip", "t", chain.name, f"{OTHER_MATCHES[text]} accept")
    rule, other = nft.list_rules(prepared, chain)
    assert (
        nft_rule.parse_destination(rule.expressions).other_matches + nft_rule.split_expressions(other.expressions)[-1]
        == other.expressions
    )


def test_rules_are_inserted_before_another(prepared):
    """Rules inserted before the same rule keep their order; inserting before a deleted rule is an error."""
    chain = CHAINS[4][PREROUTING]
    nft.change(
        prepared, *(nft.rule_request(chain, nft_rule.ACCEPT, nft_rule.comment_userdata(name)) for name in ("a", "z"))
    )
    last = nft.list_rules(prepared, chain)[1].handle
    nft.change(
        prepared,
        *(
            nft.rule_request(chain, nft_rule.ACCEPT, nft_rule.comment_userdata(name), before=last)
            for name in ("b", "c")
        ),
    )
    assert [rule.comment for rule in nft.list_rules(prepared, chain)] == ["a", "b", "c", "z"]
    nft.change(
        prepared,
        nft.rule_request(chain, nft_rule.ACCEPT, nft_rule.comment_userdata("y"), before=last),
        nft.delete_rule_request(chain, last),
    )
    assert [rule.comment for rule in nft.list_rules(prepared, chain)] == ["a", "b", "c", "y"]
    with pytest.raises(KernelError, match="add a rule to chain t prerouting: no such file or directory"):
        nft.change(prepared, nft.rule_request(chain, nft_rule.ACCEPT, before=last))
