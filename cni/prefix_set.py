"""Sets of networks: which of them contain a network, and which lie inside it, without a pass over all.

This module is pure. A network is a number here: its first address, shifted by eight bits, and the length of its prefix;
an address is the network that has only this address. Two networks are disjoint, or one contains the other. So in the
order of their numbers those inside a network follow it directly.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network

from cni.address import Address, Network

_LENGTH = 0xFF  # the bits of the length of the prefix
WIDTHS = {4: 32, 6: 128}


def number_of(where: Address | Network) -> int:
    """Returns the number of a network or an address."""
    if isinstance(where, (IPv4Network, IPv6Network)):
        return int(where.network_address) << 8 | where.prefixlen
    return int(where) << 8 | where.max_prefixlen


def network_of(version: int, number: int) -> Network:
    """Returns the network of a number."""
    value = number >> 8, number & _LENGTH
    return IPv4Network(value) if version == 4 else IPv6Network(value)


def common_bits(version: int, one: int, other: int) -> int:
    """Returns how many leading bits two networks share, at most the length of the shorter prefix."""
    bits = WIDTHS[version] - ((one ^ other) >> 8).bit_length()
    return min(bits, one & _LENGTH, other & _LENGTH)


def sibling_of(version: int, number: int) -> int:
    """Returns the other half of the next larger network."""
    return number ^ 1 << WIDTHS[version] - (number & _LENGTH) + 8


def parent_of(version: int, number: int) -> int:
    """Returns the next larger network."""
    return (number & ~(1 << WIDTHS[version] - (number & _LENGTH) + 8)) - 1


class PrefixSet:
    """Keeps networks of one IP version, as numbers, in order."""

    def __init__(self, version: int) -> None:
        self._width = WIDTHS[version]
        self._order: list[int] = []
        self._lengths: Counter[int] = Counter()

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        position = bisect_left(self._order, number)  # a set would double the memory
        return position < len(self._order) and self._order[position] == number

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def add(self, number: int) -> None:
        """Adds a network, which must not be there."""
        insort(self._order, number)
        self._lengths[number & _LENGTH] += 1

    def remove(self, number: int) -> None:
        """Removes a network, which must be there."""
        del self._order[bisect_left(self._order, number)]
        length = number & _LENGTH
        self._lengths[length] -= 1
        if not self._lengths[length]:
            del self._lengths[length]

    def supernets(self, number: int) -> Iterator[int]:
        """Yields the networks that contain a network, itself included if it is known."""
        first, length = number >> 8, number & _LENGTH
        for shorter in self._lengths:
            if shorter <= length:
                shift = self._width - shorter
                if (candidate := (first >> shift << shift) << 8 | shorter) in self:
                    yield candidate

    def subnets(self, number: int) -> Iterator[int]:
        """Yields the networks that a network contains, itself included if it is known."""
        end = (number >> 8) + (1 << self._width - (number & _LENGTH)) << 8
        position = bisect_left(self._order, number)
        while position < len(self._order) and self._order[position] < end:
            yield self._order[position]
            position += 1
