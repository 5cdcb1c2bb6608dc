"""Rules of NAT in tables of one IP version (netfilter.nft_rule): the same as the `nft` tool's, put in their place."""

from ipaddress import ip_address, ip_network

import pytest

from kernel.errors import KernelError
from kernel.netfilter import nft, nft_rule
from kernel.netfilter.nft import Chain, Hook, Table
from tests.support.netstate import nft_rules

pytestmark = pytest.mark.needs("nft_nat")

BEFORE, BEHIND = Hook("nat", 0, -100), Hook("nat", 4, 100)
CHAINS = {
    version: {
        hook: Chain(Table(family, "t"), name, hook) for name, hook in (("prerouting", BEFORE), ("postrouting", BEHIND))
    }
    for version, family in ((4, nft.IPV4), (6, nft.IPV6))
}
POD, POD6 = ip_address("10.22.0.2"), ip_address("fd00:22::2")
SUBNET = nft_rule.source(ip_network("10.0.0.0/8"))
TCP, UDP, SCTP = (nft_rule.transport(name) for name in ("tcp", "udp", "sctp"))

MADE = {
    (4, BEFORE): {
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
    (6, BEFORE): {
        "tcp dport 8080 dnat to [fd00:22::2]:80": TCP + nft_rule.destination_port(8080) + nft_rule.dnat(POD6, 80),
    },
    (4, BEHIND): {
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
    (6, BEHIND): {
        "ip6 saddr fd00:22::/64 ip6 daddr fd00:22::2 masquerade": nft_rule.source(ip_network("fd00:22::/64"))
        + nft_rule.destination(POD6)
        + nft_rule.masquerade(),
    },
}
CASES = [(version, hook, text) for (version, hook), texts in MADE.items() for text in texts]


@pytest.fixture
def made(netfilter):
    """A netfilter socket on the host, with a table of each IP version there."""
    for chains in CHAINS.values():
        nft.change(netfilter, nft.table_request(chains[BEFORE].table), *map(nft.chain_request, chains.values()))
    return netfilter


@pytest.mark.parametrize(("version", "hook", "text"), CASES)
def test_rules_are_those_of_the_tool(made, host, version, hook, text):
    """A rule made here and one that `nft` made from its text are the same bytes in the kernel and in the listing."""
    chain, expressions = CHAINS[version][hook], MADE[version, hook][text]
    host.run("nft", "add", "rule", "ip" if version == 4 else "ip6", "t", chain.name, text)
    nft.change(made, nft.rule_request(chain, expressions))
    theirs, ours = nft.list_rules(made, chain)
    assert ours.expressions == theirs.expressions
    assert nft_rule.is_same_rule(expressions, theirs.expressions)
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
def test_whom_a_rule_is_for_is_read(made, host, text):
    """Protocol, port and address that a rule of the tool's demands are read; what it compares otherwise is not."""
    chain = CHAINS[4][BEFORE]
    host.run("nft", "add", "rule", "ip", "t", chain.name, text)
    (rule,) = nft.list_rules(made, chain)
    assert nft_rule.parse_destination(rule.expressions)[:3] == TARGETS[text]
    assert b"".join(nft_rule.split_expressions(rule.expressions)) == rule.expressions
    port = TARGETS[text][1]
    if port:
        assert nft.list_rules(
            made, chain, lambda message: port.to_bytes(2, "big") in nft_rule.compared_byte_pairs(message)
        )


FURTHER = {
    "ip daddr 192.0.2.1 tcp dport 8080 counter log accept": "",
    "tcp dport 80 iifname lo accept": "iifname lo",
    "ip daddr 192.0.2.0/24 tcp dport 80 accept": "ip daddr 192.0.2.0/24",
    "tcp dport 80 ip daddr != 192.0.2.1 accept": "ip daddr != 192.0.2.1",
    "tcp dport 80-90 accept": "th dport 80-90",
    "ct state new tcp dport 80 ip saddr 10.0.0.0/9 accept": "ct state new ip saddr 10.0.0.0/9",
}


@pytest.mark.parametrize("text", FURTHER)
def test_what_else_a_rule_demands_is_read(made, host, text):
    """What a rule of the tool's compares beyond protocol, port and address are the expressions of that text alone."""
    chain = CHAINS[4][BEFORE]
    host.run("nft", "add", "rule", "ip", "t", chain.name, text)
    host.run("nft", "add", "rule", "ip", "t", chain.name, f"{FURTHER[text]} accept")
    rule, further = nft.list_rules(made, chain)
    assert (
        nft_rule.parse_destination(rule.expressions).further + nft_rule.split_expressions(further.expressions)[-1]
        == further.expressions
    )


def test_rules_are_put_in_front_of_another(made):
    """Several rules in front of the same one keep their order; one that is gone is an error."""
    chain = CHAINS[4][BEFORE]
    nft.change(
        made, *(nft.rule_request(chain, nft_rule.ACCEPT, nft_rule.comment_userdata(name)) for name in ("a", "z"))
    )
    last = nft.list_rules(made, chain)[1].handle
    nft.change(
        made,
        *(
            nft.rule_request(chain, nft_rule.ACCEPT, nft_rule.comment_userdata(name), before=last)
            for name in ("b", "c")
        ),
    )
    assert [rule.comment for rule in nft.list_rules(made, chain)] == ["a", "b", "c", "z"]
    nft.change(
        made,
        nft.rule_request(chain, nft_rule.ACCEPT, nft_rule.comment_userdata("y"), before=last),
        nft.delete_rule_request(chain, last),
    )
    assert [rule.comment for rule in nft.list_rules(made, chain)] == ["a", "b", "c", "y"]
    with pytest.raises(KernelError, match="add a rule to chain t prerouting: no such file or directory"):
        nft.change(made, nft.rule_request(chain, nft_rule.ACCEPT, before=last))
