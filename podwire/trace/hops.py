"""The way of a packet as lines for people and programs, from what was seen and from the objects on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cni.address import format_mac
from cni.errors import CniError
from kernel import vlan
from kernel.bridge_state import FORWARDING
from kernel.fib import packet_to
from kernel.link import Link
from kernel.packet_tap import ANSWER, ERROR, REFUSAL, REQUEST, Sighting
from podwire.trace import layer3
from podwire.trace.exchange import NAMES, Observation
from podwire.trace.place import Place
from podwire.trace.rules import MetRule
from podwire.trace.topology import Topology

_TRANSLATIONS = ("dnat", "snat", "masquerade", "redirect", "DNAT", "SNAT", "MASQUERADE", "REDIRECT")


class Hop(NamedTuple):
    """A step of the way: the place, what kind of step, its text; the object and the owner of a rule."""

    place: str
    step: str
    text: str
    object: str = ""
    owner: str = ""

    def to_json(self) -> dict[str, str]:
        """Returns the hop as a JSON object."""
        return {"place": self.place, "step": self.step, "text": self.text, "object": self.object, "owner": self.owner}


def build(topology: Topology, seen: Observation, met: list[MetRule]) -> list[Hop]:
    """Returns the hops of the request, then those of the answer; `met` are the rules that the packet met."""
    hops = list(_source_hops(seen))
    requests = [(place, one) for place, one in _once(seen) if one.kind == REQUEST]
    answers = [(place, one) for place, one in _once(seen) if one.kind in (ANSWER, REFUSAL, ERROR)]
    hops += _passage(topology, seen, requests, met)
    hops += _answer_hops(answers, seen)
    return hops


def _once(seen: Observation) -> list[tuple[Place, Sighting]]:
    """Returns the sightings of the packet's first way: a repeated packet is listed once."""
    known = set()
    first = []
    for place, one in seen.sightings:
        key = (id(place), one.interface, one.is_outgoing, one.kind, one.source, one.destination)
        if key not in known:
            known.add(key)
            first.append((place, one))
    return first


def _source_hops(seen: Observation) -> Iterator[Hop]:
    flow = seen.flow
    packet = packet_to(
        flow.destination, flow.source_address, protocol=flow.protocol, port=flow.port, source_port=seen.source_port
    )
    choice = flow.source.route(packet)
    yield Hop(flow.source.name, "route", layer3.describe(flow.source, choice))
    if not choice.is_delivered or flow.source.has(flow.destination):
        return
    next_hop = choice.gateway or flow.destination
    entry = flow.source.neighbour(choice.ifindex, next_hop)
    if entry is not None:
        mac = format_mac(entry.mac) if entry.mac else "unknown"
        yield Hop(flow.source.name, "neighbour", f"{next_hop} is {mac} ({entry.state_name})", str(next_hop))


def _passage(
    topology: Topology, seen: Observation, sightings: list[tuple[Place, Sighting]], met: list[MetRule]
) -> Iterator[Hop]:
    """Yields the sightings of the request, with the port, the routing decision and translations at the node."""
    flow = seen.flow
    before = Sighting(0.0, "", 0, b"", REQUEST, flow.source_address, seen.source_port, flow.destination, flow.port, 0)
    routed, is_at_node, rules = False, flow.source is topology.node, list(met)
    for place, one in sightings:
        yield from _translations(place, before, one, rules)
        if place is topology.node and one.is_outgoing and is_at_node and not routed:
            routed = True
            yield from _node_hops(topology, seen, one, before)
        verb = "out" if one.is_outgoing else "in"
        yield Hop(
            place.name,
            verb,
            f"{one.interface}: {_packet_text(seen, one)}{_details(topology, place, one)}",
            one.interface,
        )
        before, is_at_node = one, is_at_node or place is topology.node
    for rule in rules:
        yield Hop(rule.place, "rule", rule.describe(), rule.describe(), rule.owner)


def _node_hops(topology: Topology, seen: Observation, one: Sighting, before: Sighting) -> Iterator[Hop]:
    """Yields what the node decides before a packet leaves it: bridging or routing."""
    node = topology.node
    arriving = node.link(before.interface) if before.interface and not before.is_outgoing else None
    leaving = node.link(one.interface)
    if arriving and leaving and arriving.master and arriving.master == leaving.master:
        bridge = node.names.get(arriving.master, "")
        yield Hop(
            node.name, "bridge", f"{bridge} forwards the frame; {_bridge_netfilter(node, seen.flow.version)}", bridge
        )
        return
    device = (node.link_of(arriving.master) or arriving) if arriving else None
    source = seen.flow.source_address if device else one.source
    packet = packet_to(
        one.destination, source, device.name if device else "", 0, seen.flow.protocol, one.port, seen.source_port
    )
    yield Hop(node.name, "route", layer3.describe(node, node.route(packet)))


def _translations(place: Place, before: Sighting, one: Sighting, rules: list[MetRule]) -> Iterator[Hop]:
    for name, old, new in (
        ("destination", (before.destination, before.port), (one.destination, one.port)),
        ("source", (before.source, before.source_port), (one.source, one.source_port)),
    ):
        if old != new:
            words = ("dnat", "redirect", "DNAT", "REDIRECT") if name == "destination" else _TRANSLATIONS
            rule = next((each for each in rules if any(word in each.text for word in words)), None)
            if rule:
                rules.remove(rule)
            by = f" by {rule.describe()}" if rule else " by a rule that was not traced"
            text = f"{name} {_end(*old)} becomes {_end(*new)}{by}"
            yield Hop(place.name, "translation", text, rule.describe() if rule else "", rule.owner if rule else "")


def _answer_hops(answers: list[tuple[Place, Sighting]], seen: Observation) -> Iterator[Hop]:
    for place, one in answers:
        verb = "answer out" if one.is_outgoing else "answer in"
        kind = {REFUSAL: " (reset)", ERROR: f" (ICMP type {one.error[0]} code {one.error[1]})"}.get(one.kind, "")
        yield Hop(place.name, verb, f"{one.interface}: {_packet_text(seen, one)}{kind}", one.interface)


def _packet_text(seen: Observation, one: Sighting) -> str:
    if seen.flow.is_echo or one.kind == ERROR:
        return f"icmp {one.source} > {one.destination}"
    name = NAMES[seen.flow.protocol]
    return f"{name} {_end(one.source, one.source_port)} > {_end(one.destination, one.port)}"


def _end(address: object, port: int) -> str:
    if not port:
        return str(address)
    return f"[{address}]:{port}" if ":" in str(address) else f"{address}:{port}"


def _details(topology: Topology, place: Place, one: Sighting) -> str:
    """Returns the state of a bridge port, and the MTU of an interface by which a packet leaves the node."""
    link = place.link(one.interface)
    if link is None or place is not topology.node:
        return ""
    words = []
    if link.master:
        words.append(_port_text(place, link))
    elif one.is_outgoing and link.kind != "bridge":
        words.append(f"MTU {link.mtu}")
    return f" ({'; '.join(words)})" if words else ""


def _port_text(node: Place, link: Link) -> str:
    bridge = node.link_of(link.master)
    if bridge is None or bridge.kind != "bridge":
        return f"part of {bridge.name}" if bridge else ""
    try:
        port = node.link_settings.ports[link.index]
        words = [f"port of {bridge.name}"]
        words += [port.state_name] if port.state != FORWARDING else []
        words += ["isolated"] * bool(port.isolated) + ["hairpin"] * port.hairpin
        if node.link_settings.filters_vlans(bridge):
            member = vlan.get_member(node.socket, bridge, link.index)
            ids = sorted(member.vlans) if member else []
            pvid = vlan.pvid_of(member.vlans) if member else 0
            words.append(f"VLAN {','.join(map(str, ids[:5])) or 'none'}, PVID {pvid or 'none'}")
    except (CniError, KeyError):
        return f"port of {bridge.name}"
    return ", ".join(words)


def _bridge_netfilter(node: Place, version: int) -> str:
    if node.is_bridge_filtered(version):
        return "br_netfilter is on: its packets meet the host's rules"
    return "br_netfilter is off: no rules of iptables"
