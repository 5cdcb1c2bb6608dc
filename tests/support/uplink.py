"""A host with an uplink, on which macvlan and similar interfaces are built, and a machine at its other end.

The uplink is one end of a veth; the other end, in the machine's namespace, represents the wire.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.namespaces import Namespace
from tests.support.publishing import disable_dad

UPLINK, WIRE = "up0", "wire0"
SUBNETS = ("10.25.0.0/24", "fd00:25::/64")
HOST, NEIGHBOUR = ("10.25.0.250/24", "fd00:25::250/64"), ("10.25.0.251/24", "fd00:25::251/64")  # above host-local's


def connect(host: Namespace, neighbour: Namespace, addresses: Sequence[str] = NEIGHBOUR) -> None:
    """Connects the host's uplink with a machine that has `addresses`; the uplink has none."""
    disable_dad(host)
    disable_dad(neighbour)
    host.ip("link", "add", UPLINK, "type", "veth", "peer", "name", WIRE, "netns", neighbour.name)
    host.ip("link", "set", UPLINK, "up")
    neighbour.ip("link", "set", "lo", "up")
    neighbour.ip("link", "set", WIRE, "up")
    for address in addresses:
        neighbour.ip("address", "add", address, "dev", WIRE)


def ranges(*subnets: str) -> list[list[dict[str, str]]]:
    """Returns host-local's ranges for `subnets`, by default both of SUBNETS."""
    return [[{"subnet": subnet}] for subnet in subnets or SUBNETS]
