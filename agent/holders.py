"""Which node has which pod network, while several Nodes may name the same one.

One rule: a network belongs to the first node that named it, until that Node drops it. So a network that moves to
another node gets its new route by one replacement, whichever of the two Nodes changes first.
"""

from __future__ import annotations

from kernel.protocol_route import Prefix


class Holders:
    """The node of each network, and the nodes that wait for a network of another node."""

    def __init__(self) -> None:
        self._holders: dict[Prefix, str] = {}
        self._waiting: dict[Prefix, list[str]] = {}

    def holder_of(self, network: Prefix) -> str | None:
        """Returns the name of the node that has a network, None without one."""
        return self._holders.get(network)

    def add(self, network: Prefix, name: str) -> None:
        """Adds a network of a node."""
        if self._holders.setdefault(network, name) != name:
            waiting = self._waiting.setdefault(network, [])
            if name not in waiting:
                waiting.append(name)

    def remove(self, network: Prefix, name: str) -> None:
        """Removes a network of a node; the next node that named it has it then."""
        waiting = self._waiting.get(network, [])
        if self._holders.get(network) == name:
            if waiting:
                self._holders[network] = waiting.pop(0)
            else:
                del self._holders[network]
        elif name in waiting:
            waiting.remove(name)
        if not waiting:
            self._waiting.pop(network, None)
