"""Parses the destination of a trace, and builds the packet's flow."""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple

from cni.address import Address
from cni.errors import invalid_conf
from kernel import fib
from kernel.packet_tap import PROTOCOLS, TCP, UDP
from podwire import destination_argument
from podwire.trace.exchange import Flow
from podwire.trace.outside import ExternalHost
from podwire.trace.place import EXTERNAL, Place
from podwire.trace.topology import PodPlace, Topology

NODE_NAME, GATEWAY = "node", "gateway"
_HINT = "examples: 10.22.0.3:80, [fd00::3]:53/udp, default/web-0:80, :8080 (a port of the node), gateway"
_PROTOCOLS = {"tcp": TCP, "udp": UDP}


class Destination(NamedTuple):
    """A destination: an address, a pod's name, "node", "gateway" or "outside"; "" is the node. Port 0: an echo."""

    host: str
    port: int
    protocol: int


def parse(text: str) -> Destination:
    """Parses DEST[:PORT[/udp]]; raises UsageError."""
    host, port, protocol = destination_argument.parse(text, _PROTOCOLS, _HINT)
    return Destination(host, port, _PROTOCOLS.get(protocol, 0))


def source_place(topology: Topology, name: str) -> Place:
    """Returns the place that a packet is sent from: a pod, or "node"; raises CniError(7) for an unknown pod."""
    return topology.node if name == NODE_NAME else topology.place(topology.find(name))


def build_flow(
    topology: Topology, source: Place, desired: Destination, outer: ExternalHost | None, version: int = 0
) -> Flow:
    """Returns the flow to a destination; raises CniError for one without a usable address.

    `outer` is the outside, if it exists; `version` chooses the IP version of a name, 0: IPv4 if possible.
    """
    versions = [version] if version else [4, 6]
    address = next(
        (candidate for each in versions if (candidate := _address(topology, source, desired.host, outer, each))), None
    )
    if address is None:
        which = f"IPv{version} " if version else ""
        msg = f'"{desired.host or NODE_NAME}" has no {which}address that {source.name} could send to'
        raise invalid_conf(msg)
    source = _place_toward(topology, source, address)
    local = source_address(source, address)
    if local is None:
        msg = f"{source.name} has no IPv{address.version} address"
        raise invalid_conf(msg)
    protocol = desired.protocol or PROTOCOLS[address.version]
    target, port = _target(topology, outer, address, desired)
    return Flow(source, local, address, protocol, desired.port, target, port)


def source_address(source: Place, destination: Address) -> Address | None:
    """Returns the address that a place sends from: the attachment's in a pod, else the one that routing chooses."""
    if isinstance(source, PodPlace) and (local := source.address(destination.version)):
        return local
    chosen = fib.source_for(source.socket, destination) or source.usable_address(destination.version)
    is_scoped = chosen is not None and chosen.version == 6 and chosen.is_link_local
    return None if is_scoped else chosen  # a link-local address cannot be bound without its interface


def _place_toward(topology: Topology, source: Place, address: Address) -> Place:
    """Returns the attachment of a pod in whose subnet an address is: the pod sends from there. Otherwise `source`."""
    if not isinstance(source, PodPlace) or source.is_on_link(address):
        return source
    same = (pod for pod in topology.pods if pod.attachment.container_id == source.pod.attachment.container_id)
    return next((place for place in map(topology.place, same) if place.is_on_link(address)), source)


def _target(
    topology: Topology, outer: ExternalHost | None, address: Address, desired: Destination
) -> tuple[Place | None, int]:
    """Returns the place where a packet should arrive, and the port there."""
    name = {UDP: "udp", TCP: "tcp"}.get(desired.protocol, "")
    if name and topology.node.has(address) and (candidate := topology.published(address, desired.port, name)):
        pod, published = candidate
        return topology.place(pod), published.container_port
    if outer is not None and outer.has(address):
        return outer, desired.port
    return topology.place_of(address), desired.port


def _address(topology: Topology, source: Place, host: str, outer: ExternalHost | None, version: int) -> Address | None:
    if host in ("", NODE_NAME):
        return topology.node_address(version) or (outer.gateways.get(version) if outer else None)
    if host == EXTERNAL:
        return outer.local_addresses.get(version) if outer else None
    if host == GATEWAY:
        return next((one.gateway for one in source.fib.list_defaults(version)), None)
    try:
        address = ip_address(host)
    except ValueError:
        return topology.place(topology.find(host)).address(version)
    return address if address.version == version else None
