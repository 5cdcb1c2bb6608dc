"""The kernel's side of the plan: reads the situation of this node and the existing objects, builds requests.

Functions that take a Socket only read.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Interface, IPv6Interface
from typing import NamedTuple

from agent import tunnel_device
from agent.node import Node
from agent.route_diff import Change
from agent.route_plan import Connected, Kind, Objects, RouteOptions, Situation, mac_of, new_objects, peer_of
from cni.address import Cidr
from kernel import address, link, protocol_route, route, tunnel_entries
from kernel.link import Link
from kernel.protocol_route import Hop, Prefix, format_prefix
from kernel.rtnl import Request, Socket

_POD_KINDS = ("bridge", "veth")
_DEFAULT_MTU = 1500


class NodeLinks(NamedTuple):
    """The links of this node on which its routes depend, by ifindex, and the link of the underlay address.

    `underlay` is None if no link has the address. The links in `down` have connected networks, and are missing or not
    up: the kernel refuses routes through them.
    """

    by_index: Mapping[int, Link]
    underlay: Link | None = None
    underlay_mtu: int = 0
    down: frozenset[int] = frozenset()

    @property
    def is_usable(self) -> bool:
        """Whether this node's address is on a link that is up; otherwise the situation is that of a passing moment."""
        return _is_up(self.underlay)


def read_situation(
    socket: Socket, options: RouteOptions, node: Node, remote: bytes, last: tuple[Situation, NodeLinks]
) -> tuple[Situation, NodeLinks]:
    """Returns the situation of this node and its links; raises KernelError.

    Of the `last` situation the tunnel counts and, while this node's address is on no link that is up, the connected
    networks. `remote` is the address of any other node, or b"".
    """
    this, (last_situation, last_links) = peer_of(node), last
    (device,) = link.get(socket, link.by_name_request(options.device))
    tunnel = device.index if device else 0
    connected = [item for item in protocol_route.list_connected(socket) if item[1] != tunnel]
    situation = last_situation._replace(mode=options.mode, networks=this.networks, addresses=this.addresses)
    holder = _find_index(socket, situation.underlay)
    indexes = {index for _, index in connected} | {item.ifindex for item in last_situation.connected} | {holder} - {0}
    answers = link.get(socket, *(link.by_index_request(index) for index in sorted(indexes)))
    links = {each.index: each for each in answers if each}
    networks = [
        Connected(network, index, links[index].name, links[index].kind in _POD_KINDS)
        for network, index in set(connected)
        if index in links and links[index].is_up
    ]
    networks.sort(key=lambda item: (-item.network[-1], item.network, item.ifindex))
    underlay = links.get(holder)
    if last_situation.connected and not _is_up(underlay):
        mtu = last_links.underlay_mtu
    else:
        mtu, situation = _underlay_mtu(socket, underlay, remote), situation._replace(connected=tuple(networks))
    down = {item.ifindex for item in situation.connected if not _is_up(links.get(item.ifindex))}
    return situation, NodeLinks(links, underlay, mtu, frozenset(down))


def _is_up(answer: Link | None) -> bool:
    return answer is not None and answer.is_up


def _find_index(socket: Socket, packed: bytes) -> int:
    """Returns the ifindex of the link that has an address, 0 without one."""
    for index, assigned in address.list_by_link(socket).items():
        if packed and any(each.packed == packed for each in assigned):
            return index
    return 0


def _underlay_mtu(socket: Socket, underlay: Link | None, remote: bytes) -> int:
    """Returns the MTU of the link through which VXLAN packets leave; an address may be on `lo`, as with BGP."""
    if underlay is not None and not underlay.flags & link.IFF_LOOPBACK:
        return underlay.mtu
    through = route.get_interface_to(socket, route.address_of(remote)) if remote else None
    return through.mtu if through and not through.flags & link.IFF_LOOPBACK else _DEFAULT_MTU


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
