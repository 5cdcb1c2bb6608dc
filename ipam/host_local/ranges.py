"""Ranges: the addresses that a network can allocate, and their order.

One rule: pure arithmetic. In a range an address is an int, since a search may test thousands; of each only the text is
computed, which is the name of its reservation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address
from socket import AF_INET, inet_ntop
from typing import NamedTuple

from cni.address import Address, Network
from process.values import dataclass


class Range(NamedTuple):
    """The addresses `first` to `last` of one subnet, both inclusive; `gateway` is never allocated."""

    subnet: Network
    first: int
    last: int
    gateway: Address

    def __str__(self) -> str:
        version = self.subnet.version
        return f"{address(version, self.first)}-{address(version, self.last)}"

    def gateway_value(self) -> int | None:
        """Returns the gateway if it lies in the range, None otherwise."""
        if self.gateway.version != self.subnet.version or not self.first <= int(self.gateway) <= self.last:
            return None
        return int(self.gateway)


@dataclass(frozen=True)
class RangeSet:
    """A set of ranges of one family, from which an attachment gets one address; str() is the reference's text."""

    ranges: tuple[Range, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.ranges))

    @property
    def version(self) -> int:
        """The address family, 4 or 6."""
        return self.ranges[0].subnet.version

    @property
    def size(self) -> int:
        """The number of addresses that can be allocated."""
        return sum(item.last - item.first + 1 - (item.gateway_value() is not None) for item in self.ranges)

    def range_of(self, address: Address) -> Range | None:
        """Returns the range that contains `address`, which may be its gateway, or None."""
        return self._range_of(int(address)) if address.version == self.version else None

    def _range_of(self, value: int) -> Range | None:
        for item in self.ranges:
            if item.first <= value <= item.last:
                return item
        return None

    def holds(self, value: int) -> bool:
        """Returns whether the set can allocate the address `value` of its own family."""
        return any(item.first <= value <= item.last and value != item.gateway_value() for item in self.ranges)

    def membership_test(self) -> Callable[[int], bool]:
        """Returns a faster `holds` for thousands of addresses, which compares each with one range only."""
        ordered = sorted((item.first, item.last, item.gateway_value()) for item in self.ranges)
        firsts = [first for first, _, _ in ordered]

        def holds(value: int) -> bool:
            index = bisect_right(firsts, value) - 1
            return index >= 0 and value <= ordered[index][1] and value != ordered[index][2]

        return holds

    def samples(self, count: int) -> Iterator[int]:
        """Yields addresses spread over the set, about `count` of each range."""
        for item in self.ranges:
            gateway = item.gateway_value()
            for value in range(item.first, item.last + 1, (item.last - item.first) // count + 1):
                if value != gateway:
                    yield value

    def candidates(self, last: int | None) -> Iterator[tuple[int, Range]]:
        """Yields every address once, beginning after `last` and ending with it, as the reference plugin's RangeIter.

        Begins at the first range if `last` is None or not in the set. Skips gateways.
        """
        for item, first, end in self._round(last):
            gateway = item.gateway_value()
            for value in range(first, end + 1):
                if value != gateway:
                    yield value, item

    def _round(self, last: int | None) -> list[tuple[Range, int, int]]:
        """Returns the ranges in round-robin order, beginning after `last`; the range of `last` is split in two."""
        start = None if last is None else self._range_of(last)
        if start is None or last is None:
            return [(item, item.first, item.last) for item in self.ranges]
        index = self.ranges.index(start)
        others = self.ranges[index + 1 :] + self.ranges[:index]
        return [
            (start, last + 1, start.last),
            *((item, item.first, item.last) for item in others),
            (start, start.first, last),
        ]

    def overlaps(self, other: RangeSet) -> bool:
        """Returns whether the two sets have an address in common."""
        return any(overlap(one, two) for one in self.ranges for two in other.ranges)


def first_overlap(ranges: Sequence[Range]) -> int | None:
    """Returns the index of the first range that has an address in common with another range, None if no range has.

    n ranges need n comparisons: among ranges sorted by first address, a range overlaps an earlier one only if it
    overlaps the earlier one with the highest last address.
    """
    overlapping: list[int] = []
    order = sorted(range(len(ranges)), key=lambda index: (ranges[index].subnet.version, ranges[index].first))
    furthest = -1
    for index in order:
        if furthest >= 0 and overlap(ranges[furthest], ranges[index]):
            overlapping += (furthest, index)
            if ranges[index].last <= ranges[furthest].last:
                continue
        furthest = index
    return min(overlapping, default=None)


def overlap(one: Range, two: Range) -> bool:
    """Returns whether two ranges have an address in common."""
    return one.subnet.version == two.subnet.version and one.first <= two.last and two.first <= one.last


def address(version: int, value: int) -> Address:
    """Returns the address `value` of family 4 or 6."""
    return IPv4Address(value) if version == 4 else IPv6Address(value)


def address_text(version: int, value: int) -> str:
    """Returns the text of the address `value` of family 4 or 6, which is the name of its reservation."""
    return inet_ntop(AF_INET, value.to_bytes(4)) if version == 4 else str(IPv6Address(value))
