"""Routes of the table main that one program marks with its protocol number (RTPROT_*), for thousands of destinations.

A request that adds a route replaces one with the same destination and metric, so the program has a metric of its own.
A deletion names the protocol number, so that it never deletes another program's route. *_request functions return a
Request and do no I/O. Destinations and gateways are bytes: a node of a large cluster has thousands.
"""

from __future__ import annotations

import errno
from socket import AF_INET, AF_INET6, inet_ntop
from typing import NamedTuple

from cni.address import Network
from kernel.codec import RouteMessage
from kernel.route import RTM_DELROUTE, RTM_GETROUTE, RTM_NEWROUTE, TABLE_MAIN
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, Request, Socket
from kernel.wire import Attributes, DecodedMessage, attribute_specs

Prefix = bytes  # a network: its address, and one byte with the prefix length
_CONNECTING = (2, 9, 16)  # RTPROT_KERNEL, RTPROT_RA, RTPROT_DHCP (linux/rtnetlink.h)
_UNICAST, _UNREACHABLE, _SCOPE_NOWHERE, _RTNH_F_ONLINK = 1, 7, 255, 4
_FAMILIES = {5: int(AF_INET), 17: int(AF_INET6)}  # by the length of a Prefix
_ANY = {int(AF_INET): bytes(4), int(AF_INET6): bytes(16)}
_LENGTH_OFFSET, _PROTOCOL_OFFSET = 17, 21  # of rtm_dst_len and rtm_protocol in a message
_SET_FLAGS = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
_SPECS = attribute_specs(
    RouteMessage, RTA_DST=b"", RTA_PRIORITY=0, RTA_OIF=0, RTA_GATEWAY=b"", RTA_TABLE=0, RTA_MULTIPATH=b""
)


class NextHop(NamedTuple):
    """The next hop of a route: ifindex and gateway, b"" for none. With `onlink` the gateway needs no route itself."""

    ifindex: int
    gateway: bytes
    onlink: bool = False


UNREACHABLE = NextHop(0, b"")  # a route of type unreachable
OTHER = NextHop(-1, b"")  # a route that is none of these: of another type, or with several next hops


class ProtocolRoute(NamedTuple):
    """A route of the table main: destination, metric, protocol number and next hop."""

    dst: Prefix
    metric: int
    protocol: int
    hop: NextHop


def pack_network(network: Network) -> Prefix:
    """Returns a network as bytes."""
    return bytes((*network.network_address.packed, network.prefixlen))


def format_prefix(prefix: Prefix) -> str:
    """Returns a network as text, "10.244.1.0/24"."""
    return f"{inet_ntop(_FAMILIES[len(prefix)], prefix[:-1])}/{prefix[-1]}"


def set_request(dst: Prefix, hop: NextHop, metric: int, protocol: int) -> Request:
    """Returns a request that adds a route, or replaces the one with the same destination and metric.

    `hop` is UNREACHABLE for a route of this type.
    """
    is_unreachable = hop == UNREACHABLE
    values = {
        **_values(dst, protocol),
        "type": _UNREACHABLE if is_unreachable else _UNICAST,
        "flags": _RTNH_F_ONLINK * hop.onlink,
    }
    attributes = _attributes(dst, metric)
    if not is_unreachable:
        attributes.append(("RTA_OIF", hop.ifindex))
    if hop.gateway:
        attributes.append(("RTA_GATEWAY", hop.gateway))
    description = f"set route {describe(dst, hop)}"
    return Request(description, RouteMessage, RTM_NEWROUTE, _SET_FLAGS, values, attributes)


def delete_request(dst: Prefix, metric: int, protocol: int) -> Request:
    """Returns a request that deletes the route with this destination, metric and protocol; a missing one is success."""
    values = {**_values(dst, protocol), "scope": _SCOPE_NOWHERE}
    description = f"delete route {format_prefix(dst)} of metric {metric} and protocol {protocol}"
    attributes = _attributes(dst, metric)
    return Request(description, RouteMessage, RTM_DELROUTE, NLM_F_ACK, values, attributes, (errno.ESRCH,))


def describe(dst: Prefix, hop: NextHop, device: str = "") -> str:
    """Returns a route as text, "10.244.1.0/24 via 192.0.2.12 dev 3", or with the name of the device."""
    if hop == UNREACHABLE:
        return f"unreachable {format_prefix(dst)}"
    via = f" via {inet_ntop(_FAMILIES[len(dst)], hop.gateway)}" if hop.gateway else ""
    return f"{format_prefix(dst)}{via} dev {device or hop.ifindex}"


def list_of_protocol(socket: Socket, protocol: int) -> list[ProtocolRoute]:
    """Returns the routes of one protocol in the table main, of both IP versions; raises KernelError."""
    routes = []
    number = bytes((protocol,))
    for family in _ANY:
        values = {"family": family, "table": TABLE_MAIN, "proto": protocol}
        request = _dump_request(f"list the routes of protocol {protocol}", values)
        # Kernels before 4.20 do not filter.
        request = request._replace(body_filter=lambda body: body[_PROTOCOL_OFFSET : _PROTOCOL_OFFSET + 1] == number)
        routes += [route for message in socket.dump(request, merge_key=_key) if (route := from_message(message))]
    return routes


def list_shadowing(socket: Socket, destinations: frozenset[Prefix], metric: int) -> list[ProtocolRoute]:
    """Returns the routes to `destinations` with a lower metric: packets use them. Raises KernelError."""
    routes = []
    lengths = {prefix[-1:] for prefix in destinations}
    for family in _ANY:
        request = _dump_request("list the routes", {"family": family, "table": TABLE_MAIN})
        # A node that is also a router has a million others: decoding them all would take seconds.
        request = request._replace(body_filter=lambda body: body[_LENGTH_OFFSET : _LENGTH_OFFSET + 1] in lengths)
        for message in socket.dump(request):
            route = from_message(message)
            if route and route.dst in destinations and route.metric < metric:
                routes.append(route)
    return routes


def list_connected(socket: Socket) -> list[ProtocolRoute]:
    """Returns the routes to the networks that are directly connected to this host, those that the kernel prefers first.

    These have no gateway, and the kernel, router advertisements or DHCP created them. Raises KernelError.
    """
    routes = [route for protocol in _CONNECTING for route in list_of_protocol(socket, protocol) if is_connected(route)]
    return sorted(routes, key=lambda route: (-route.dst[-1], route.dst, route.metric))


def is_connected(route: ProtocolRoute) -> bool:
    """Returns whether a route makes a network directly connected; link-local ones and single addresses do not count."""
    if route.protocol not in _CONNECTING or route.hop.gateway or route.hop.ifindex <= 1:
        return False
    length = route.dst[-1]
    return 0 < length < 8 * (len(route.dst) - 1) and route.dst[:2] not in (b"\xfe\x80", b"\xff\x00", b"\xa9\xfe")


def from_message(message: DecodedMessage) -> ProtocolRoute | None:
    """Returns the route in an RTM_NEWROUTE or RTM_DELROUTE message, None for a route outside of the table main."""
    dst, metric, ifindex, gateway, table, hops = message.get_attributes(_SPECS)
    family = message["family"]
    if (table or message["table"]) != TABLE_MAIN or family not in _ANY:
        return None
    prefix = bytes((*(dst or _ANY[family]), message["dst_len"]))
    if message["type"] == _UNREACHABLE:
        hop = UNREACHABLE
    elif message["type"] != _UNICAST or hops or message["tos"]:
        hop = OTHER
    else:
        hop = NextHop(ifindex, gateway, bool(message["flags"] & _RTNH_F_ONLINK))
    return ProtocolRoute(prefix, metric, message["proto"], hop)


def _dump_request(description: str, values: dict[str, int]) -> Request:
    return Request(description, RouteMessage, RTM_GETROUTE, NLM_F_DUMP, values)


def _key(message: DecodedMessage) -> object:
    return from_message(message)


def _values(dst: Prefix, protocol: int) -> dict[str, int]:
    return {"family": _FAMILIES[len(dst)], "dst_len": dst[-1], "table": TABLE_MAIN, "proto": protocol}


def _attributes(dst: Prefix, metric: int) -> Attributes:
    attributes: Attributes = [("RTA_DST", dst[:-1])] if dst[-1] else []
    attributes.append(("RTA_PRIORITY", metric))
    return attributes
