"""A host with an uplink, on which macvlan and similar interfaces are built, and a machine at its other end.

The uplink is one end of a veth; the other end, in the machine's namespace, represents the wire.
"""

from collections.abc import Sequence
from typing import Any

from tests.support.namespaces import Namespace
from tests.support.netstate import shown
from tests.support.publishing import disable_dad

UPLINK, WIRE = "up0", "wire0"
SUBNETS = ("10.25.0.0/24", "fd00:25::/64")
ROUTED = ("10.26.0.0/24", "fd00:26::/64")  # of pods in ipvlan's modes l3 and l3s
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


def tag(neighbour: Namespace, vlan_id: int) -> None:
    """Moves the addresses of the machine on the wire to its interface in a VLAN."""
    neighbour.ip("address", "flush", "dev", WIRE)
    neighbour.ip("link", "add", "link", WIRE, "name", "tagged", "type", "vlan", "id", str(vlan_id))
    neighbour.ip("link", "set", "tagged", "up")
    for address in NEIGHBOUR:
        neighbour.ip("address", "add", address, "dev", "tagged")


def give_addresses(host: Namespace) -> None:
    """Gives the uplink the node's addresses."""
    for address in HOST:
        host.ip("address", "add", address, "dev", UPLINK)


def route_pods(neighbour: Namespace) -> None:
    """Gives the machine routes to the subnets ROUTED by the node."""
    for subnet, via in zip(ROUTED, HOST, strict=True):
        neighbour.ip("route", "add", subnet, "via", via.partition("/")[0])


def host_link(host: Namespace) -> str:
    """Returns the name of the host link of `hostAccess`."""
    return f"pwha{shown(host, UPLINK)['ifindex']}"


def plugin(kind: str, ipam: dict[str, Any]) -> dict[str, Any]:
    """Returns the configuration of "macvlan", "ipvlan l2", "ipvlan l3" or "ipvlan l3s"; l3 uses ROUTED."""
    name, _, mode = kind.partition(" ")
    if mode in ("l3", "l3s"):
        routes = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
        ipam = {**ipam, "ranges": ranges(*ROUTED), "routes": routes}
    return {"type": name, "master": UPLINK, **({"mode": mode} if mode else {}), "ipam": ipam}


def ranges(*subnets: str) -> list[list[dict[str, str]]]:
    """Returns host-local's ranges for `subnets`, by default both of SUBNETS."""
    return [[{"subnet": subnet}] for subnet in subnets or SUBNETS]
