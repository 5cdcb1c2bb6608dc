"""Routes: listing, looking up, adding, deleting.

*_request functions return a Request and do no I/O; functions that take a Socket send requests through it.
"""

from __future__ import annotations

import errno
import socket as stdlib_socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address

from cni.address import Address, Cidr, Network, format_ip, with_prefix
from cni.result import Route
from kernel import link as links
from kernel.codec import RouteMessage
from kernel.link import Link
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, Request, Socket
from kernel.wire import AnswerError, Attributes, DecodedMessage
from process.values import dataclass

RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
SCOPE_LINK, SCOPE_HOST = 253, 254  # linux/rtnetlink.h
_SCOPE_NOWHERE = 255  # in a deletion it matches any scope
TABLE_MAIN, _RT_TABLE_LOCAL, _RTPROT_KERNEL, _RTPROT_BOOT, _RTN_UNICAST, _RTN_LOCAL = 254, 255, 2, 3, 1, 2
_RTM_F_CLONED, _RTM_F_FIB_MATCH = 0x200, 0x2000
_FAMILIES = {4: int(stdlib_socket.AF_INET), 6: int(stdlib_socket.AF_INET6)}
_NEXT_HOP, _ATTRIBUTE, _RTA_GATEWAY = struct.Struct("=HBBi"), struct.Struct("=HH"), 5
# Answers to a look-up without a usable route: EINVAL for a route of type blackhole, EACCES for type prohibit.
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL, errno.EACCES)


@dataclass(frozen=True)
class InstalledRoute:
    """A next hop of a unicast route: destination, gateway or None, ifindex, table, metric.

    `is_connected` is set by get_matching() if the kernel created the route for an address of the interface.
    """

    dst: Cidr
    gw: Address | None
    index: int
    table: int
    metric: int = 0
    is_connected: bool = False


def list_unicast(socket: Socket, version: int) -> list[InstalledRoute]:
    """Returns the unicast routes of IP `version` (4 or 6) in all tables; raises KernelError.

    A route with several next hops is listed once for each; IPv6 merges routes with the same destination and metric.
    """
    values = {"family": _FAMILIES[version], "type": _RTN_UNICAST}
    request = Request("list the routes", RouteMessage, RTM_GETROUTE, NLM_F_DUMP, values)
    routes = []
    for message in socket.dump(request):
        if message["type"] == _RTN_UNICAST:
            table = message.get_attr("RTA_TABLE") or message["table"]
            metric = message.get_attr("RTA_PRIORITY") or 0
            dst = destination_of(message)
            routes += [InstalledRoute(dst, gateway, index, table, metric) for index, gateway in hops_of(message)]
    return routes


def list_local_networks(socket: Socket, version: int) -> list[Network]:
    """Returns the networks that this host treats as its own addresses, for IP `version` (4 or 6); raises KernelError.

    These are the entries of the routing table "local": 127.0.0.0/8, each assigned address, and local ranges.
    """
    values = {"family": _FAMILIES[version], "type": _RTN_LOCAL, "table": _RT_TABLE_LOCAL}
    request = Request("list the local addresses", RouteMessage, RTM_GETROUTE, NLM_F_DUMP, values)
    # Kernels before 4.20 do not filter.
    return [destination_of(message).network for message in socket.dump(request) if message["type"] == _RTN_LOCAL]


def get_interface_to(socket: Socket, address: Address) -> Link | None:
    """Returns the link through which this host sends to `address`, None without a route; raises KernelError."""
    index = get_index_to(socket, address)
    return links.get(socket, links.by_index_request(index))[0] if index else None


def get_index_to(socket: Socket, address: Address) -> int:
    """Returns the ifindex of the link through which this host sends to `address`, 0 without a route.

    Raises KernelError.
    """
    values = {"family": _FAMILIES[address.version], "dst_len": address.max_prefixlen}
    attributes: Attributes = [("RTA_DST", address.packed)]
    description = f"look up the route to {address}"
    (message,) = socket.get(Request(description, RouteMessage, RTM_GETROUTE, 0, values, attributes, _NO_ROUTE))
    return (message and message.get_attr("RTA_OIF")) or 0


def get_matching(socket: Socket, address: Address) -> InstalledRoute | None:
    """Returns the entry of the routing table by which this host sends to `address`; raises KernelError.

    None if there is no unicast route, if the route has several next hops, and before Linux 4.13, which does not report
    the entry.
    """
    values = {"family": _FAMILIES[address.version], "dst_len": address.max_prefixlen, "flags": _RTM_F_FIB_MATCH}
    attributes: Attributes = [("RTA_DST", address.packed)]
    description = f"look up the route to {address}"
    (message,) = socket.get(Request(description, RouteMessage, RTM_GETROUTE, 0, values, attributes, _NO_ROUTE))
    if message is None or message["type"] != _RTN_UNICAST or message["flags"] & _RTM_F_CLONED:
        return None
    table, metric = message.get_attr("RTA_TABLE") or message["table"], message.get_attr("RTA_PRIORITY") or 0
    next_hops = list(hops_of(message))
    if len(next_hops) != 1:
        return None
    index, gateway = next_hops[0]
    return InstalledRoute(destination_of(message), gateway, index, table, metric, message["proto"] == _RTPROT_KERNEL)


def get_default_interface(socket: Socket) -> int:
    """Returns the ifindex of the default route with the lowest metric, IPv4 before IPv6; 0 without one.

    Raises KernelError.
    """
    for version in (4, 6):
        routes = [each for each in list_unicast(socket, version) if each.table == TABLE_MAIN and each.index]
        defaults = [each for each in routes if not each.dst.network.prefixlen]
        if defaults:
            return min(defaults, key=lambda each: each.metric).index
    return 0


def add_request(
    link: Link, route: Route, gateway: Address | None, *, source: Address | None = None, exists_ok: bool = False
) -> Request:
    """Returns a request that adds `route` through `link` via `gateway`, beside other routes to the same destination.

    `source` is the preferred source address. The protocol is boot, and the default scope is universe, as with the
    reference plugins.
    """
    scope, table, to = route.scope or 0, route.table or TABLE_MAIN, route.dst.network
    description = (
        f"add route '{format_ip(to.network_address)}/{to.prefixlen}{f' via {format_ip(gateway)}' if gateway else ''} "
        f"dev {link.name} metric {route.priority} (Scope: {scope}, Table: {table})'"
    )
    values = {
        "family": _FAMILIES[route.dst.version],
        "dst_len": to.prefixlen,
        "table": table if table < 256 else 0,
        "proto": _RTPROT_BOOT,
        "scope": scope,
        "type": _RTN_UNICAST,
    }
    attributes: Attributes = [("RTA_OIF", link.index), ("RTA_TABLE", table)]
    if to.prefixlen:
        attributes.append(("RTA_DST", to.network_address.packed))
    if gateway:
        attributes.append(("RTA_GATEWAY", gateway.packed))
    if source:
        attributes.append(("RTA_PREFSRC", source.packed))
    if route.priority:
        attributes.append(("RTA_PRIORITY", route.priority))
    metrics = [(name, value) for name, value in (("RTAX_MTU", route.mtu), ("RTAX_ADVMSS", route.advmss)) if value]
    if metrics:
        attributes.append(("RTA_METRICS", {"attrs": metrics}))
    ignore = (errno.EEXIST,) if exists_ok else ()
    return Request(description, RouteMessage, RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE, values, attributes, ignore)


def delete_request(link: Link, route: Route, gateway: Address | None) -> Request:
    """Returns a request that deletes a route of add_request(); a missing one is success."""
    adding = add_request(link, route, gateway)
    description = adding.description.replace("add ", "delete ", 1)
    missing = (errno.ESRCH,)
    return adding._replace(description=description, type=RTM_DELROUTE, flags=NLM_F_ACK, ignore=missing)


def delete_connected_request(link: Link, network: Network, table: int = TABLE_MAIN) -> Request:
    """Returns a request that deletes the route that the kernel added to `network` for an address of `link`.

    A missing route is success.
    """
    description = f"delete route '{network} dev {link.name}'"
    values = {
        "family": _FAMILIES[network.version],
        "dst_len": network.prefixlen,
        "table": table if table < 256 else 0,
        "proto": _RTPROT_KERNEL,  # a route from IPAM to the same destination stays
        "scope": _SCOPE_NOWHERE,
    }
    attributes: Attributes = [("RTA_OIF", link.index), ("RTA_TABLE", table)]
    attributes.append(("RTA_DST", network.network_address.packed))
    return Request(description, RouteMessage, RTM_DELROUTE, NLM_F_ACK, values, attributes, (errno.ESRCH,))


def hops_of(message: DecodedMessage) -> Iterator[tuple[int, Address | None]]:
    """Yields the ifindex and the gateway of each next hop of a route."""
    hops = message.get_attr("RTA_MULTIPATH")
    if hops is None:
        gateway = message.get_attr("RTA_GATEWAY")
        yield message.get_attr("RTA_OIF") or 0, address_of(gateway) if gateway else None
        return
    while len(hops) >= _NEXT_HOP.size:
        length, _, _, index = _NEXT_HOP.unpack_from(hops)
        length = max(length, _NEXT_HOP.size)
        attributes, hops = hops[_NEXT_HOP.size : length], hops[(length + 3) & ~3 :]
        gateway = None
        while len(attributes) >= _ATTRIBUTE.size:
            size, kind = _ATTRIBUTE.unpack_from(attributes)
            size = max(size, _ATTRIBUTE.size)
            if kind == _RTA_GATEWAY:
                gateway = attributes[_ATTRIBUTE.size : size]
            attributes = attributes[(size + 3) & ~3 :]
        yield index, address_of(gateway) if gateway else None


def address_of(packed: bytes) -> Address:
    """Returns the address in the bytes of an attribute; raises AnswerError."""
    try:
        return IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)
    except ValueError as error:
        raise AnswerError(str(error)) from error


def destination_of(message: DecodedMessage) -> Cidr:
    """Returns the destination of a route's message; raises AnswerError."""
    packed = message.get_attr("RTA_DST")
    try:
        if message["family"] == stdlib_socket.AF_INET:
            return with_prefix(IPv4Address(packed or bytes(4)), message["dst_len"])
        return with_prefix(IPv6Address(packed or bytes(16)), message["dst_len"])
    except ValueError as error:
        raise AnswerError(str(error)) from error
