"""Whether frames pass from a veth through its bridge: links, port states, VLANs, isolation, forwarding entries."""

from __future__ import annotations

from collections.abc import Iterator

from cni.address import Address, format_mac
from cni.errors import CniError
from kernel import neighbour, vlan
from kernel.bridge_state import FORWARDING
from kernel.link import IFF_LOWER_UP, Link
from podwire.trace.place import Place
from podwire.trace.suspect import Suspect
from podwire.trace.topology import Topology


def link_suspects(place: Place, link: Link) -> Iterator[Suspect]:
    """Yields why an interface neither sends nor receives."""
    if not link.is_up:
        text = f"interface {link.name} is down"
        yield Suspect("link", place.name, text, link.name, look=f"ip link show {link.name}")
    elif not link.flags & IFF_LOWER_UP:
        text = f"interface {link.name} has no carrier: its other end is down"
        yield Suspect("link", place.name, text, link.name, look=f"ip link show {link.name}")


def bridge_suspects(node: Place, arriving: Link, leaving: Link | None, mac: bytes = b"") -> Iterator[Suspect]:
    """Yields why a bridge does not forward frames from a port to another one, or (None) to the bridge itself.

    `mac` is the destination of the frames, b"" if unknown.
    """
    yield from link_suspects(node, arriving)
    bridge = node.link_of(arriving.master)
    if bridge is None or bridge.kind != "bridge":
        return
    yield from link_suspects(node, bridge)
    if leaving is not None:
        yield from link_suspects(node, leaving)
        if leaving.master != bridge.index:
            text = f"{leaving.name} is not a port of bridge {bridge.name}"
            yield Suspect("bridge-port", node.name, text, leaving.name, look=f"ip link show {leaving.name}")
            return
    yield from _port_suspects(node, bridge, arriving, leaving)
    yield from _vlan_suspects(node, bridge, arriving, leaving)
    if mac:
        yield from forwarding_suspects(node, bridge, leaving, mac)


def _port_suspects(node: Place, bridge: Link, arriving: Link, leaving: Link | None) -> Iterator[Suspect]:
    settings = node.link_settings
    ports = [
        (each, settings.ports[each.index]) for each in (arriving, leaving) if each and each.index in settings.ports
    ]
    for each, port in ports:
        if port.state != FORWARDING:
            stp = " by STP" if settings.has_stp(bridge) else ""
            text = (
                f"port {each.name} of bridge {bridge.name} is in state {port.state_name}{stp}, and forwards no frames"
            )
            yield Suspect("bridge-port", node.name, text, each.name, look=f"bridge -d link show dev {each.name}")
    if leaving is None or len(ports) < 2:
        return
    if arriving.index == leaving.index and not ports[0][1].hairpin:
        text = f"the packet would leave by the port {arriving.name} that it came from, and hairpin is off there"
        yield Suspect("hairpin", node.name, text, arriving.name, look=f"bridge -d link show dev {arriving.name}")
    elif arriving.index != leaving.index and all(port.isolated for _, port in ports):
        text = f"the ports {arriving.name} and {leaving.name} of bridge {bridge.name} are isolated from each other"
        yield Suspect("isolation", node.name, text, leaving.name, look=f"bridge -d link show dev {leaving.name}")
    if arriving.index != leaving.index and ports[-1][1].flood is False and ports[-1][1].learning is False:
        text = f"port {leaving.name} of bridge {bridge.name} neither learns addresses nor floods frames"
        yield Suspect("bridge-port", node.name, text, leaving.name, look=f"bridge -d link show dev {leaving.name}")


def _vlan_suspects(node: Place, bridge: Link, arriving: Link, leaving: Link | None) -> Iterator[Suspect]:
    if not node.link_settings.filters_vlans(bridge):
        return
    first = vlan.get_member(node.socket, bridge, arriving.index)
    second = vlan.get_member(node.socket, bridge, leaving.index if leaving else bridge.index)
    pvid = vlan.pvid_of(first.vlans) if first else 0
    look = f"bridge vlan show dev {arriving.name}"
    if not pvid:
        text = f"port {arriving.name} of bridge {bridge.name} has no PVID, and drops untagged frames"
        yield Suspect("vlan", node.name, text, arriving.name, look=look)
        return
    name = leaving.name if leaving else bridge.name
    if second is not None and pvid not in second.vlans:
        text = f"frames of {arriving.name} are in VLAN {pvid} of bridge {bridge.name}, and {name} is not a member"
        yield Suspect("vlan", node.name, text, name, look=f"bridge vlan show dev {name}")


def forwarding_suspects(node: Place, bridge: Link, leaving: Link | None, mac: bytes) -> Iterator[Suspect]:
    """Yields forwarding entries that send frames for a MAC address to another port than `leaving`."""
    for entry in neighbour.list_forwarding(node.socket):
        is_expected = leaving is not None and entry.ifindex == leaving.index and not entry.is_local
        if (entry.master, entry.mac) != (bridge.index, mac) or is_expected:
            continue
        port = node.names.get(entry.ifindex, str(entry.ifindex))
        where = leaving.name if leaving else f"the bridge itself ({bridge.name})"
        if entry.is_local:
            reason = f"an entry for {format_mac(mac)} at {port} delivers its frames to the node itself"
        elif entry.is_static:
            reason = f"a static entry sends frames for {format_mac(mac)} to {port}"
        else:
            reason = f"frames from {format_mac(mac)} arrived at {port}: another machine has this MAC address"
        text = f"bridge {bridge.name}: {reason}, not to {where}"
        yield Suspect("forwarding-entry", node.name, text, port, look=f"bridge fdb show br {bridge.name}")


def neighbour_suspects(topology: Topology, place: Place, index: int, next_hop: Address) -> Iterator[Suspect]:
    """Yields why frames to a next hop do not reach it: an entry that lies, or one that was not answered."""
    entry = place.neighbour(index, next_hop)
    name = place.names.get(index, str(index))
    look = f"ip neighbour show {next_hop} dev {name}"
    owner = topology.place_of(next_hop)
    links = owner.links_by_address.get(next_hop, []) if owner else []
    truth = links[0] if links else None
    if entry is None:
        return
    if not entry.is_usable:
        where = f", which {owner.name} has on {truth.name}" if owner and truth else ": no host of the network has it"
        text = f"no answer to the question for the MAC address of {next_hop} on {name}{where}"
        yield Suspect("neighbour-unanswered", place.name, text, str(next_hop), look=look)
    elif owner and truth and not entry.is_without_arp and not any(_has_mac(link, entry.mac) for link in links):
        kind = "static" if entry.is_permanent else "learned"
        text = (
            f"the {kind} neighbour entry of {next_hop} on {name} is {format_mac(entry.mac)}, but {owner.name} has "
            f"{truth.mac} on {truth.name}"
        )
        yield Suspect("neighbour", place.name, text, f"{next_hop} {format_mac(entry.mac)}", look=look)


def _has_mac(link: Link, mac: bytes) -> bool:
    """Returns whether an interface may have a MAC address; those of some kinds have that of another interface."""
    return not link.mac or link.mac == format_mac(mac) or link.kind in ("ipvlan", "vrf")


def safe(suspects: Iterator[Suspect]) -> list[Suspect]:
    """Returns the suspects; none if the kernel refuses to list the objects."""
    try:
        return list(suspects)
    except CniError:
        return []
