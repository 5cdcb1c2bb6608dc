"""The routes that `hostAccess` creates, on the host to pods and in pods to the host, and the marks of their owners.

The protocol marks a route as podwire's. Two further marks of a route on the host name its owner, an attachment: the
metric is a hash of container ID and interface name; the clamp of the congestion window is a hash of the network's name.
The kernel stores the clamp, but ignores it unless it is locked (ip-route(8), `cwnd`).

The hashes have 32 bits. With 110 attachments of a network on each node, two of them have equal marks on one node of
700,000, and even there DEL with prevResult compares the addresses, too. Two networks have equal marks with probability
2^-32.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha512
from typing import NamedTuple

from cni.address import Address, Network, host_cidr
from cni.conf import Attachment
from kernel import route, route_copy
from kernel.link import Link
from kernel.route_copy import TableRoute
from kernel.rtnl import Request, Socket

_PROTOCOL = 112  # the kernel and routing daemons use other numbers (linux/rtnetlink.h)


class RouteOwner(NamedTuple):
    """The hashes of an attachment's network, and of its container ID and interface name."""

    network: int
    attachment: int


def compute_owner(network: str, attachment: Attachment) -> RouteOwner:
    """Returns the hashes that mark the routes to an attachment."""
    return RouteOwner(_hash(network), _hash("/".join(attachment)))


def owner_of(item: TableRoute) -> RouteOwner:
    """Returns the owner of one of the host's routes, from its marks."""
    return RouteOwner(item.congestion_window, item.metric)


def is_of_network(owner: RouteOwner, network: str) -> bool:
    """Returns whether an owner is an attachment of a network."""
    return owner.network == _hash(network)


def list_owners(host: Socket) -> dict[int, set[RouteOwner]]:
    """Returns the owners of the routes through each host link, by its ifindex; raises KernelError."""
    owners: dict[int, set[RouteOwner]] = {}
    for item in list_marked(host):
        for index in item.indexes:
            owners.setdefault(index, set()).add(owner_of(item))
    return owners


def list_marked(socket: Socket) -> list[TableRoute]:
    """Returns the routes with podwire's protocol in the socket's namespace; raises KernelError."""
    listed = map(route_copy.from_message, socket.dump(route_copy.list_request()))
    return [item for item in listed if item.values["proto"] == _PROTOCOL]


def add_request(through: Link, dst: Address, source: Address | None = None, owner: RouteOwner | None = None) -> Request:
    """Returns a request that adds a route to one address through a link; `owner` is None in a pod."""
    item = route_copy.build_route(
        through,
        host_cidr(dst).network,
        source=source,
        metric=owner.attachment if owner else 0,
        congestion_window=owner.network if owner else 0,
    )
    item = item._replace(values={**item.values, "proto": _PROTOCOL})
    return route_copy.add_request(item, route.TABLE_MAIN, description=f"add route {dst} dev {through.name}")


def restore_requests(items: Iterable[TableRoute]) -> list[Request]:
    """Returns requests that add deleted routes again."""
    return [route_copy.add_request(item, item.table) for item in items]


def delete_requests(items: Iterable[TableRoute]) -> list[Request]:
    """Returns requests that delete routes; a missing route is success."""
    return [route_copy.delete_request(item, item.table) for item in items]


def destinations_of(addresses: Iterable[Address]) -> set[Network]:
    """Returns the destinations of routes to `addresses`: one host network (/32, /128) for each."""
    return {host_cidr(item).network for item in addresses}


def _hash(text: str) -> int:
    return int.from_bytes(sha512(text.encode()).digest()[:4], "big") or 1
