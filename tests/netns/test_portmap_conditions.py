"""Conditions of nftables in the kernel: the same expressions and the same text as `nft` creates from the words."""

import pytest

from kernel.netfilter import nft, nft_rule
from kernel.netfilter.nft import Chain, Table
from plugins.portmap.conditions import compile_conditions
from tests.support.netstate import nft_rules

pytestmark = pytest.mark.needs("nft_nat")

TABLES = {4: Table(nft.IPV4, "t"), 6: Table(nft.IPV6, "t")}
CONDITIONS = {
    4: [
        "ip saddr 10.0.0.1",
        "ip saddr != 10.0.0.1",
        "ip saddr == 10.0.0.0/8",
        "ip daddr 10.22.0.0/17",
        "ip daddr != 10.22.128.9/17",
        "ip daddr 10.0.0.1-10.0.0.9",
        "ip saddr != 10.0.0.1-10.0.0.9",
        "ip saddr 10.0.0.1 ip daddr != 192.0.2.9",
        "ip protocol tcp tcp sport 5",
        "ip protocol != sctp",
        "tcp sport 5",
        "udp dport 0x35",
        "sctp dport != 7",
        "tcp dport 80-90",
        "tcp sport != 80-90",
        "th dport 53",
        "meta l4proto udp udp sport 68",
        "meta l4proto != 47",
        "iif 1",
        "meta oif != 1",
        "iifname lo",
        'iifname != "eth*"',
        "oifname == veth0",
        'meta iifname "e\\*"',
        "mark 16",
        "meta mark != 0x10",
        "meta mark & 0xff == 0x10",
        "mark and 0xff 1",
        "ct state new",
        "ct state established,related",
        "ct state == new",
        "ct state != new,untracked",
        "ct mark 7",
        "ct mark & 0x7 != 0x1",
        "fib daddr type local",
        "fib saddr type != local",
        "fib saddr type multicast iifname lo ip saddr 10.0.0.1 tcp dport 5",
    ],
    6: [
        "ip6 saddr fd00::1",
        "ip6 saddr != fd00::/64",
        "ip6 daddr fe80::/10",
        "ip6 daddr fd00::1-fd00::9",
        "ip6 daddr != fd00::1-fd00::9",
        "tcp dport 80 iifname lo",
        "fib daddr type local",
    ],
}
SETS = {
    "ip daddr { 192.0.2.1, 192.0.2.9 }": ["ip daddr 192.0.2.1", "ip daddr 192.0.2.9"],
    "ip daddr != { 192.0.2.1, 10.0.0.0/8 }": ["ip daddr != 192.0.2.1 ip daddr != 10.0.0.0/8"],
    "ip saddr == { 10.0.0.1-10.0.0.9 }": ["ip saddr 10.0.0.1-10.0.0.9"],
    "meta l4proto { tcp, udp } th dport 53": ["meta l4proto tcp th dport 53", "meta l4proto udp th dport 53"],
    "ct state { new, established }": ["ct state new", "ct state established"],
    "iif lo": ['iifname "lo"'],
}


@pytest.fixture
def compare(host, netfilter):
    """A function that creates rules from words with portmap and from texts with `nft`, and returns both as listed."""

    def create_and_list(words, version, texts):
        chains = compiled, _ = [Chain(TABLES[version], name) for name in ("ours", "theirs")]
        nft.change(netfilter, nft.table_request(TABLES[version]), *map(nft.chain_request, chains))
        for text in texts:
            host.run("nft", "add", "rule", "ip" if version == 4 else "ip6", "t", "theirs", text, "accept")
        rules = compile_conditions(words.split(), version)
        nft.change(netfilter, *(nft.rule_request(compiled, each + nft_rule.ACCEPT) for each in rules))
        lines = [line.strip() for line in nft_rules(host)]
        middle = lines.index("chain theirs {")
        listed = [[line for line in part if "accept" in line] for part in (lines[:middle], lines[middle:])]
        return [[rule.expressions for rule in nft.list_rules(netfilter, chain)] for chain in chains], listed

    return create_and_list


CASES = [(version, words, [words]) for version, texts in CONDITIONS.items() for words in texts]


@pytest.mark.parametrize(("version", "words", "texts"), [*CASES, *((4, words, SETS[words]) for words in SETS)])
def test_conditions_compile_to_the_rules_of_nft(compare, version, words, texts):
    """Each rule is byte for byte the one that `nft` creates from the same words, or from a set's, and listed the same.

    A set compiles to a rule for each value, with "!=" to one rule with all comparisons; "iif" compares the name.
    """
    (compiled, expected), (our_text, their_text) = compare(words, version, texts)
    assert compiled == expected
    assert our_text == their_text
    assert len(compiled) == len(texts)
