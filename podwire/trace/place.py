"""Places: the network namespaces that a packet passes. Pods, the node, and "outside".

Nothing is started in a pod: sockets are opened inside its namespace, and used from here.
"""

from __future__ import annotations

from cni.address import Address
from kernel import neighbour
from kernel.netns import Netns
from podwire.facts.network import NetworkFacts

POD, NODE, EXTERNAL = "pod", "node", "outside"


class Place(NetworkFacts):
    """A network namespace: `kind` is POD, NODE or EXTERNAL; `netns` is None for the node. A context manager."""

    def __init__(self, kind: str, name: str, netns: Netns | None = None) -> None:
        super().__init__(netns)
        self.kind = kind
        self.name = name

    def __str__(self) -> str:
        return self.name

    def neighbour(self, index: int, of: Address) -> neighbour.NeighbourEntry | None:
        """Returns the present neighbour entry of an address on an interface, None without one."""
        entries = neighbour.list_entries(self.socket)
        return next((one for one in entries if (one.ifindex, one.address) == (index, of) and not one.is_proxy), None)
