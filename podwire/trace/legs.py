"""One direction of an exchange: what loses a packet between two places, from where it was last seen on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cni.address import Address
from kernel.fib import FibRoute, packet_to
from kernel.link import Link
from kernel.netfilter.packet import Packet
from kernel.packet_tap import REQUEST, Sighting
from podwire.trace import layer2, layer3
from podwire.trace.exchange import Flow, Observation
from podwire.trace.place import EXTERNAL, Place
from podwire.trace.suspect import Suspect
from podwire.trace.topology import PodPlace, Topology


class Leg(NamedTuple):
    """A direction of an exchange: from a place to another (None: not on this node), with its addresses.

    `source` and `sent_to` are as the packet leaves `start`; `routed_to` is its destination when the node routes it.
    """

    topology: Topology
    seen: Observation
    start: Place
    end: Place | None
    source: Address
    sent_to: Address
    routed_to: Address
    kinds: tuple[str, ...]
    arriving: Link | None = None  # where a packet from beyond the node arrives

    def packet(self, *, iif: Link | None = None, to: Address | None = None) -> Packet:
        """Returns the packet to route."""
        flow = self.seen.flow
        ports = (flow.port, self.seen.source_port)
        if self.kinds != (REQUEST,):
            ports = ports[1], ports[0]
        name, mark = (iif.name, self.seen.mark) if iif else ("", 0)
        return packet_to(to or self.sent_to, self.source, name, mark, flow.protocol, *ports)

    def sightings(self, place: Place | None, *, outgoing: bool | None = None) -> list[Sighting]:
        """Returns the packets of this direction in a place."""
        return self.seen.seen(place, self.kinds, outgoing=outgoing)


def leg_suspects(leg: Leg) -> Iterator[Suspect]:
    """Yields the suspects of one direction, from the place where the packet was last seen on."""
    node = leg.topology.node
    if leg.start is not node and not leg.sightings(leg.start, outgoing=True):
        yield from _start_suspects(leg)
    arriving = _arriving_link(leg)
    if leg.end is node and leg.sightings(node, outgoing=False):
        yield from _input_suspects(leg, arriving)
    if leg.start is not node and arriving is not None and not leg.sightings(node):
        yield from layer2.link_suspects(node, arriving)
        yield from layer3.mtu_suspects(node, arriving, leg.seen.flow.size)
    if not _left_node(leg):
        yield from _node_suspects(leg, arriving)
    if leg.end is not None and leg.end is not node:
        yield from _end_suspects(leg)


def _start_suspects(leg: Leg) -> Iterator[Suspect]:
    """Yields why a packet does not leave a pod: interface, route, gateway, neighbour."""
    start, packet, node = leg.start, leg.packet(), leg.topology.node
    arriving = _arriving_link(leg)
    if arriving is not None and not arriving.is_up:
        yield from layer2.link_suspects(node, arriving)
    yield from layer2.safe(_container_links(start))
    yield from layer3.routing_suspects(start, packet)
    choice = start.route(packet)
    if not choice.is_delivered:
        return
    next_hop = choice.gateway or leg.sent_to
    if choice.gateway and _is_foreign_gateway(leg, choice.gateway):
        route = choice.route.describe(start.names) if choice.route else ""
        text = f"the route {route}: no interface of this node has the gateway's address"
        yield Suspect("gateway", start.name, text, route, look=f"ip route get {leg.sent_to}")
    if isinstance(start, PodPlace) and choice.route and not choice.gateway and not isinstance(leg.end, PodPlace):
        yield from _gateway_left_out(leg, start, choice.route)
    neighbours = list(layer2.neighbour_suspects(leg.topology, start, choice.ifindex, next_hop))
    yield from (one for one in neighbours if one.name == "neighbour")
    if arriving is not None:
        yield from _gateway_port_suspects(node, arriving, next_hop)
        yield from layer2.safe(layer2.bridge_suspects(node, arriving, _bridge_exit(leg, arriving)))
        if node.has(next_hop):  # the kernel answers ARP only if it would accept a packet of the sender
            device = _routing_device(leg, arriving)
            yield from layer3.routing_suspects(node, leg.packet(iif=device, to=next_hop))
    if isinstance(leg.end, PodPlace) and next_hop == leg.sent_to and not node.has(next_hop):
        yield from layer2.safe(_container_links(leg.end))
        yield from missing_address(leg.end, leg.sent_to)
    yield from neighbours


def _gateway_port_suspects(node: Place, arriving: Link, next_hop: Address) -> Iterator[Suspect]:
    """Yields a host veth that is not a port of the bridge that has the pod's gateway address."""
    gateways = node.links_by_address.get(next_hop, [])
    gateway = next((one for one in gateways if one.kind == "bridge"), None)
    if gateway is not None and arriving.master != gateway.index:
        text = f"{arriving.name} is not a port of bridge {gateway.name}, which has the pod's gateway address {next_hop}"
        yield Suspect("bridge-port", node.name, text, arriving.name, look=f"ip link show {arriving.name}")


def _gateway_left_out(leg: Leg, start: PodPlace, route: FibRoute) -> Iterator[Suspect]:
    """Yields a pod's route without the gateway that ADD gave it, for a destination outside of the pod's subnets."""
    cached = leg.topology.cached(start.pod)
    ips = [ip for ip in cached.typed_result.ips if ip.address.version == leg.sent_to.version] if cached else []
    gateway = next((ip.gateway for ip in ips if ip.gateway), None)
    if gateway is not None and not any(leg.sent_to in ip.address.network for ip in ips):
        words = route.describe(start.names)
        text = f"the route {words} asks for the MAC address of {leg.sent_to}, and not for that of the gateway {gateway}"
        yield Suspect("route", start.name, text, words, look=f"ip route get {leg.sent_to}")


def _is_foreign_gateway(leg: Leg, gateway: Address) -> bool:
    """Returns whether a pod has another gateway than the node, although its network makes the node the gateway."""
    if not isinstance(leg.start, PodPlace) or leg.topology.place_of(gateway) is not None:
        return False
    return leg.topology.is_gateway(leg.start.pod)


def _node_suspects(leg: Leg, arriving: Link | None) -> Iterator[Suspect]:
    """Yields why the node does not pass a packet on that arrived there, or that it sends itself."""
    node, size = leg.topology.node, leg.seen.flow.size
    if isinstance(leg.end, PodPlace):
        yield from layer2.safe(_container_links(leg.end))
    if arriving is not None:
        yield from _lying_neighbours(leg)
        leaving = _bridge_exit(leg, arriving)
        mac = _mac_of(leg) if leaving else b""
        yield from layer2.safe(layer2.bridge_suspects(node, arriving, leaving, mac))
        if leaving is not None:
            yield from layer3.mtu_suspects(node, leaving, size)
            return
    yield from layer3.conntrack_suspects(node)
    device = _routing_device(leg, arriving)
    packet = leg.packet(iif=device, to=leg.routed_to)
    yield from layer3.routing_suspects(node, packet)
    yield from layer3.destination_suspects(leg.topology, packet)
    choice = node.route(packet)
    if not choice.is_delivered:
        return
    leaving = node.link_of(choice.ifindex)
    if leaving is not None:
        yield from layer2.link_suspects(node, leaving)
        yield from layer3.mtu_suspects(node, leaving, size)
    next_hop = choice.gateway or leg.routed_to
    yield from _exit_suspects(leg, choice.ifindex, next_hop)


def _exit_suspects(leg: Leg, index: int, next_hop: Address) -> Iterator[Suspect]:
    """Yields why a packet that the node routed does not reach the pod's veth: neighbour, bridge port."""
    node = leg.topology.node
    neighbours = list(layer2.neighbour_suspects(leg.topology, node, index, next_hop))
    yield from (one for one in neighbours if one.name == "neighbour")
    port, leaving = _end_veth(leg), node.link_of(index)
    if port is not None and leaving is not None and leaving.kind == "bridge" and port.master != leaving.index:
        text = f"{port.name} is not a port of bridge {leaving.name}, by which the node sends to {leg.routed_to}"
        yield Suspect("bridge-port", node.name, text, port.name, look=f"ip link show {port.name}")
    if port is not None:
        yield from layer2.safe(layer2.bridge_suspects(node, port, None))
        yield from layer3.mtu_suspects(node, port, leg.seen.flow.size)
        mac = _mac_of(leg)
        bridge = node.link_of(port.master)
        if mac and bridge is not None:
            yield from layer2.safe(layer2.forwarding_suspects(node, bridge, port, mac))
    if isinstance(leg.end, PodPlace):
        yield from missing_address(leg.end, leg.routed_to)
    yield from neighbours


def _end_suspects(leg: Leg) -> Iterator[Suspect]:
    """Yields why a packet that left the node does not arrive in the pod."""
    end, node = leg.end, leg.topology.node
    if end is None or end is node:
        return
    arrived = leg.sightings(end, outgoing=False)
    if arrived and all(one.is_for_another for one in arrived):
        yield from _lying_neighbours(leg)
    yield from layer2.safe(_container_links(end))
    port = _end_veth(leg)
    if port is not None:
        yield from layer3.mtu_suspects(node, port, leg.seen.flow.size)
    for link in end.links:
        if link.name == _interface(end):
            yield from layer3.mtu_suspects(end, link, leg.seen.flow.size)


def list_links(topology: Topology, flow: Flow) -> Iterator[tuple[Place, Link | None]]:
    """Yields the interfaces on a flow's way: in each pod, its host veth and bridge, and the node's uplink."""
    node = topology.node
    for place in (flow.source, flow.target):
        if isinstance(place, PodPlace):
            yield place, place.link(_interface(place))
        veth = _host_veth(topology, place)
        yield node, veth
        yield node, node.link_of(veth.master) if veth else None
    if flow.target is None:
        yield node, node.link_of(node.route(packet_to(flow.destination)).ifindex)


def missing_address(place: Place, address: Address) -> Iterator[Suspect]:
    """Yields that a place does not have an address."""
    if not place.has(address):
        text = f"no interface has the address {address} any more"
        yield Suspect("address", place.name, text, str(address), look="ip address")


def _input_suspects(leg: Leg, arriving: Link | None) -> Iterator[Suspect]:
    node = leg.topology.node
    yield from _lying_neighbours(leg)
    yield from layer3.conntrack_suspects(node)
    device = _routing_device(leg, arriving)
    yield from layer3.routing_suspects(node, leg.packet(iif=device, to=leg.routed_to))


def _lying_neighbours(leg: Leg) -> Iterator[Suspect]:
    """Yields neighbour entries of the start, or of the node, with a MAC address that is not the next hop's."""
    choice = leg.start.route(leg.packet())
    if choice.is_delivered:
        next_hop = choice.gateway or leg.sent_to
        neighbours = layer2.neighbour_suspects(leg.topology, leg.start, choice.ifindex, next_hop)
        yield from (one for one in neighbours if one.name == "neighbour")
    if leg.start is leg.topology.node:
        return
    node = leg.topology.node
    device = _routing_device(leg, _arriving_link(leg))
    choice = node.route(leg.packet(iif=device, to=leg.routed_to))
    if choice.is_delivered:
        next_hop = choice.gateway or leg.routed_to
        neighbours = layer2.neighbour_suspects(leg.topology, node, choice.ifindex, next_hop)
        yield from (one for one in neighbours if one.name == "neighbour")


def _interface(place: Place) -> str:
    return place.pod.attachment.ifname if isinstance(place, PodPlace) else "eth0" if place.kind == EXTERNAL else ""


def _container_links(place: Place) -> Iterator[Suspect]:
    link = place.link(_interface(place))
    if link is not None:
        yield from layer2.link_suspects(place, link)


def _host_veth(topology: Topology, place: Place | None) -> Link | None:
    if isinstance(place, PodPlace):
        return topology.host_veth(place.pod)
    if place is not None and place.kind == EXTERNAL:
        return topology.node.link(getattr(place, "host_veth", ""))
    return None


def _arriving_link(leg: Leg) -> Link | None:
    """Returns the interface of the node at which a packet of the start arrives, None for the node's own."""
    return leg.arriving or _host_veth(leg.topology, leg.start)


def _end_veth(leg: Leg) -> Link | None:
    return _host_veth(leg.topology, leg.end)


def _bridge_exit(leg: Leg, arriving: Link) -> Link | None:
    """Returns the port of the same bridge where a frame leaves that is only bridged, None if the node routes it."""
    port = _end_veth(leg)
    if port is None or not arriving.master or not isinstance(leg.end, PodPlace):
        return None
    choice = leg.start.route(leg.packet())
    is_on_link = choice.route is not None and choice.gateway is None
    return port if is_on_link and not _is_translated(leg) else None


def _is_translated(leg: Leg) -> bool:
    return leg.routed_to != leg.sent_to


def _routing_device(leg: Leg, arriving: Link | None) -> Link | None:
    """Returns the interface from whose point of view the node routes: the bridge of a port."""
    if arriving is None:
        return None
    return leg.topology.node.link_of(arriving.master) or arriving


def _left_node(leg: Leg) -> bool:
    """Returns whether the packet left the node by the interface that leads to its end."""
    node, port = leg.topology.node, _end_veth(leg)
    if leg.end is node:
        return False
    sent = leg.sightings(node, outgoing=True)
    if port:
        return any(one.interface == port.name for one in sent)
    arriving = _arriving_link(leg)  # a frame with a wrong address may be flooded to the other ports of its bridge
    master = arriving.master if arriving else 0
    links = [link for one in sent if (link := node.link(one.interface)) and link.kind != "ifb"]  # the queue of a limit
    return leg.end is None and any(not (master and link.master == master) for link in links)


def _mac_of(leg: Leg) -> bytes:
    """Returns the MAC address of the end's interface, b"" if it is not known."""
    if leg.end is None:
        return b""
    link = leg.end.link(_interface(leg.end))
    return bytes.fromhex(link.mac.replace(":", "")) if link and link.mac else b""
