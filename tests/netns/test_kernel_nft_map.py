"""Verdict maps, named counters and whole tables of nftables on the real kernel (kernel.netfilter)."""

import errno
from ipaddress import ip_address

import pytest

from kernel.errors import KernelError
from kernel.netfilter import nft, nft_expression, nft_rule, nft_set, nft_table
from kernel.netfilter.nft import Chain, Table
from kernel.netfilter.nft_set import IPV4_ADDRESS, IPV6_ADDRESS, PADDED_PORT, Element, Set
from tests.support.netstate import nft_rules

pytestmark = pytest.mark.needs("nft_inet")

TABLE = Table(nft.INET, "t")
MAPS = {4: Set(TABLE, "m4", (IPV4_ADDRESS,), verdicts=True), 6: Set(TABLE, "m6", (IPV6_ADDRESS,), verdicts=True)}
CHAIN, TARGET = Chain(TABLE, "c"), Chain(TABLE, "target")
ONE = {4: ip_address("10.0.0.1").packed, 6: ip_address("fd00::1").packed}


def create(netfilter, *requests):
    """Creates the table, the maps and the chains, and sends the other requests in the same transaction."""
    maps = map(nft_set.set_request, MAPS.values())
    chains = map(nft.chain_request, (CHAIN, TARGET))
    nft.change(netfilter, nft.table_request(TABLE), *maps, *chains, *requests)


def goto_requests(version, chain):
    """Returns the requests that map a key to a chain."""
    return nft_set.add_element_requests(MAPS[version], [Element(ONE[version], chain=chain)])


def list_chains(netfilter, verdict_map):
    """Returns the chain of each key of a map."""
    return {item.key: item.chain for item in nft_set.list_elements(netfilter, verdict_map)}


@pytest.mark.parametrize("version", [4, 6])
def test_verdict_maps(netfilter, host, version):
    """An element maps a key to a chain; a verdict of another kind is listed without one."""
    create(netfilter, *goto_requests(version, "target"))
    assert list_chains(netfilter, MAPS[version]) == {ONE[version]: "target"}
    (request,) = goto_requests(version, "target")
    assert request.describe() == f"add to set t m{version} {{ {ip_address(ONE[version])} : goto target }}"
    host.run("nft", f"delete element inet t m{version} {{ {ip_address(ONE[version])} }}")
    keys = [ip_address(ONE[version]) + n for n in range(3)]
    host.run("nft", f"add element inet t m{version} {{ {keys[0]} : accept, {keys[1]} : jump c, {keys[2]} : goto c }}")
    assert list_chains(netfilter, MAPS[version]) == {keys[0].packed: "", keys[1].packed: "", keys[2].packed: "c"}


def test_counters(netfilter, host):
    """A named counter keeps its packets when the rule that refers to it is replaced, and cannot be deleted before."""
    rule = nft_expression.count("drops") + nft_rule.DROP
    create(netfilter, nft_table.counter_request(TABLE, "drops"), nft.rule_request(CHAIN, rule))
    assert 'counter name "drops" drop' in "".join(nft_rules(host))
    host.run("nft", "add chain inet t o { type filter hook output priority 0; ip daddr 127.0.0.9 jump c; }")
    host.run("ping", "-c1", "-W0.1", "127.0.0.9", check=False)
    assert nft_table.list_counters(netfilter, TABLE) == {"drops": 1}
    again = nft.flush_chain_request(CHAIN), nft.rule_request(CHAIN, rule)
    nft.change(netfilter, nft_table.counter_request(TABLE, "drops"), *again)
    assert nft_table.list_counters(netfilter, TABLE) == {"drops": 1}
    with pytest.raises(KernelError) as error:
        nft.change(netfilter, nft_table.delete_counter_request(TABLE, "drops"))
    assert error.value.errno == errno.EBUSY
    nft.change(netfilter, nft.flush_chain_request(CHAIN), nft_table.delete_counter_request(TABLE, "drops"))
    assert nft_table.list_counters(netfilter, TABLE) == {}


def test_a_whole_table(netfilter, host):
    """All chains, rules and sets of one table are read, without sets that a rule brings with it; then it is deleted."""
    host.run("nft", "add table inet tt; add chain inet tt c; add set inet tt s { type mark; }; add rule inet tt c drop")
    create(netfilter, *(nft.rule_request(CHAIN, rule) for rule in (nft_rule.ACCEPT, nft_rule.DROP)))
    host.run("nft", "add rule inet t target tcp dport { 1, 2 } accept")
    content = nft_table.read_table(netfilter, TABLE)
    assert content.chains == {"c": CHAIN, "target": TARGET}
    assert content.sets == {one.name for one in MAPS.values()}
    rules = zip(content.rules["c"], (nft_rule.ACCEPT, nft_rule.DROP), strict=True)
    assert all(nft_rule.is_same_rule(desired, existing) for existing, desired in rules)
    nft.change(netfilter, nft_table.delete_table_request(TABLE))
    assert nft_table.read_table(netfilter, TABLE) == ({}, {}, set())
    assert "table inet tt {" in nft_rules(host)


START = b"\x1c\0\x01\0\x18\0\x01\0\x14\0\x01\0"  # of an element, before its key


@pytest.mark.parametrize("comment", ["", "with a comment"])
def test_keys_of_any_bytes(netfilter, comment):
    """The keys of a set are listed whatever their bytes are, also those that look like the start of an element."""
    keys = {bytes(16), b"\xff" * 16, START + START[:4], bytes(4) + START, START[8:] + START, *many_keys()}
    one = Set(TABLE, "s", (IPV6_ADDRESS,))
    userdata = nft_rule.comment_userdata(comment) if comment else b""
    elements = [Element(key, userdata if key[0] else b"") for key in keys]
    nft.change(netfilter, nft.table_request(TABLE), nft_set.set_request(one))
    nft.change(netfilter, *nft_set.add_element_requests(one, elements))
    assert nft_set.list_keys(netfilter, one) == keys
    assert nft_set.list_keys(netfilter, Set(TABLE, "s", (IPV4_ADDRESS,))) == set()


def many_keys():
    """Returns keys that fill several messages."""
    return {number.to_bytes(8, "little") * 2 for number in range(5000)}


def test_the_text_of_keys():
    """A change of elements with ports is described as `nft` lists them."""
    one = Set(TABLE, "s", (IPV4_ADDRESS, PADDED_PORT))
    (request,) = nft_set.add_element_requests(one, [Element(ONE[4] + b"\0\x50\0\0")])
    assert request.describe() == "add to set t s { 10.0.0.1 . 80 }"
