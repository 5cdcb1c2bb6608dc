"""Sets of nftables over netlink on the real kernel (kernel.netfilter.nft_set): the same as the `nft` tool's."""

import errno
from ipaddress import ip_address

import pytest

from kernel.errors import KernelError
from kernel.netfilter import nft, nft_rule, nft_set
from kernel.netfilter.nft import Chain, Table
from kernel.netfilter.nft_set import INTERFACE_NAME, IPV4_ADDRESS, IPV6_ADDRESS, Element, Set, interface_key
from kernel.netns import Netns, entered
from tests.support.netstate import nft_rules

pytestmark = pytest.mark.needs("nft_inet")

TABLE = Table(nft.INET, "t")
CHAIN = Chain(TABLE, "c")
ONE = ip_address("10.22.0.1").packed
SETS = {
    "ipv4_addr": (Set(TABLE, "s", (IPV4_ADDRESS,)), ONE, "10.22.0.1"),
    "ipv6_addr": (Set(TABLE, "s", (IPV6_ADDRESS,)), ip_address("fd00::1").packed, "fd00::1"),
    "ifname": (Set(TABLE, "s", (INTERFACE_NAME,)), interface_key("fifteen-letters"), '"fifteen-letters"'),
    "ifname . ifname": (
        Set(TABLE, "s", (INTERFACE_NAME, INTERFACE_NAME)),
        interface_key("cni0", "a.b"),
        '"cni0" . "a.b"',
    ),
    "ifname . ipv4_addr": (
        Set(TABLE, "s", (INTERFACE_NAME, IPV4_ADDRESS)),
        interface_key("cni0") + ONE,
        '"cni0" . 10.22.0.1',
    ),
    "ifname . ipv6_addr": (
        Set(TABLE, "s", (INTERFACE_NAME, IPV6_ADDRESS)),
        interface_key("cni0") + ip_address("fd00::1").packed,
        '"cni0" . fd00::1',
    ),
}
OWN = SETS["ipv4_addr"][0]
RULES = {
    "ip saddr @pods4 accept": nft_rule.source_in(4, "pods4") + nft_rule.ACCEPT,
    "ip daddr @pods4 accept": nft_rule.destination_in(4, "pods4") + nft_rule.ACCEPT,
    "ip6 saddr @pods6 accept": nft_rule.source_in(6, "pods6") + nft_rule.ACCEPT,
    "ip6 daddr @pods6 accept": nft_rule.destination_in(6, "pods6") + nft_rule.ACCEPT,
    "iifname @names oifname @names drop": nft_rule.input_interface_in("names")
    + nft_rule.output_interface_in("names")
    + nft_rule.DROP,
    "iifname . oifname @pairs return": nft_rule.interface_pair_in("pairs") + nft_rule.RETURN,
    "ct state established,related accept": nft_rule.established_or_related() + nft_rule.ACCEPT,
}


@pytest.mark.parametrize("kind", SETS)
def test_sets_are_those_of_the_tool(netfilter, host, kind):
    """A set and an element made here are listed exactly as those that `nft` made from text, comments included."""
    own, key, text = SETS[kind]
    element = f'{text} comment "an element"'
    host.run(
        "nft", f'add table inet t; add set inet t s {{ type {kind}; comment "a set"; elements = {{ {element} }}; }}'
    )
    theirs, (found,) = nft_rules(host), nft_set.list_elements(netfilter, own)
    assert found == Element(key, nft_rule.comment_userdata("an element"))
    assert nft_set.get_key_matches(netfilter, own) == [True]
    host.run("nft", "flush", "ruleset")
    commented = Set(own.table, own.name, own.key, "a set")
    nft.change(
        netfilter, nft.table_request(TABLE), nft_set.set_request(commented), *nft_set.add_element_requests(own, [found])
    )
    assert nft_rules(host) == theirs
    assert f"type {kind}" in "".join(theirs)
    assert nft_set.list_elements(netfilter, own) == [found]
    nft.change(netfilter, *nft_set.delete_element_requests(own, [key]))
    assert nft_set.list_elements(netfilter, own) == []


def test_a_set_of_another_key_has_no_elements_of_ours(netfilter, host):
    """What somebody keeps in a set of our name, but with a key of another size, is passed over."""
    host.run("nft", "add table inet t; add set inet t s { type inet_service; elements = { 80 }; }")
    assert nft_set.list_elements(netfilter, OWN) == []
    assert nft_set.get_key_matches(netfilter, OWN) == [False]


@pytest.mark.parametrize("text", RULES)
def test_rules_with_sets_are_those_of_the_tool(netfilter, host, text):
    """A rule that refers to a set is the same bytes in the kernel and in the listing as the tool's."""
    sets = (
        Set(TABLE, "pods4", (IPV4_ADDRESS,)),
        Set(TABLE, "pods6", (IPV6_ADDRESS,)),
        Set(TABLE, "names", (INTERFACE_NAME,)),
        Set(TABLE, "pairs", (INTERFACE_NAME, INTERFACE_NAME)),
    )
    nft.change(netfilter, nft.table_request(TABLE), *map(nft_set.set_request, sets), nft.chain_request(CHAIN))
    host.run("nft", "add", "rule", "inet", "t", "c", text)
    nft.change(netfilter, nft.rule_request(CHAIN, RULES[text]))
    theirs, ours = nft.list_rules(netfilter, CHAIN)
    assert ours.expressions == theirs.expressions
    assert nft_rule.is_same_rule(RULES[text], theirs.expressions)
    assert [line.strip() for line in nft_rules(host)].count(text) == 2


def test_many_elements(netfilter):
    """Two thousand elements are added, listed, found by what stands in them, and deleted, in one transaction each."""
    elements = [
        Element((10 << 24 | number).to_bytes(4, "big"), nft_rule.comment_userdata(f"number {number} " + "x" * 100))
        for number in range(2000)
    ]
    nft.change(
        netfilter, nft.table_request(TABLE), nft_set.set_request(OWN), *nft_set.add_element_requests(OWN, elements)
    )
    assert sorted(nft_set.list_elements(netfilter, OWN)) == elements
    assert nft_set.list_elements(netfilter, OWN, nft_set.byte_filter([b"number 77 "])) == [elements[77]]
    nft.change(netfilter, *nft_set.delete_element_requests(OWN, (element.key for element in elements)))
    assert nft_set.list_elements(netfilter, OWN) == []


def test_an_element_is_replaced_in_one_transaction(netfilter):
    """An element that is added again stays as it is; deleted and added at once it has the new comment."""
    old, new = Element(ONE, nft_rule.comment_userdata("old")), Element(ONE, nft_rule.comment_userdata("new"))
    nft.change(netfilter, nft.table_request(TABLE), nft_set.set_request(OWN), *nft_set.add_element_requests(OWN, [old]))
    nft.change(netfilter, *nft_set.add_element_requests(OWN, [new]))
    assert nft_set.list_elements(netfilter, OWN) == [old]
    nft.change(netfilter, *nft_set.delete_element_requests(OWN, [ONE]), *nft_set.add_element_requests(OWN, [new]))
    assert nft_set.list_elements(netfilter, OWN) == [new]


def test_what_is_not_there(netfilter):
    """A set that is not there has no elements and is None; deleting an absent element is an error (ENOENT)."""
    assert nft_set.list_elements(netfilter, OWN) == []
    assert nft_set.get_key_matches(netfilter, OWN) == [None]
    nft.change(netfilter, nft.table_request(TABLE), nft_set.set_request(OWN))
    with pytest.raises(KernelError) as caught:
        nft.change(netfilter, *nft_set.delete_element_requests(OWN, [ONE]))
    assert (caught.value.description, caught.value.errno) == ("delete from set t s", errno.ENOENT)
    assert nft_set.get_key_matches(netfilter, Set(TABLE, "s", (IPV6_ADDRESS,))) == [False]


def test_a_change_is_made_for_what_was_seen(netfilter, host):
    """When something else was changed since the look nothing is changed, and it is looked again, until it may be."""
    with Netns(host.path) as namespace, entered(namespace):
        other = nft.open_socket()
    seen = []

    def attempt(others):
        def tried(generation):
            seen.append(generation)
            if len(seen) <= others:
                nft.change(other, nft.table_request(Table(nft.INET, f"other{others}-{len(seen)}")))
            nft.change(netfilter, nft.table_request(Table(nft.INET, f"ours{len(seen)}")), generation=generation)

        return tried

    with other:
        nft.retry_with_generation(netfilter, attempt(3))
        assert len(set(seen)) == 4
        assert host.run("nft", "list", "tables").count("ours") == 1
        seen.clear()
        nft.retry_with_generation(netfilter, attempt(1000))
        assert (seen[-1], 0 in seen[:-1], len(set(seen)) == len(seen)) == (0, False, True)
        with pytest.raises(KernelError, match="list of tables"):
            nft.retry_with_generation(netfilter, lambda generation: refused())


def refused():
    """Fails as the kernel does for good."""
    raise KernelError("list of tables", errno.EPERM)
