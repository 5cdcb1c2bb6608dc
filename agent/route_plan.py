"""The plan: which objects the kernel needs so that this node's pods reach the pods of another node.

A node is reached directly, by one route for each of its pods' networks, if an internal address of it and one of this
node are in the same network. Both nodes know the addresses of both, so they decide alike. Otherwise the node is reached
by VXLAN, with three objects: a route through the VXLAN device, a neighbour entry (the MAC address of the route's
gateway) and a forwarding entry (the node's address for this MAC address). The MAC address is derived from the node's
name, so that nodes need not publish it.

- The gateway of an IPv4 route is the network address of its destination, which no pod has; if the destination is a
  single address, it is the pod's address. The route is "onlink".
- The gateway of IPv6 routes is the link-local address that belongs to the MAC address. For an onlink gateway as in IPv4
  the kernel refuses the route while another link leads to the gateway, as when a node changes from direct to VXLAN.

This module is pure. Addresses are bytes here, and a network (Prefix) is its address and one byte with the prefix
length: with 5,000 nodes ipaddress objects would take 15 MB.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from functools import lru_cache
from itertools import product
from socket import AF_INET, AF_INET6, inet_ntop
from typing import NamedTuple

from agent.node import Node
from kernel.protocol_route import NextHop, Prefix, format_prefix, pack_network

AUTO, DIRECT, VXLAN, NONE = MODES = ("auto", "direct", "vxlan", "none")
_LINK_LOCAL = b"\xfe\x80" + bytes(6)


class RouteOptions(NamedTuple):
    """The options of the routes: mode, name of the VXLAN device, VNI, UDP port, protocol number and metrics.

    `metric` is that of routes to other nodes. No other program may use it, because the kernel replaces a route with the
    same destination and metric. `unreachable_metric` is that of the route for this node's pods, which packets use only
    if no pod network is connected. Without `checksum_offload` the kernel computes the checksums of packets before they
    enter the tunnel, for kernels and network cards with defects; with it the device stays as it is. `underlay` is the
    address from which this node sends VXLAN packets, or the name of the link that has it; "" for an InternalIP.
    """

    mode: str = AUTO
    device: str = "podwire-vxlan"
    vni: int = 112
    port: int = 4789
    protocol: int = 112
    metric: int = 1120
    unreachable_metric: int = 1_000_000
    checksum_offload: bool = True
    underlay: bytes | str = ""


class ObjectKind(IntEnum):
    """A kind of object, in the order in which objects are added; they are deleted in the opposite order."""

    ADDRESS = 0  # of the VXLAN device: Prefix -> b""
    FORWARDING = 1  # MAC address -> address of a node
    NEIGHBOUR = 2  # gateway -> MAC address
    ROUTE = 3  # Prefix -> NextHop
    UNREACHABLE = 4  # Prefix -> b""


ROUTE_KINDS = (ObjectKind.ROUTE, ObjectKind.UNREACHABLE)
ObjectValue = NextHop | bytes
Objects = tuple[dict[bytes, ObjectValue], ...]  # one dictionary for each ObjectKind


class Peer(NamedTuple):
    """A node as the plan sees it: its name, the networks of its pods and its internal addresses, as bytes.

    `addresses` include the `former_addresses`, which its Node object no longer has. `has_only_ignored_addresses` (see
    agent.conflicts): nothing is changed for its networks.
    """

    name: str
    networks: tuple[Prefix, ...]
    addresses: tuple[bytes, ...]
    uid: str = ""
    has_only_ignored_addresses: bool = False
    former_addresses: tuple[bytes, ...] = ()

    @property
    def is_incomplete(self) -> bool:
        """Whether its object has lost the addresses of one IP version, so that not all nodes know them."""
        return 0 < len(self.former_addresses) < len(self.addresses)


class ConnectedNetwork(NamedTuple):
    """A network that is connected to this node: its link, and whether it may be one of pods (a bridge or a veth)."""

    network: Prefix
    ifindex: int
    name: str
    is_for_pods: bool
    metric: int = 0


class InternalNetwork(NamedTuple):
    """A network in which this node has an internal address, and the address's position among those of its version."""

    position: int
    address: bytes
    network: Prefix


class Situation(NamedTuple):
    """The state of this node on which all plans depend.

    `networks` are those of its pods, `addresses` its internal addresses, with the `former_addresses`, which its Node
    object no longer has. `tunnel_ifindex` is that of the VXLAN device, 0 without one. `connected` is in the order in
    which the kernel prefers the networks. `underlay` is the address from which VXLAN packets are sent, b"" without one,
    and `strict_link` the name of its link if that has a strict reverse path filter, else "".
    """

    mode: str
    networks: tuple[Prefix, ...]
    addresses: tuple[bytes, ...]
    connected: tuple[ConnectedNetwork, ...]
    tunnel_ifindex: int = 0
    internal_networks: tuple[InternalNetwork, ...] = ()
    underlay: bytes = b""
    former_addresses: tuple[bytes, ...] = ()
    strict_link: str = ""

    @property
    def is_incomplete(self) -> bool:
        """Whether Peer.is_incomplete is true of this node, so that other nodes may reach it by the tunnel."""
        return 0 < len(self.former_addresses) < len(self.addresses)


class Plan(NamedTuple):
    """The objects for one node, the networks for which nothing is changed in the kernel, and the problems."""

    objects: Objects
    unchanged: tuple[Prefix, ...] = ()
    problems: tuple[str, ...] = ()


def peer_of(node: Node) -> Peer:
    """Returns a node of the cluster in the form of the plan."""
    addresses = tuple(address.packed for address in node.addresses)
    networks = tuple(pack_network(network) for network in node.pod_cidrs)
    return Peer(node.name, networks, addresses, node.uid, node.has_only_ignored_addresses)


def keep_addresses(peer: Peer, before: Peer | None) -> Peer:
    """Returns a node with the addresses from `before` of each IP version of which its object has no address now."""
    if before is None or before.uid != peer.uid:
        return peer
    sizes = {len(address) for address in peer.addresses}
    former = tuple(address for address in before.addresses if len(address) not in sizes)
    return peer._replace(addresses=peer.addresses + former, former_addresses=former)


@lru_cache(maxsize=16)
def mac_of(name: str) -> bytes:
    """Returns the MAC address of a node's VXLAN device: a locally administered one, derived from the node's name."""
    digest = hashlib.sha256(f"podwire VXLAN {name}".encode("utf-8", "surrogatepass")).digest()
    return bytes((digest[0] & 0xFC | 0x02, *digest[1:6]))


def link_local_of(mac: bytes) -> bytes:
    """Returns the IPv6 link-local address that belongs to a MAC address (RFC 4291, appendix A)."""
    return _LINK_LOCAL + bytes((mac[0] ^ 0x02, *mac[1:3], 0xFF, 0xFE, *mac[3:]))


def new_objects() -> Objects:
    """Returns a value of Objects without objects."""
    return tuple({} for _ in ObjectKind)


def plan_node(situation: Situation) -> Plan:
    """Returns the objects of this node itself: unreachable routes for its pods' networks, addresses of the device.

    A packet from the node to a pod of another node has the device's address as its source, so that the answer comes
    back through the device, as strict reverse path filtering requires.
    """
    if situation.mode == NONE:
        return Plan(new_objects())
    objects, unchanged, problems = new_objects(), [], []
    for network in situation.networks:
        if conflict := _lan_overlap(network, situation):
            unchanged.append(network)
            problems.append(f"its podCIDR {format_prefix(network)} overlaps with {_describe(conflict)}")
            continue
        objects[ObjectKind.UNREACHABLE][network] = b""
        if situation.tunnel_ifindex and network != host_prefix(network):  # a single address is a pod's
            objects[ObjectKind.ADDRESS][host_prefix(network)] = b""
    return Plan(objects, tuple(unchanged), tuple(problems))


def needs_tunnel(peer: Peer, situation: Situation) -> bool:
    """Returns whether VXLAN is needed to reach one of a node's networks, or the node may use VXLAN to this node."""
    if situation.mode not in (AUTO, VXLAN) or peer.has_only_ignored_addresses or not peer.addresses:
        return False
    return peer.is_incomplete or any(not direct_hop(peer, network, situation) for network in peer.networks)


def plan_peer(peer: Peer, networks: tuple[Prefix, ...], situation: Situation) -> Plan:
    """Returns the objects for `networks` of a node. An obstacle or a missing address leaves a network unchanged."""
    objects = new_objects()
    if situation.mode == NONE:
        return Plan(objects)
    if peer.has_only_ignored_addresses:
        return Plan(objects, networks)
    unchanged, problems = [], []
    for network in networks:
        if reason := _obstacle(peer, network, situation):
            unchanged.append(network)
        elif hop := direct_hop(peer, network, situation):
            objects[ObjectKind.ROUTE][network] = hop
        elif reason := _missing_address(peer, network, situation):
            unchanged.append(network)
        elif not (reason := _tunnel_obstacle(peer, network, situation)):
            reason = _add_tunnel(objects, peer, network, situation)
        if reason:
            problems.append(reason)
    return Plan(objects, tuple(unchanged), tuple(problems))


def direct_hop(peer: Peer, network: Prefix, situation: Situation) -> NextHop | None:
    """Returns the direct next hop for a network of a node, None if the two nodes share no network.

    In a shared network the kernel's preference decides about the link: it may have two links to the network. In the
    mode "direct", which has no other way to a node, any connected network does.
    """
    if situation.mode == VXLAN:
        return None
    size = len(network) - 1
    shared = _shared_address(peer, size, situation)
    candidates = [each for each in peer.addresses if len(each) == size] if situation.mode == DIRECT else []
    for address, connected in product([shared] if shared else candidates, situation.connected):
        if contains(connected.network, address) and not _overlaps_pods(connected.network, situation):
            return NextHop(connected.ifindex, address)
    return None


def _shared_address(peer: Peer, size: int, situation: Situation) -> bytes:
    """Returns a node's address of `size` bytes in a network that this node shares with it, b"" if they share none.

    Each address has a position in its node's list. Of several networks the one with the lowest sum of the two positions
    counts, then the lowest network: so the other node chooses the same one.
    """
    addresses = [address for address in peer.addresses if len(address) == size]
    shared = [
        (mine.position + position, mine.network, address)
        for mine in situation.internal_networks
        for position, address in enumerate(addresses)
        if contains(mine.network, address)
    ]
    return min(shared)[2] if shared else b""


def _reverse_path_problem(address: bytes, situation: Situation) -> str:
    """Returns why strict reverse path filtering drops a node's VXLAN packets, "" if it does not.

    They arrive on the link of this node's underlay address; answers leave by the link connected to the node's network.
    """
    arrival = situation.strict_link
    answer = next((each.name for each in situation.connected if contains(each.network, address)), arrival)
    if not arrival or answer == arrival or len(address) != 4:
        return ""
    return (
        f'its packets arrive by "{arrival}" and are dropped, because the answers leave by "{answer}" and the reverse '
        f"path filter is strict: sysctl -w net/ipv4/conf/{arrival}/rp_filter=2, or add the address "
        f'of "{answer}" to this node\'s InternalIPs'
    )


def _overlaps_pods(network: Prefix, situation: Situation) -> bool:
    return any(_overlaps(network, mine) for mine in situation.networks)


def _obstacle(peer: Peer, network: Prefix, situation: Situation) -> str:
    """Returns why nothing is changed in the kernel for a network, "" without a reason."""
    if not situation.addresses:
        return "this node has no InternalIP"
    if not peer.addresses:
        return "its Node object has no InternalIP"
    for address in peer.addresses:
        if address in situation.addresses:
            return f"its InternalIP {format_packed(address)} is also this node's"
    for mine in situation.networks:
        if _overlaps(network, mine):
            return f"its podCIDR {format_prefix(network)} overlaps with this node's podCIDR {format_prefix(mine)}"
    for connected in situation.connected:
        if _overlaps(network, connected.network):
            return f"its podCIDR {format_prefix(network)} overlaps with {_describe(connected)}"
    return ""


def _missing_address(peer: Peer, network: Prefix, situation: Situation) -> str:
    """Returns which address is missing to reach a node that is not reached directly, "" if none is."""
    if situation.mode == DIRECT:
        if any(len(address) + 1 == len(network) for address in peer.addresses):
            return ""
        return f"its Node object has no IPv{4 if len(network) == 5 else 6} InternalIP for {format_prefix(network)}"
    if not situation.underlay:
        return "no interface of this node has its InternalIP, which VXLAN uses"
    mine, other = len(situation.underlay), underlay_size(peer.addresses)  # 4 or 16
    if mine < other:
        return "its Node object has no IPv4 InternalIP, which VXLAN uses on this node"
    return "this node has no IPv4 InternalIP, which VXLAN uses on that one" if mine > other else ""


def _tunnel_obstacle(peer: Peer, network: Prefix, situation: Situation) -> str:
    """Returns why a node that is not reached directly cannot be reached by VXLAN, "" if it can."""
    if situation.mode == DIRECT:
        addresses = " and ".join(format_packed(each) for each in peer.addresses if len(each) + 1 == len(network))
        return f"{addresses} is in no network connected to this node, and routes are direct"
    return "" if situation.tunnel_ifindex else "it is reached by VXLAN, and this node has no VXLAN device"


def _add_tunnel(objects: Objects, peer: Peer, network: Prefix, situation: Situation) -> str:
    """Adds the objects that reach a node through VXLAN; returns the problem that still loses packets, "" for none."""
    mac, size = mac_of(peer.name), len(situation.underlay)
    is_ipv4 = len(network) == 5  # 4 bytes and the prefix length
    gateway = network[:-1] if is_ipv4 else link_local_of(mac)
    objects[ObjectKind.ROUTE][network] = NextHop(situation.tunnel_ifindex, gateway, onlink=is_ipv4)
    objects[ObjectKind.NEIGHBOUR][gateway] = mac
    if shared := _shared_address(peer, size, situation):
        objects[ObjectKind.FORWARDING][mac] = shared
        return ""
    first = next(address for address in peer.addresses if len(address) == size)
    objects[ObjectKind.FORWARDING][mac] = first
    return _reverse_path_problem(first, situation)


def _lan_overlap(network: Prefix, situation: Situation) -> ConnectedNetwork | None:
    """Returns a connected LAN that overlaps with a pod network: it is not for pods, or has this node's address."""
    for connected in situation.connected:
        has_this_node = any(contains(connected.network, address) for address in situation.addresses)
        if (has_this_node or not connected.is_for_pods) and _overlaps(network, connected.network):
            return connected
    return None


def _describe(connected: ConnectedNetwork) -> str:
    return f'{format_prefix(connected.network)}, which is connected to this node\'s "{connected.name}"'


def _overlaps(one: Prefix, other: Prefix) -> bool:
    if len(one) != len(other):
        return False
    shift = 8 * (len(one) - 1) - min(one[-1], other[-1])
    return int.from_bytes(one[:-1], "big") >> shift == int.from_bytes(other[:-1], "big") >> shift


def contains(network: Prefix, address: bytes) -> bool:
    """Returns whether an address is in a network."""
    if len(network) != len(address) + 1:
        return False
    shift = 8 * len(address) - network[-1]
    return int.from_bytes(network[:-1], "big") >> shift == int.from_bytes(address, "big") >> shift


def host_prefix(network: Prefix) -> Prefix:
    """Returns the network address of a network as a network with this address only."""
    return network[:-1] + bytes((8 * (len(network) - 1),))


def underlay_size(addresses: tuple[bytes, ...]) -> int:
    """Returns the size of the node's address that VXLAN uses: 4 if it has an IPv4 address, else 16; 0 without any."""
    return min(map(len, addresses), default=0)


def format_packed(address: bytes) -> str:
    """Returns an address as text."""
    return inet_ntop(AF_INET if len(address) == 4 else AF_INET6, address)
