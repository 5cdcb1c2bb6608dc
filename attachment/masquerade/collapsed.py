"""The fewest networks that exactly cover a set of networks; no two of them overlap, which sets would refuse.

One rule: a change costs what is near it, not a pass over all networks. This module is pure; networks are numbers
(cni.prefix_set).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cni.prefix_set import PrefixSet, parent_of, sibling_of


class Collapsed:
    """The networks of one IP version. A network that was added several times is there until it is removed as often."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._counts: Counter[int] = Counter()
        self._sources = PrefixSet(version)
        self.networks = PrefixSet(version)
        self._changed: set[int] = set()

    def change(self, added: Iterable[int], removed: Iterable[int]) -> tuple[set[int], set[int]]:
        """Adds and removes networks; returns those of the collapsed networks that are new, and those that are gone."""
        for number in added:
            self._add(number)
        for number in removed:
            self._remove(number)
        changed, self._changed = self._changed, set()
        new = {number for number in changed if number in self.networks}
        return new, changed - new

    def _add(self, number: int) -> None:
        self._counts[number] += 1
        if self._counts[number] > 1:
            return
        self._sources.add(number)
        if not self._is_covered(number):
            for subnet in list(self.networks.subnets(number)):
                self._toggle(subnet)
            self._merge(number)

    def _remove(self, number: int) -> None:
        self._counts[number] -= 1
        if self._counts[number]:
            return
        del self._counts[number]
        self._sources.remove(number)
        if next(self._sources.supernets(number), None) is not None:
            return
        (whole,) = self.networks.supernets(number)
        self._toggle(whole)
        part = number
        while part != whole:
            self._toggle(sibling_of(self._version, part))
            part = parent_of(self._version, part)
        for subnet in self._sources.subnets(number):
            if not self._is_covered(subnet):
                self._merge(subnet)

    def _is_covered(self, number: int) -> bool:
        return next(self.networks.supernets(number), None) is not None

    def _merge(self, number: int) -> None:
        """Adds a network, as a part of the largest network whose halves are there."""
        while number & 0xFF and (sibling := sibling_of(self._version, number)) in self.networks:
            self._toggle(sibling)
            number = parent_of(self._version, number)
        self._toggle(number)

    def _toggle(self, number: int) -> None:
        """Adds a collapsed network, or removes it."""
        if number in self.networks:
            self.networks.remove(number)
        else:
            self.networks.add(number)
        self._changed ^= {number}
