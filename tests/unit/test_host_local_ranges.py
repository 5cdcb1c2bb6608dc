"""host-local's ranges: their addresses, and the order of allocation."""

from ipaddress import IPv4Address, IPv4Network, ip_address, ip_network
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ipam.host_local import ranges
from ipam.host_local.ranges import Range, RangeSet, address, first_overlap, overlap

SUBNETS = ("10.1.0.0/29", "10.2.0.0/29", "10.3.0.0/29")


def make_range(subnet, first, last, gateway="192.0.2.1"):
    network = ip_network(subnet)
    base = int(network.network_address)
    return Range(network, base + first, base + last, ip_address(gateway))


def reference_order(range_set, last):
    """Returns the order of the reference plugin's RangeIter, which steps until the first address comes again."""
    at = next((i for i, item in enumerate(range_set.ranges) if last and item.first <= int(last) <= item.last), None)
    start: int | None = None
    number, current = (at, int(last)) if at is not None else (0, None)
    order: list[int] = []
    while True:
        item = range_set.ranges[number]
        if current is None:
            current = item.first
        elif current == item.last:
            number = (number + 1) % len(range_set.ranges)
            item = range_set.ranges[number]
            current = item.first
        else:
            current += 1
        if current == start:
            return order
        start = current if start is None else start
        if current != int(item.gateway):
            order.append(current)


def test_candidates_of_a_large_range_are_computed_lazily():
    """The first candidates of an IPv6 range come at once, and their names are compressed."""
    pool = RangeSet((make_range("2001:db8::/64", 1, 2**64 - 1, "2001:db8::1"),))
    for last, first in ((None, "2001:db8::2"), (int(ip_address("2001:db8::ff")), "2001:db8::100")):
        assert str(address(6, next(iter(pool.candidates(last)))[0])) == first
    assert pool.size == 2**64 - 2


BOUNDS = st.tuples(st.integers(0, 7), st.integers(0, 7)).map(sorted)
POOLS = st.lists(st.tuples(BOUNDS, st.integers(0, 7)), min_size=1, max_size=3).map(
    lambda items: RangeSet(
        tuple(
            make_range(subnet, first, last, str(ip_network(subnet)[gateway]))
            for subnet, ((first, last), gateway) in zip(SUBNETS, items, strict=False)
        )
    )
)


SUBNET = st.sampled_from(SUBNETS)


@given(pool=POOLS, last=st.none() | st.builds(lambda subnet, n: ip_network(subnet)[n], SUBNET, st.integers(0, 7)))
@example(RangeSet((make_range(SUBNETS[0], 1, 3, "10.1.0.1"), make_range(SUBNETS[1], 2, 3))), None)
def test_order_equals_the_references(pool, last):
    """The order equals the reference's for any set and last address: from the start, or after the last, round robin."""
    order = [value for value, _ in pool.candidates(last and int(last))]
    assert len(order) == len(set(order)) == pool.size
    assert order == reference_order(pool, last)
    assert all(pool.holds(value) for value in order)


def test_range_of_includes_the_gateway_and_holds_excludes_it():
    """A set returns the range of an address, including its gateway, which it cannot allocate."""
    pool = RangeSet((make_range("10.1.0.0/29", 1, 3, "10.1.0.1"), make_range("10.2.0.0/29", 2, 3)))
    assert pool.range_of(ip_address("10.1.0.1")) == pool.ranges[0]
    assert pool.range_of(ip_address("10.2.0.3")) == pool.ranges[1]
    assert pool.range_of(ip_address("10.2.0.1")) is None
    assert pool.range_of(ip_address("::1")) is None
    assert [pool.holds(int(ip_address(f"10.1.0.{n}"))) for n in range(5)] == [False, False, True, True, False]
    assert (pool.size, str(pool)) == (4, "10.1.0.1-10.1.0.3,10.2.0.2-10.2.0.3")


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        (make_range("10.1.0.0/29", 1, 3), make_range("10.1.0.0/29", 3, 6), True),
        (make_range("10.1.0.0/29", 1, 3), make_range("10.1.0.0/29", 4, 6), False),
        (make_range("10.1.0.0/29", 1, 6), make_range("10.1.0.0/29", 3, 4), True),
        (make_range("10.1.0.0/29", 1, 6), make_range("::a01:0/125", 1, 6), False),
    ],
)
def test_ranges_overlap_with_an_address_in_common(one, two, expected):
    """Two ranges overlap if they have an address in common; families never do."""
    assert overlap(one, two) is overlap(two, one) is expected
    assert RangeSet((one,)).overlaps(RangeSet((two,))) is expected


@given(pool=POOLS, many=st.integers(1, 9))
def test_samples_are_addresses_of_the_set(pool, many):
    """Samples are different addresses that the set can allocate, and as many as requested in a large range."""
    some = list(pool.samples(many))
    assert all(map(pool.holds, some))
    assert len(some) == len(set(some)) <= many * len(pool.ranges)
    assert len(list(RangeSet((make_range("10.0.0.0/8", 1, 2**24 - 2),)).samples(many))) == many


@given(st.lists(st.tuples(st.integers(0, 250), st.integers(0, 20)), max_size=12))
def test_first_overlap_equals_that_of_all_pairs(spans):
    """The first overlapping range is the first one of all pairs in the order of their comparison."""
    subnet = IPv4Network("10.0.0.0/16")
    items = [Range(subnet, first, first + more, IPv4Address("10.0.0.1")) for first, more in spans]
    pairs = [i for (i, one), (_, two) in combinations(enumerate(items), 2) if overlap(one, two)]
    assert first_overlap(items) == (pairs[0] if pairs else None)


@given(st.lists(st.integers(0, 30), max_size=3, unique=True), st.integers(0, 2000))
def test_membership_test_equals_holds(blocks, value):
    """The faster test for thousands of addresses has the same answers."""
    items = [Range(IPv4Network("10.0.0.0/16"), 64 * n, 64 * n + 40, IPv4Address(64 * n + 7)) for n in blocks]
    one = RangeSet(tuple(items))
    assert one.membership_test()(value) == one.holds(value)


def test_first_overlap_needs_linear_comparisons(monkeypatch):
    """An overlap among n ranges is found with n comparisons, not n squared."""
    pairs: list[tuple[Range, Range]] = []

    def record_overlap(one, two):
        pairs.append((one, two))
        return overlap(one, two)

    monkeypatch.setattr(ranges, "overlap", record_overlap)
    items = [make_range(f"10.{n >> 8}.{n & 255}.0/24", 1, 254) for n in range(500)]
    assert first_overlap(items) is None
    assert len(pairs) < 500
