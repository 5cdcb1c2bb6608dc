"""An index of networks: which of them contain a network, which lie inside it, and which nodes have them. Pure."""

from __future__ import annotations

from cni.prefix_set import PrefixSet


class PrefixIndex(PrefixSet):
    """Keeps networks of one IP version in order, each with the names of the nodes that have it, the first one first."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self._names: dict[int, tuple[str, ...]] = {}

    def __contains__(self, number: object) -> bool:
        return number in self._names

    def names(self, number: int) -> tuple[str, ...]:
        """Returns the names of the nodes that have a network, none if it is unknown."""
        return self._names.get(number, ())

    def add_name(self, number: int, name: tuple[str]) -> None:
        """Adds a network of a node; `name`, a tuple so that the networks of a node can share it, is kept."""
        known = self._names.get(number)
        if known is None:
            self.add(number)
            self._names[number] = name
        elif name[0] not in known:
            self._names[number] = known + name

    def remove_name(self, number: int, name: str) -> None:
        """Removes a network of a node, which must have it."""
        names = tuple(each for each in self._names[number] if each != name)
        if names:
            self._names[number] = names
        else:
            del self._names[number]
            self.remove(number)
