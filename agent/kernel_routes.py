"""The kernel's side of the plan: reads the existing objects, builds requests.

Functions that take a Socket only read.
"""

from __future__ import annotations

from ipaddress import IPv4Interface, IPv6Interface

from agent import tunnel_device
from agent.route_diff import Change
from agent.route_plan import Kind, Objects, RouteOptions, mac_of, new_objects
from cni.address import Cidr
from kernel import address, protocol_route, route, tunnel_entries
from kernel.link import Link
from kernel.protocol_route import Hop, Prefix, format_prefix
from kernel.rtnl import Request, Socket


def read_objects(socket: Socket, options: RouteOptions, node_name: str) -> tuple[Link | None, Objects]:
    """Returns the agent's device and the existing objects; raises KernelError.

    Routes with another metric are another program's, whatever their protocol number.
    """
    objects = new_objects()
    for each in protocol_route.list_of_protocol(socket, options.protocol):
        if each.metric == options.metric:
            objects[Kind.ROUTE][each.dst] = each.hop
        elif each.metric == options.unreachable_metric and each.hop == protocol_route.UNREACHABLE:
            objects[Kind.UNREACHABLE][each.dst] = b""
    device = tunnel_device.find(socket, options.device, mac_of(node_name))
    if device:
        objects[Kind.NEIGHBOUR].update(tunnel_entries.list_neighbours(socket, device))
        objects[Kind.FORWARDING].update(tunnel_entries.list_forwarding(socket, device))
        for assigned in address.list_on_link(socket, device):
            objects[Kind.ADDRESS][bytes((*assigned.packed, assigned.prefix))] = b""
    return device, objects


def build_request(change: Change, options: RouteOptions, device: Link | None) -> Request:
    """Returns the request of a change."""
    kind, key, value = change
    if kind is Kind.ROUTE or kind is Kind.UNREACHABLE:
        metric = options.metric if kind is Kind.ROUTE else options.unreachable_metric
        if value is None:
            return protocol_route.delete_request(key, metric, options.protocol)
        hop = value if isinstance(value, Hop) else protocol_route.UNREACHABLE
        return protocol_route.set_request(key, hop, metric, options.protocol)
    assert device is not None
    if kind is Kind.ADDRESS:
        if value is None:
            return address.remove_request(device, _cidr(key))
        return address.add_request(device, _cidr(key), exists_ok=True, dad=False)
    if value is None:
        delete = tunnel_entries.delete_neighbour_request
        return (delete if kind is Kind.NEIGHBOUR else tunnel_entries.delete_forwarding_request)(device, key)
    assert isinstance(value, bytes)
    build = tunnel_entries.set_neighbour_request
    return (build if kind is Kind.NEIGHBOUR else tunnel_entries.set_forwarding_request)(device, key, value)


def describe(kind: Kind, key: bytes) -> str:
    """Returns an object as text, for messages."""
    if kind in (Kind.ROUTE, Kind.UNREACHABLE, Kind.ADDRESS):
        return f"{kind.name.lower()} {format_prefix(key)}"
    return f"{kind.name.lower()} entry of {key.hex(':') if kind is Kind.FORWARDING else route.address_of(key)}"


def _cidr(prefix: Prefix) -> Cidr:
    packed = prefix[:-1], prefix[-1]
    return IPv4Interface(packed) if len(prefix) == 5 else IPv6Interface(packed)
