"""The paths that a pod has: to its gateway, the node, other pods, the outside, its published ports, its resolvers.

A path exists if the pod's network is meant to carry it: the result of its ADD has the gateway or the route, and no
plugin isolates the pods from each other. Only the networks with the pods' default routes are connected by the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from cni.address import Address
from cni.fields import Fields
from kernel.address import IFA_F_DADFAILED, IFA_F_TENTATIVE
from kernel.fib import UNICAST, packet_to
from kernel.link import IFF_NOARP
from kernel.packet_tap import PROTOCOLS, TCP, UDP
from podwire.attachments import CachedAttachment
from podwire.facts import resolvers
from podwire.node.model import HostPort, Pod
from podwire.predictions.routing import REMOTE
from podwire.trace.destination import source_address
from podwire.trace.exchange import Flow
from podwire.trace.outside import ExternalHost
from podwire.trace.place import Place
from podwire.trace.topology import PodPlace, Topology, name_of

ECHO, DATAGRAM, STREAM, QUERY, DUPLICATE, NEXT_HOP = "icmp", "udp", "tcp", "dns", "duplicate", "next-hop"
_LOOPBACK = ip_address("127.0.0.1")
_MAC_DIGITS = 17  # "02:00:00:00:00:01": not InfiniBand's
_ISOLATING = ("isolated", "same-bridge")
# Interfaces of which podwire does not know what they are connected to.
_OPEN_ENDED = {
    "host-device": "each interface is on a network that is not known here",
    "tap": "a virtual machine reads the interface",
}


class Path(NamedTuple):
    """A path to test: `name` of its kind, what is sent, from where to which address, and where it should arrive.

    `port` is what a client connects to (0: any that is free at `target`), `target_port` the port there. With `link`, an
    interface of the source, the packet asks there for the MAC address of the destination.
    """

    pod: Pod
    name: str
    kind: str
    source: Place
    source_address: Address
    destination: Address
    port: int = 0
    target: Place | None = None
    target_port: int = 0
    link: str = ""

    @property
    def flow(self) -> Flow:
        """The flow of the path's packets, of an echo for kinds without a protocol of their own."""
        protocol = {DATAGRAM: UDP, STREAM: TCP, QUERY: UDP}.get(self.kind, PROTOCOLS[self.destination.version])
        return Flow(
            self.source, self.source_address, self.destination, protocol, self.port, self.target, self.target_port
        )

    @property
    def title(self) -> str:
        """The name and the protocol, which is the name itself for some."""
        return self.name if self.name == self.kind else f"{self.name} {self.kind}"

    @property
    def way(self) -> str:
        """The addresses, the port, and the pod at the other end of "pod-to-pod"; or the one address."""
        if self.kind == DUPLICATE:
            return str(self.destination)
        port = f" port {self.port}" if self.port else ""
        other = f" ({self.target.name})" if self.name == "pod-to-pod" and self.target else ""
        return f"{self.source_address} > {self.destination}{port}{other}"


def trace_command(path: Path) -> str:
    """Returns the `podwire trace` command for a path."""
    source = name_of(path.pod) if isinstance(path.source, PodPlace) else path.source.name
    destination = f"[{path.destination}]" if path.port and path.destination.version == 6 else str(path.destination)
    port = f":{path.port}" if path.port else ""
    return f"podwire trace {source} {destination}{port}{'/udp' if path.kind == DATAGRAM and path.port else ''}"


def list_paths(
    topology: Topology, pod: Pod, outer: ExternalHost | None, addresses: tuple[Address, ...]
) -> Iterator[Path]:
    """Yields the paths of a pod; `addresses` are further ones that the user names."""
    place = topology.place(pod)
    cached = topology.cached(pod)
    is_default = pod in topology.default_attachments
    for version in (4, 6):
        local = place.address(version)
        if local is None:
            continue
        yield from _local_paths(topology, pod, place, local, cached)
        yield from _pod_paths(topology, pod, place, local, cached)
        if topology.has_default(pod, version):
            yield from _outer_paths(topology, pod, place, local, outer)
        for address in addresses:
            if address.version == version and (is_default or place.is_on_link(address)):
                yield Path(pod, "address", ECHO, place, local, address, target=topology.place_of(address))
        yield from _port_paths(topology, pod, place, local, outer, cached)
    if is_default:
        yield from _query_paths(pod, place)


def describe_left_out(topology: Topology, pods: Sequence[Pod]) -> Iterator[str]:
    """Yields the paths that were not tested because nothing says that packets should pass."""
    second = dict.fromkeys(pod.network for pod in pods if pod not in topology.default_attachments)
    if second:
        names = ", ".join(second)
        yield f"{names}: DNS, and pods of other networks (the node connects only networks with default routes)"
    for network in dict.fromkeys(pod.network for pod in pods):
        attached = [one for one in pods if one.network == network]
        if any(not _is_on_segment(topology, attached[0], other) for other in attached):
            yield f"{network}: between pods with different definitions of it (another bridge or master)"
        kinds = {_interface_type(topology.cached(pod)) for pod in attached} & _OPEN_ENDED.keys()
        yield from (f"{network}: pod to pod ({_OPEN_ENDED[kind]})" for kind in kinds)


def find_bypass(topology: Topology, pod: Pod, outer: ExternalHost) -> str:
    """Returns the policy rule that sends a pod's packets to an uplink, past the outside of the test; "" without one."""
    node, place = topology.node, topology.place(pod)
    for version, destination in outer.local_addresses.items():
        if local := place.address(version):
            choice = node.fib.look_up(packet_to(destination, local, pod.bridge or pod.host_interface))
            link = node.link_of(choice.ifindex)
            if choice.kind == UNICAST and choice.rule and link and link.is_up and link.name != outer.host_veth:
                return choice.rule.words
    return ""


def list_next_hops(topology: Topology, pod: Pod) -> Iterator[Path]:
    """Yields a path to each gateway to which the node sends a pod's packets to other machines."""
    node, place = topology.node, topology.place(pod)
    for version, remotes in REMOTE.items():
        local = place.address(version)
        if local is None or pod.kind != "veth" or not topology.has_default(pod, version):
            continue
        for remote in remotes:
            choice = node.fib.look_up(packet_to(ip_address(remote), local, pod.bridge or pod.host_interface))
            for index, gateway in choice.route.hops if choice.is_delivered and choice.route else ():
                link = node.link_of(index)
                source = _asking_address(node, index, gateway) if gateway else None
                answers_arp = link and link.is_up and len(link.mac) == _MAC_DIGITS and not link.flags & IFF_NOARP
                if gateway and source and link and answers_arp:
                    yield Path(pod, NEXT_HOP, NEXT_HOP, node, source, gateway, link=link.name)


def _asking_address(node: Place, index: int, gateway: Address) -> Address | None:
    """Returns the address of an interface from which to ask for a gateway's MAC address; None if that is not asked for.

    An address that another machine may have would take that machine's packets away.
    """
    entries = [one for one in node.neighbours if (one.ifindex, one.address) == (index, gateway) and not one.is_proxy]
    if any(one.is_permanent or one.is_without_arp for one in entries):
        return None
    usable = [
        one.address
        for one in node.addresses.get(index, ())
        if one.address.version == gateway.version and not one.flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED)
    ]
    return next((one.ip for one in sorted(usable, key=lambda one: gateway not in one.network)), None)


def _local_paths(
    topology: Topology, pod: Pod, place: PodPlace, local: Address, cached: CachedAttachment | None
) -> Iterator[Path]:
    """Yields the paths between pod and node, and the search for a second owner of the address."""
    node = topology.node
    if pod.kind in ("veth", "macvlan"):
        yield Path(pod, "duplicate", DUPLICATE, place, local, local, link=pod.attachment.ifname)
    gateway = _gateway(cached, local.version)
    if gateway is not None and not (node.has(gateway) or topology.is_gateway(pod)):
        gateway = None  # a router outside the node
    if gateway is not None:
        yield Path(pod, "gateway", ECHO, place, local, gateway, target=node)
    if pod.kind != "veth" or gateway is None:
        return
    node_address = topology.node_address(local.version)
    if node_address is not None and topology.has_default(pod, local.version):
        yield Path(pod, "pod-to-node", ECHO, place, local, node_address, target=node)
    if source := source_address(node, local):
        for kind in (STREAM, DATAGRAM):
            yield Path(pod, "node-to-pod", kind, node, source, local, target=place)


def _pod_paths(
    topology: Topology, pod: Pod, place: PodPlace, local: Address, cached: CachedAttachment | None
) -> Iterator[Path]:
    """Yields the paths to the next pod of the same network, and to one pod of each other network."""
    for other in _peers(topology, pod):
        if not _may_reach(cached, topology.cached(other), same=other.network == pod.network):
            continue
        there = topology.place(other)
        destination = there.address(local.version)
        if destination is not None and (other.network == pod.network or topology.has_default(pod, local.version)):
            for kind in (STREAM, DATAGRAM):
                yield Path(pod, "pod-to-pod", kind, place, local, destination, target=there)


def _outer_paths(
    topology: Topology, pod: Pod, place: PodPlace, local: Address, outer: ExternalHost | None
) -> Iterator[Path]:
    if outer is not None and (destination := outer.local_addresses.get(local.version)) and pod.kind == "veth":
        for kind in (STREAM, DATAGRAM):
            yield Path(pod, "pod-to-outside", kind, place, local, destination, target=outer)


def _port_paths(
    topology: Topology,
    pod: Pod,
    place: PodPlace,
    local: Address,
    outer: ExternalHost | None,
    cached: CachedAttachment | None,
) -> Iterator[Path]:
    """Yields the paths to the pod's published ports: from outside, the node, 127.0.0.1, and the pod itself."""
    node, translates_source = topology.node, _translates_source(cached)
    for published in pod.host_ports:
        kind = {"tcp": STREAM, "udp": DATAGRAM}.get(published.protocol)
        destination = _bound_address(topology, published, local.version)
        if kind is None or destination is None:
            continue
        sources: list[tuple[str, Place, Address | None, Address]] = []
        if outer is not None:
            sources.append(("outside-to-port", outer, outer.local_addresses.get(local.version), destination))
        sources.append(("node-to-port", node, source_address(node, destination), destination))
        if translates_source and local.version == 4 and _is_unbound(published):
            sources.append(("localhost-to-port", node, _LOOPBACK, _LOOPBACK))
        if translates_source:
            sources.append(("hairpin-port", place, local, destination))
        for name, source, address, to in sources:
            if address is not None:
                port = published.host_port
                yield Path(pod, name, kind, source, address, to, port, place, published.container_port)


def _query_paths(pod: Pod, place: PodPlace) -> Iterator[Path]:
    for resolver in resolvers.list_resolvers(pod.netns) or ():
        local = place.address(resolver.version) or source_address(place, resolver)
        if local is not None:
            yield Path(pod, "dns", QUERY, place, local, resolver, 53)


def _peers(topology: Topology, pod: Pod) -> Iterator[Pod]:
    """Yields the pod after this one in its network, and the first of each other network."""
    in_network = (other for other in topology.pods if other.network == pod.network)
    others = (other for other in in_network if other.attachment != pod.attachment)
    same = [other for other in others if _is_on_segment(topology, pod, other)]
    later = [other for other in same if other.attachment > pod.attachment]
    yield from (later or same)[:1]
    connected = topology.default_attachments
    if pod not in connected:
        return
    reachable = (other for other in reversed(topology.pods) if other in connected)
    first_pods = {other.network: other for other in reachable if other.network != pod.network}
    for other in first_pods.values():
        if other.attachment.container_id != pod.attachment.container_id and other.kind == pod.kind == "veth":
            yield other


def _is_on_segment(topology: Topology, pod: Pod, other: Pod) -> bool:
    """Returns whether one network connects two attachments to networks of one name; the node connects its default ones.

    Two Kubernetes namespaces may have definitions with one name, and a definition may have changed since an ADD.
    """
    one, two = topology.cached(pod), topology.cached(other)
    if pod in topology.default_attachments or not (one and one.network and two and two.network):
        return True
    return one.network.segment == two.network.segment


def _may_reach(one: CachedAttachment | None, other: CachedAttachment | None, *, same: bool) -> bool:
    """Returns whether the configuration lets two pods reach each other: no plugin isolates either."""
    if _interface_type(one) in _OPEN_ENDED:
        return False
    has_vlan = any(plugin["type"] == "bridge" and Fields(plugin).has("vlan") for plugin in _plugins(one, other))
    return not (has_vlan or is_isolated(one, other, same=same))


def is_isolated(one: CachedAttachment | None, other: CachedAttachment | None, *, same: bool) -> bool:
    """Returns whether the configuration isolates two pods from each other; `same`: they are in one network."""
    for plugin in _plugins(one, other):
        fields = Fields(plugin)
        if plugin["type"] == "bridge" and fields.boolean("portIsolation"):
            return True
        policy = fields.string("ingressPolicy") if plugin["type"] == "firewall" else ""
        if policy == "isolated" or (policy in _ISOLATING and not same):
            return True
    return False


def _interface_type(cached: CachedAttachment | None) -> str:
    """Returns the type of the plugin that creates an attachment's interface, "" if it is unknown."""
    return str(cached.network.plugins[0]["type"]) if cached and cached.network else ""


def _plugins(*attachments: CachedAttachment | None) -> Iterator[Mapping[str, object]]:
    for cached in attachments:
        yield from cached.network.plugins if cached and cached.network else ()


def _gateway(cached: CachedAttachment | None, version: int) -> Address | None:
    if cached is None:
        return None
    return next((ip.gateway for ip in cached.typed_result.ips if ip.gateway and ip.gateway.version == version), None)


def _translates_source(cached: CachedAttachment | None) -> bool:
    plugins = cached.network.plugins if cached and cached.network else ()
    return any(plugin["type"] == "portmap" and Fields(plugin).boolean("snat", True) for plugin in plugins)


def _is_unbound(published: HostPort) -> bool:
    return published.host_ip in ("", "0.0.0.0", "::")


def _bound_address(topology: Topology, published: HostPort, version: int) -> Address | None:
    """Returns the address at which a port is published for an IP version, None if it is not."""
    if _is_unbound(published):
        return topology.node_address(version)
    bound = ip_address(published.host_ip)
    return bound if bound.version == version and not bound.is_loopback else None
