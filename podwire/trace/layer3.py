"""Whether a namespace routes a packet: rules, routes, reverse-path filter, forwarding, connection tracking, MTU."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from kernel.fib import TABLE_LOCAL, packet_to
from kernel.link import Link
from kernel.netfilter.packet import Packet
from kernel.route import TABLE_MAIN
from podwire.predictions.routing import Choice
from podwire.trace.place import Place
from podwire.trace.suspect import Suspect
from podwire.trace.topology import Topology

_STRICT, _LOOSE = 1, 2
_MAIN_PRIORITY = 32766  # of the rule that looks up table main
_REASONS = {
    errno.ENETUNREACH: "there is no route",
    errno.EHOSTUNREACH: "the host is unreachable: a route of type unreachable, or forwarding is off",
    errno.EACCES: "a route or policy rule prohibits it",
    errno.EINVAL: "a blackhole route, or a source address that is not accepted here",
    errno.EXDEV: "the source address is not accepted on this interface",
}


def describe(place: Place, choice: Choice) -> str:
    """Returns the choice as text: the route, and its rule if it is not in the table main or local."""
    if choice.route is None:
        return _REASONS.get(choice.error, f"no route (error {choice.error})")
    text = choice.route.describe(place.names)
    if choice.rule and choice.route.table not in (TABLE_MAIN, TABLE_LOCAL):
        text += f", by the rule {choice.rule.words}"
    return text


def routing_suspects(place: Place, packet: Packet) -> Iterator[Suspect]:
    """Yields why a namespace has no way for a packet; one that arrives on an interface must be forwarded."""
    arriving = place.link(packet.iif) if packet.iif else None
    if arriving is not None:
        yield from _forwarding_suspects(place, arriving, packet)
        yield from _reverse_path_suspects(place, arriving, packet)
    choice = place.route(packet)
    if choice.is_delivered:
        return
    version = "-6 " if packet.destination.version == 6 else ""
    if choice.rule is not None and choice.route is None:
        text = f"a policy rule discards packets to {packet.destination}: {choice.rule.words}"
        yield Suspect("policy-rule", place.name, text, choice.rule.words, look=f"ip {version}rule")
    elif choice.route is not None:
        route = choice.route.describe(place.names)
        by = f", by the rule {choice.rule.words}" if choice.rule and choice.rule.priority < _MAIN_PRIORITY else ""
        text = f"a route discards packets to {packet.destination}: {route}{by}"
        yield Suspect("route", place.name, text, route, look=f"ip {version}route show table all")
    else:
        text = f"packets to {packet.destination}: {_REASONS.get(choice.error, f'error {choice.error}')}"
        text += place.fib.describe_other_source(packet, place.names)
        yield Suspect(
            "route", place.name, text, str(packet.destination), look=f"ip {version}route get {packet.destination}"
        )


def destination_suspects(topology: Topology, packet: Packet) -> Iterator[Suspect]:
    """Yields a route of the node that leads packets to a pod out of another interface than the pod's."""
    pod = topology.pod_of(packet.destination)
    node = topology.node
    if pod is None or node.has(packet.destination):
        return
    expected = {name for name in (pod.bridge, pod.host_interface) if name}
    choice = node.route(packet)
    leaving = node.link_of(choice.ifindex)
    name = leaving.name if leaving else ""
    if leaving and leaving.kind == "bridge" and not pod.bridge:
        return  # the pod's veth is not a port any more
    if choice.is_delivered and choice.route and expected and name and name not in expected:
        where = pod.bridge or pod.host_interface
        text = f"packets to {packet.destination} leave by {name}, not by the pod's {where}: {describe(node, choice)}"
        version = "-6 " if packet.destination.version == 6 else ""
        look = f"ip {version}route get {packet.destination}"
        yield Suspect("route", node.name, text, choice.route.describe(node.names), look=look)


def conntrack_suspects(place: Place) -> Iterator[Suspect]:
    """Yields a full connection tracking table."""
    count, most = (place.sysctl_number(f"netfilter/nf_conntrack_{name}") for name in ("count", "max"))
    if count is not None and most and count >= most:
        text = f"the connection tracking table is full: {count} of {most} entries; new connections are dropped"
        look = "sysctl net.netfilter.nf_conntrack_count net.netfilter.nf_conntrack_max"
        yield Suspect("conntrack", place.name, text, "nf_conntrack_max", look=look)


def mtu_suspects(place: Place, link: Link, size: int) -> Iterator[Suspect]:
    """Yields an interface that is too small for packets of a size."""
    if size > link.mtu:
        text = f"interface {link.name} has MTU {link.mtu}: packets of {size} bytes that must not be fragmented are lost"
        yield Suspect("mtu", place.name, text, link.name, look=f"ip link show {link.name}")


def _forwarding_suspects(place: Place, arriving: Link, packet: Packet) -> Iterator[Suspect]:
    if place.has(packet.destination):
        return
    version = packet.destination.version
    for name in (f"ipv{version}/conf/{arriving.name}/forwarding", f"ipv{version}/conf/all/forwarding"):
        if place.sysctl_number(name) == 0:
            text = f"forwarding is off for packets that arrive at {arriving.name}: net/{name} is 0"
            yield Suspect("forwarding", place.name, text, f"net/{name}", look=f"sysctl net/{name}")
            if version == 4:
                return


def _reverse_path_suspects(place: Place, arriving: Link, packet: Packet) -> Iterator[Suspect]:
    """Yields the reverse-path filter (RFC 3704): the answer to the source would leave by another interface."""
    if packet.version == 6:
        return
    settings = {name: place.sysctl_number(f"ipv4/conf/{name}/rp_filter") or 0 for name in ("all", arriving.name)}
    mode = max(settings.values())
    if not mode:
        return
    back = place.route(packet_to(packet.source, packet.destination, mark=packet.mark or 0))
    leaving = back.ifindex if back.is_delivered else 0
    if leaving == arriving.index or (mode == _LOOSE and leaving):
        return
    key = max(settings, key=lambda name: settings[name])
    way = f"leave by {place.names.get(leaving, leaving)}" if leaving else "have no route"
    text = (
        f"rp_filter drops packets from {packet.source} that arrive at {arriving.name}, since answers would {way} "
        f"(net/ipv4/conf/{key}/rp_filter is {mode})"
    )
    name = f"net/ipv4/conf/{key}/rp_filter"
    yield Suspect("rp-filter", place.name, text, name, look=f"ip route get {packet.source}")
