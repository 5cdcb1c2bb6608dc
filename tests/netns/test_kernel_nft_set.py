"""Sets of nftables over netlink on the real kernel (kernel.netfilter.nft_set): equal to the `nft` tool's."""

import errno
from ipaddress import ip_address

import pytest

from kernel.errors import KernelError
from kernel.netfilter import nft, nft_rule, nft_set
from kernel.netfilter.nft import Table
from kernel.netfilter.nft_set import INTERFACE_NAME, IPV4_ADDRESS, IPV6_ADDRESS, Element, Set, interface_key
from tests.support.netstate import nft_rules

pytestmark = pytest.mark.needs("nft_inet")

TABLE = Table(nft.INET, "t")
ONE = ip_address("10.22.0.1").packed
ONE6 = ip_address("fd00::1").packed
CNI0 = interface_key("cni0")
SETS = {  # the types of a set's key, the key of an element, and the tool's text of it
    "ipv4_addr": ((IPV4_ADDRESS,), ONE, "10.22.0.1"),
    "ipv6_addr": ((IPV6_ADDRESS,), ONE6, "fd00::1"),
    "ifname": ((INTERFACE_NAME,), interface_key("fifteen-letters"), '"fifteen-letters"'),
    "ifname . ifname": ((INTERFACE_NAME, INTERFACE_NAME), interface_key("cni0", "a.b"), '"cni0" . "a.b"'),
    "ifname . ipv4_addr": ((INTERFACE_NAME, IPV4_ADDRESS), CNI0 + ONE, '"cni0" . 10.22.0.1'),
    "ifname . ipv6_addr": ((INTERFACE_NAME, IPV6_ADDRESS), CNI0 + ONE6, '"cni0" . fd00::1'),
}
ADDRESSES = Set(TABLE, "s", (IPV4_ADDRESS,))


def create(new_set):
    """Returns the requests that create the table and a set."""
    return nft.table_request(TABLE), nft_set.set_request(new_set)


@pytest.mark.parametrize("kind", SETS)
def test_sets_are_those_of_the_tool(netfilter, host, kind):
    """A set and an element of this module are listed like those that `nft` creates from text, with comments."""
    types, key, text = SETS[kind]
    set_of_kind, element = Set(TABLE, "s", types, "a set"), f'{text} comment "an element"'
    definition = f'type {kind}; comment "a set"; elements = {{ {element} }};'
    host.run("nft", f"add table inet t; add set inet t s {{ {definition} }}")
    listing_of_tool, (existing,) = nft_rules(host), nft_set.list_elements(netfilter, set_of_kind)
    assert existing == Element(key, nft_rule.comment_userdata("an element"))
    assert nft_set.get_key_matches(netfilter, set_of_kind) == [True]
    host.run("nft", "flush", "ruleset")
    nft.change(netfilter, *create(set_of_kind), *nft_set.add_element_requests(set_of_kind, [existing]))
    assert nft_rules(host) == listing_of_tool
    assert f"type {kind}" in "".join(listing_of_tool)
    assert nft_set.list_elements(netfilter, set_of_kind) == [existing]
    nft.change(netfilter, *nft_set.delete_element_requests(set_of_kind, [key]))
    assert nft_set.list_elements(netfilter, set_of_kind) == []


def test_elements_of_another_key_size_are_ignored(netfilter, host):
    """Elements of a set with the same name but a key of another size are ignored."""
    host.run("nft", "add table inet t; add set inet t s { type inet_service; elements = { 80 }; }")
    assert nft_set.list_elements(netfilter, ADDRESSES) == []
    assert nft_set.get_key_matches(netfilter, ADDRESSES) == [False]


def test_many_elements(netfilter):
    """Two thousand elements are added, listed, filtered by their bytes and deleted, in one transaction each."""
    elements = [
        Element((10 << 24 | number).to_bytes(4, "big"), nft_rule.comment_userdata(f"number {number} " + "x" * 100))
        for number in range(2000)
    ]
    nft.change(netfilter, *create(ADDRESSES), *nft_set.add_element_requests(ADDRESSES, elements))
    assert sorted(nft_set.list_elements(netfilter, ADDRESSES)) == elements
    assert nft_set.list_elements(netfilter, ADDRESSES, nft_set.byte_filter([b"number 77 "])) == [elements[77]]
    nft.change(netfilter, *nft_set.delete_element_requests(ADDRESSES, (element.key for element in elements)))
    assert nft_set.list_elements(netfilter, ADDRESSES) == []


def test_missing_sets_and_elements(netfilter):
    """A missing set has no elements and is None; deleting a missing element is an error (ENOENT)."""
    assert nft_set.list_elements(netfilter, ADDRESSES) == []
    assert nft_set.get_key_matches(netfilter, ADDRESSES) == [None]
    nft.change(netfilter, *create(ADDRESSES))
    with pytest.raises(KernelError) as caught:
        nft.change(netfilter, *nft_set.delete_element_requests(ADDRESSES, [ONE]))
    assert (caught.value.description, caught.value.errno) == ("delete from set t s", errno.ENOENT)
    assert nft_set.get_key_matches(netfilter, Set(TABLE, "s", (IPV6_ADDRESS,))) == [False]


def test_a_change_is_refused_after_another_change(netfilter, host):
    """If the ruleset has changed since it was read, the change is refused and repeated, finally without that check."""
    with host.entered():
        other = nft.open_socket()
    generations = []

    def attempt(interruptions):
        def try_change(generation):
            generations.append(generation)
            if len(generations) <= interruptions:
                nft.change(other, nft.table_request(Table(nft.INET, f"other{interruptions}-{len(generations)}")))
            nft.change(netfilter, nft.table_request(Table(nft.INET, f"ours{len(generations)}")), generation=generation)

        return try_change

    with other:
        nft.retry_with_generation(netfilter, attempt(3))
        assert len(set(generations)) == 4
        assert host.run("nft", "list", "tables").count("ours") == 1
        generations.clear()
        nft.retry_with_generation(netfilter, attempt(1000))
        assert (generations[-1], 0 in generations[:-1], len(set(generations)) == len(generations)) == (0, False, True)
        with pytest.raises(KernelError, match="list of tables"):
            nft.retry_with_generation(netfilter, refused)


def refused(_generation):
    """Raises an error that is not temporary."""
    raise KernelError("list of tables", errno.EPERM)
