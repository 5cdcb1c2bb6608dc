"""Rules over netlink (netfilter.nft_rule): equal to the `nft` tool's, their parts, and their positions."""

from ipaddress import ip_address, ip_network

import pytest

from kernel.errors import KernelError
from kernel.netfilter import nft, nft_rule
from kernel.netfilter.nft import Chain, Hook, Table
from kernel.netfilter.nft_rule import ACCEPT, DROP, RETURN, destination, destination_port, dnat, masquerade, source
from tests.support.netstate import nft_rules

pytestmark = pytest.mark.needs("nft_nat")

FAMILIES = {nft.INET: "inet", nft.IPV4: "ip", nft.BRIDGE: "bridge"}
INET, OTHER = Chain(Table(nft.INET, "t"), "c"), Chain(Table(nft.INET, "t"), "other")
BRIDGE = Chain(Table(nft.BRIDGE, "t"), "c")
PREROUTING = Chain(Table(nft.IPV4, "t"), "prerouting", Hook("nat", 0, -100))
POSTROUTING = Chain(Table(nft.INET, "t"), "postrouting", Hook("nat", 4, 100))
IPV4, IPV6 = nft_rule.of_version(4), nft_rule.of_version(6)
NODE, POD, POD6 = ip_address("192.0.2.1"), ip_address("10.22.0.2"), ip_address("fd00:22::2")
SCTP = nft_rule.transport("sctp")

# A chain, the tool's text, and the expressions of this module. Other rules are compared by the plugins' tests, in which
# CHECK recognises rules that `nft` has loaded.
RULES = [
    (INET, "ip saddr 10.22.0.2 return", (IPV4, source(POD), RETURN)),
    (INET, "ip6 saddr fd00:22::2 accept", (IPV6, source(POD6), ACCEPT)),
    (INET, 'iifname "eth0" drop', (nft_rule.from_interface("eth0"), DROP)),
    (INET, 'iifname "fifteen-letters" drop', (nft_rule.from_interface("fifteen-letters"), DROP)),
    (INET, "jump other", (nft_rule.jump("other"),)),
    (INET, "goto other", (nft_rule.goto("other"),)),
    (BRIDGE, "ether saddr 02:00:00:00:00:01 accept", (nft_rule.ether_source(bytes.fromhex("020000000001")), ACCEPT)),
    (POSTROUTING, "masquerade", (masquerade(),)),
    (PREROUTING, "sctp dport 1 dnat to 10.22.0.2:9", (SCTP, destination_port(1), dnat(POD, 9))),
    (PREROUTING, "meta mark set meta mark | 0x80000000", (nft_rule.mark_statement(31),)),
] + [
    (INET, f"{ip} daddr {sign}{text} return", (version, destination(ip_network(text), positive=not sign), RETURN))
    for ip, version, texts in (
        ("ip", IPV4, ("10.0.0.0/8", "10.22.0.0/17", "10.22.3.4", "0.0.0.0/0")),
        ("ip6", IPV6, ("fd00::/62", "fd00::/64", "fd00::1", "::/0", "fe80::/10")),
    )
    for text in texts
    for sign in ("", "!= ")
]


@pytest.mark.parametrize(("chain", "text", "parts"), [pytest.param(*rule, id=rule[1]) for rule in RULES])
def test_rules_are_those_of_the_tool(netfilter, host, chain, text, parts):
    """A rule of this module and the one that `nft` creates from its text have the same bytes in kernel and listing."""
    others = [nft.chain_request(OTHER)] if chain == INET else []
    nft.change(netfilter, nft.table_request(chain.table), nft.chain_request(chain), *others)
    host.run("nft", "add", "rule", FAMILIES[chain.table.family], "t", chain.name, text)
    nft.change(netfilter, nft.rule_request(chain, b"".join(parts)))
    rule_of_tool, created = nft.list_rules(netfilter, chain)
    assert created.expressions == rule_of_tool.expressions
    assert nft_rule.is_same_rule(b"".join(parts), rule_of_tool.expressions)
    assert nft_rule.is_same_rule(created.expressions, rule_of_tool.expressions)
    assert [line.strip() for line in nft_rules(host)].count(text) == 2


@pytest.fixture
def chain(netfilter):
    """An existing chain of IPv4."""
    nft.change(netfilter, nft.table_request(PREROUTING.table), nft.chain_request(PREROUTING))
    return PREROUTING


TARGETS = {
    "ip daddr 192.0.2.1 tcp dport 8080 accept": ("tcp", 8080, NODE),
    "ip protocol udp udp dport 53 accept": ("udp", 53, None),
    "meta l4proto sctp sctp dport 7 accept": ("sctp", 7, None),
    "ip saddr 10.0.0.0/8 tcp dport 80 ip daddr 192.0.2.1 accept": ("tcp", 80, NODE),
    "ip daddr != 192.0.2.1 tcp dport != 80 accept": ("tcp", 0, None),
    "ip daddr 192.0.2.0/24 tcp dport 80-90 accept": ("tcp", 0, None),
    "ip daddr & 255.255.254.0 == 192.0.2.0 th dport 80 accept": ("", 80, None),
    "ip saddr 192.0.2.1 tcp sport 80 accept": ("tcp", 0, None),
    "tcp dport { 80, 443 } accept": ("tcp", 0, None),
    "accept": ("", 0, None),
}


@pytest.mark.parametrize("text", TARGETS)
def test_the_destination_of_a_rule_is_parsed(netfilter, host, chain, text):
    """Protocol, port and address that a rule compares for equality are parsed; other matches are not."""
    host.run("nft", "add", "rule", "ip", "t", chain.name, text)
    (rule,) = nft.list_rules(netfilter, chain)
    assert nft_rule.parse_destination(rule.expressions)[:3] == TARGETS[text]
    assert b"".join(nft_rule.split_expressions(rule.expressions)) == rule.expressions
    port = TARGETS[text][1]
    if port:
        assert nft.list_rules(
            netfilter, chain, lambda message: port.to_bytes(2, "big") in nft_rule.compared_byte_pairs(message)
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
def test_other_matches_of_a_rule_are_parsed(netfilter, host, chain, text):
    """The other matches of a rule are the expressions without those for protocol, port and address."""
    for each in (text, f"{OTHER_MATCHES[text]} accept"):
        host.run("nft", "add", "rule", "ip", "t", chain.name, each)
    rule, other = nft.list_rules(netfilter, chain)
    matches = nft_rule.parse_destination(rule.expressions).other_matches
    assert matches + nft_rule.split_expressions(other.expressions)[-1] == other.expressions


def test_rules_are_inserted_before_another(netfilter, chain):
    """Rules inserted before the same rule keep their order; inserting before a deleted rule is an error."""

    def requests(names, before=0):
        return [nft.rule_request(chain, ACCEPT, nft_rule.comment_userdata(name), before=before) for name in names]

    nft.change(netfilter, *requests("az"))
    last = nft.list_rules(netfilter, chain)[1].handle
    nft.change(netfilter, *requests("bc", last))
    assert [rule.comment for rule in nft.list_rules(netfilter, chain)] == ["a", "b", "c", "z"]
    nft.change(netfilter, *requests("y", last), nft.delete_rule_request(chain, last))
    assert [rule.comment for rule in nft.list_rules(netfilter, chain)] == ["a", "b", "c", "y"]
    with pytest.raises(KernelError, match="add a rule to chain t prerouting: no such file or directory"):
        nft.change(netfilter, *requests("x", last))
