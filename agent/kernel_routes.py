"""The kernel's side of the plan: reads the existing objects, builds requests.

Functions that take a Socket only read.
"""

from __future__ import annotations

from ipaddress import IPv4Interface, IPv6Interface

from agent import tunnel_device
from agent.route_diff import ObjectChange
from agent.route_plan import ROUTE_KINDS, ObjectKind, Objects, RouteOptions, mac_of, new_objects
from cni.address import Cidr
from kernel import address, protocol_route, route, tunnel_entries
from kernel.link import Link
from kernel.protocol_route import NextHop, Prefix, format_prefix
from kernel.rtnl import Request, Socket


def read_objects(socket: Socket, options: RouteOptions, node_name: str) -> tuple[Link | None, Objects]:
    """Returns the agent's device and the existing objects; raises KernelError.

    Routes with another metric are another program's, whatever their protocol number.
    """
    objects = new_objects()
    for each in protocol_route.list_of_protocol(socket, options.protocol):
        if each.metric == options.metric:
            objects[ObjectKind.ROUTE][each.dst] = each.hop
        elif each.metric == options.unreachable_metric and each.hop == protocol_route.UNREACHABLE:
            objects[ObjectKind.UNREACHABLE][each.dst] = b""
    device = tunnel_device.find(socket, options.device, mac_of(node_name))
    if device:
        objects[ObjectKind.NEIGHBOUR].update(tunnel_entries.list_neighbours(socket, device))
        objects[ObjectKind.FORWARDING].update(tunnel_entries.list_forwarding(socket, device))
        for assigned in address.list_on_link(socket, device):
            objects[ObjectKind.ADDRESS][bytes((*assigned.packed, assigned.prefix))] = b""
    return device, objects


def build_request(change: ObjectChange, options: RouteOptions, device: Link | None) -> Request:
    """Returns the request of a change."""
    kind, key, value = change
    if kind in ROUTE_KINDS:
        metric = options.metric if kind is ObjectKind.ROUTE else options.unreachable_metric
        if value is None:
            return protocol_route.delete_request(key, metric, options.protocol)
        hop = value if isinstance(value, NextHop) else protocol_route.UNREACHABLE
        return protocol_route.set_request(key, hop, metric, options.protocol)
    assert device is not None
    if kind is ObjectKind.ADDRESS:
        if value is None:
            return address.remove_request(device, _cidr(key))
        return address.add_request(device, _cidr(key), exists_ok=True, dad=False)
    is_neighbour = kind is ObjectKind.NEIGHBOUR
    if value is None:
        delete = tunnel_entries.delete_neighbour_request if is_neighbour else tunnel_entries.delete_forwarding_request
        return delete(device, key)
    assert isinstance(value, bytes)
    build = tunnel_entries.set_neighbour_request if is_neighbour else tunnel_entries.set_forwarding_request
    return build(device, key, value)


def describe(kind: ObjectKind, key: bytes) -> str:
    """Returns an object as text, for messages."""
    if kind in (*ROUTE_KINDS, ObjectKind.ADDRESS):
        return f"{kind.name.lower()} {format_prefix(key)}"
    return f"{kind.name.lower()} entry of {key.hex(':') if kind is ObjectKind.FORWARDING else route.address_of(key)}"


def _cidr(prefix: Prefix) -> Cidr:
    address_and_length = prefix[:-1], prefix[-1]
    return IPv4Interface(address_and_length) if len(prefix) == 5 else IPv6Interface(address_and_length)
