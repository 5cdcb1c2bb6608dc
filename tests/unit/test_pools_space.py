"""The space: pools, their blocks and addresses; a space that could give an address twice is refused.

The last tests are about changes: no address is ever in two blocks.
"""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.pools.space import format_space, parse_space
from agent.pools.space_change import check


def space(*pools, epoch="e1"):
    return parse_space({"epoch": epoch, "pools": list(pools)})


def pool(name="default", cidrs=("10.22.0.0/24",), **keys):
    return {"name": name, "cidrs": list(cidrs), **keys}


def ranges(one, block):
    return [f"{first}-{last}" for first, last in one.ranges(ip_network(block))]


def test_blocks_have_numbers():
    """The blocks of all CIDRs of an IP version are numbered one after another, draining CIDRs left out."""
    one = space(pool(cidrs=("10.22.0.0/24", "10.23.0.0/25", "fd00::/120"), draining=["10.22.0.0/24"])).pools[0]
    assert [str(one.block(4, number)) for number in range(one.count_blocks(4))] == ["10.23.0.0/26", "10.23.0.64/26"]
    assert [str(one.block(6, number)) for number in (0, 3)] == ["fd00::/122", "fd00::c0/122"]
    assert one.versions == (4, 6)
    with pytest.raises(IndexError):
        one.block(4, 2)
    assert one.is_draining(ip_network("10.22.0.64/26"))
    assert not one.is_draining(ip_network("10.23.0.64/26"))


def test_routed_blocks_are_subnets():
    """A routed block is a subnet: no pod gets its first, its last, or an excluded address."""
    one = space(pool(excluded=["10.22.0.0/28", "10.22.0.40/30"])).pools[0]
    assert ranges(one, "10.22.0.0/26") == ["10.22.0.16-10.22.0.39", "10.22.0.44-10.22.0.62"]
    assert ranges(one, "10.22.0.64/26") == ["10.22.0.65-10.22.0.126"]
    assert one.size_of(ip_network("10.22.0.64/26")) == 62
    assert str(one.subnet_of(ip_network("10.22.0.64/26"))) == "10.22.0.64/26"


def test_segments_are_one_subnet():
    """In a segment the CIDR is the subnet: its network, broadcast and gateway addresses are never a pod's."""
    one = space(pool(mode="segment", cidrs=("192.168.0.0/25",), gateways=["192.168.0.9"])).pools[0]
    assert ranges(one, "192.168.0.0/26") == ["192.168.0.1-192.168.0.8", "192.168.0.10-192.168.0.63"]
    assert ranges(one, "192.168.0.64/26") == ["192.168.0.64-192.168.0.126"]
    assert str(one.subnet_of(ip_network("192.168.0.64/26"))) == "192.168.0.0/25"
    default = space(pool(mode="segment")).pools[0]
    assert default.gateway_of(default.cidrs[0]) == ip_address("10.22.0.1")


@given(st.lists(st.integers(0, 255), max_size=6), st.sampled_from(["routed", "segment"]))
def test_ranges_are_exactly_the_other_addresses(excluded, mode):
    """Whatever is excluded, the ranges of all blocks have each other address once, in order."""
    texts = [f"10.22.0.{number}/32" for number in excluded]
    one = space(pool(mode=mode, excluded=texts)).pools[0]
    for number in range(4):
        block = one.block(4, number)
        values = [value for first, last in one.ranges(block) for value in range(int(first), int(last) + 1)]
        subnet = one.subnet_of(block)
        edges = {subnet[0], subnet[-1]} | {ip_address(f"10.22.0.{number}") for number in excluded}
        if mode == "segment":
            edges.add(subnet[1])
        assert values == [int(address) for address in block if address not in edges]
        assert one.size_of(block) == len(values)


def test_a_space_is_read_as_it_is_written():
    """A space is the same after it was written and read."""
    keys = {"mode": "segment", "gateways": ["10.22.0.9"], "namespaces": ["a", "b"], "excluded": ["10.22.0.0/30"]}
    one = space(pool(**keys, blockPrefixLengths={"ipv4": 28}), pool("other", ("fd00::/112",)))
    assert parse_space(format_space(one)) == one


@pytest.mark.parametrize(
    ("pools", "text"),
    [
        ([pool(cidrs=())], 'has no "cidrs"'),
        ([pool(cidrs=("10.22.0.0/27",))], "smaller than one block"),
        ([pool(cidrs=("10.22.0.1/24",))], "host bits"),
        ([pool(cidrs=("127.0.0.0/8",))], "special addresses"),
        ([pool(cidrs=("fd00::/64",))], "more than 2^24 blocks"),
        ([pool(blockPrefixLengths={"ipv4": 31})], "has not 4 to 65,536 addresses"),
        ([pool(blockPrefixLengths={"ipv4": "26"})], "is not a number"),
        ([pool(blockPrefixLengths={"v4": 26})], 'not an object with "ipv4"'),
        ([pool(), pool("other", ("10.22.0.128/25",))], "of pool other overlaps 10.22.0.0/24 of pool default"),
        ([pool(), pool()], "two pools have the name default"),
        ([pool(namespaces=["a"]), pool("b", ("10.9.0.0/24",), namespaces=["a"])], "both have the namespace a"),
        ([pool("Default")], "is not a valid name of a pool"),
        ([pool(mode="l2")], 'neither "routed" nor "segment"'),
        ([pool(gateways=["10.22.0.1"])], "no CIDR of a pool of the mode"),
        ([pool(draining=["10.99.0.0/24"])], "contains none of the"),
        ([pool(blocks=4)], "unknown key 'blocks'"),
        ([pool(excluded="10.22.0.0/28")], "is not a list of texts"),
        (["default"], "not a list of objects"),
    ],
)
def test_wrong_spaces_are_refused(pools, text):
    """A space that is not valid is refused with the pool, the key and the cause."""
    with pytest.raises(ValueError, match=r".") as caught:
        parse_space({"epoch": "", "pools": pools})
    assert text in str(caught.value)


@pytest.mark.parametrize("epoch", ["e<1", "\u00e9", 'e"1', "e" * 65, 7])
def test_epochs_that_blocks_and_entries_cannot_have_are_refused(epoch):
    """An epoch that an agent could not write into its entry, and read again, makes the space invalid."""
    with pytest.raises(ValueError, match=r'"epoch" .* is not a text'):
        parse_space({"epoch": epoch, "pools": []})


POOL = {"name": "default", "cidrs": ["10.22.0.0/24"]}
SEGMENT = {"name": "lan", "mode": "segment", "cidrs": ["192.168.0.0/24"]}
DRAINING = {**POOL, "draining": ["10.22.0.0/24"]}


def changed(before, after, *blocks):
    """Checks a change between two lists of pools, with claimed blocks."""
    old, new = (parse_space({"epoch": "e1", "pools": pools}) for pools in (before, after))
    check(old, new, [ip_network(block) for block in blocks])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([POOL], [POOL]),
        ([], [POOL]),
        ([POOL], [DRAINING]),
        ([POOL], [{**POOL, "excluded": ["10.22.0.0/28"], "namespaces": ["one"]}]),
        ([POOL], [{**POOL, "cidrs": ["10.22.0.0/16"]}]),
        ([POOL], [{**POOL, "cidrs": ["10.22.0.0/24", "10.23.0.0/24"]}]),
        ([POOL], [{**POOL, "cidrs": ["10.22.0.0/25", "10.22.0.128/25"]}]),
        ([SEGMENT], [{**SEGMENT, "cidrs": ["192.168.0.0/23"]}]),
        ([{**SEGMENT, "excluded": ["192.168.0.254/32"]}], [{**SEGMENT, "gateways": ["192.168.0.254"]}]),
    ],
)
def test_changes_that_keep_the_blocks_are_accepted(before, after):
    """A change after which each block is a block of the same pool is accepted while blocks are claimed."""
    changed(before, after, *(["10.22.0.64/26"] if before == [POOL] else []))


@pytest.mark.parametrize(
    "after",
    [
        [],
        [{**POOL, "name": "other"}],
        [{**POOL, "cidrs": ["10.22.0.0/25"]}],
        [{**POOL, "blockPrefixLengths": {"ipv4": 28}}],
        [{**POOL, "mode": "segment"}],
    ],
)
def test_blocks_end_only_after_draining(after):
    """The blocks of a CIDR end after it was draining, and when none is claimed: one may be claimed at this moment."""
    with pytest.raises(ValueError, match="which agents may be claiming now"):
        changed([POOL], after)
    with pytest.raises(ValueError, match=r"loses block 10.22.0.192/26"):
        changed([DRAINING], after, "10.22.0.192/26")
    changed([DRAINING], after)


def test_claimed_block_of_no_pool_keeps_its_addresses():
    """A pool whose blocks would overlap a claimed block of another size is refused."""
    with pytest.raises(ValueError, match=r"block 10.22.0.0/26.* overlaps pool default"):
        changed([], [{**POOL, "blockPrefixLengths": {"ipv4": 28}}], "10.22.0.0/26")
    changed([], [POOL], "10.22.0.0/26")


@pytest.mark.parametrize(
    "after", [{**SEGMENT, "gateways": ["192.168.0.254"]}, {**SEGMENT, "cidrs": ["192.168.0.0/25", "192.168.0.128/25"]}]
)
def test_address_of_a_pod_never_becomes_a_gateway(after):
    """In a segment, an address that a pod may have does not become the gateway, network or broadcast address."""
    with pytest.raises(ValueError, match="a pod may have it"):
        changed([SEGMENT], [after])
