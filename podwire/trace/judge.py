"""Judges an observed exchange: whether the packet and its answer arrived, and otherwise what lost them.

A rule that dropped the packet is a fact. Everything else is compared with where the packet was last seen: only objects
that it would have met next are suspects.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import chain

from cni.address import Address
from kernel import discards
from kernel.fib import packet_to
from kernel.packet_tap import ANSWER, ERROR, REFUSAL, REQUEST, TCP, UDP, Sighting
from podwire.predictions.obstacles import UNCERTAIN, list_namespace_obstacles, list_obstacles, list_port_obstacles
from podwire.trace import layer3, legs, network_policy, rules, translation
from podwire.trace.exchange import Flow, Observation
from podwire.trace.legs import Leg
from podwire.trace.place import EXTERNAL, NODE, Place
from podwire.trace.rules import MetRule
from podwire.trace.suspect import Suspect, of_queue, of_rule
from podwire.trace.topology import PodPlace, Topology

_ANSWERS = (ANSWER, REFUSAL)
_PORT_UNREACHABLE = ((3, 3), (1, 4))  # ICMP, ICMPv6
_TOO_BIG = ((3, 4), (2, 0))
_VAGUE = ("neighbour-unanswered",)  # a suspect that an interface on the way may explain


class ExchangeOutcome(StrEnum):
    """The outcome of an exchange."""

    ANSWERED = "answered"
    REFUSED = "refused"  # it arrived, and nothing listens there
    DELIVERED = "delivered"  # it arrived at a program that sent no answer
    LOST = "lost"

    @property
    def is_ok(self) -> bool:
        """Whether the way is in order."""
        return self is not ExchangeOutcome.LOST


def outcome_of(seen: Observation) -> ExchangeOutcome:
    """Returns the outcome of an exchange."""
    flow, answer = seen.flow, seen.answer
    arrived = seen.arrival is not None or flow.target is None or not seen.is_observed
    if answer is None:
        unserved = not seen.is_served and flow.protocol == UDP
        return ExchangeOutcome.DELIVERED if seen.arrival and unserved else ExchangeOutcome.LOST
    if answer.kind == ANSWER:
        return ExchangeOutcome.ANSWERED if arrived else ExchangeOutcome.LOST
    refused = answer.kind == REFUSAL or (
        answer.error in _PORT_UNREACHABLE and not flow.is_echo and answer.source == flow.destination
    )
    return ExchangeOutcome.REFUSED if refused and arrived and not seen.has_server else ExchangeOutcome.LOST


def find_suspect(
    topology: Topology, seen: Observation, rule: MetRule | None, translating: Sequence[MetRule] = ()
) -> Suspect:
    """Returns the first suspect for a lost packet; `rule` dropped it, `translating` rules changed its addresses."""
    if rule is not None:
        return network_policy.of_rule(rule, seen.flow) or of_rule(rule)
    first = next(chain(_setting_suspects(topology, seen), _suspects(topology, seen, translating)), None)
    queueing = rules.queueing(seen.events) if first is None else None
    if queueing is not None and _stayed_in(seen, queueing.place):
        return of_queue(queueing)
    if first is None or first.name in _VAGUE:
        # A program, or a class, may be harmless: it explains no loss that has another suspect.
        obstacles = obstacle_suspects(topology, seen.flow)
        first = next((one for one in obstacles if first is None or one.name not in UNCERTAIN), first)
    return first or _unexplained(topology, seen)


def _stayed_in(seen: Observation, where: str) -> bool:
    """Returns whether the packet, or its answer, was seen last in a place, and not as it left that place."""
    if not seen.sightings:
        return True
    place, last = seen.sightings[-1]
    link = place.link(last.interface)
    return place.name == where and (not last.is_outgoing or (link is not None and link.kind == "ifb"))


def _setting_suspects(topology: Topology, seen: Observation) -> Iterator[Suspect]:
    """Yields a setting that certainly loses such a packet."""
    flow, target, node = seen.flow, seen.flow.target, topology.node
    if flow.is_echo and target is not None and seen.seen(target, (REQUEST,), outgoing=False):
        name = "ipv6/icmp/echo_ignore_all" if flow.version == 6 else "ipv4/icmp_echo_ignore_all"
        if target.sysctl(name) == "1":
            yield _of_setting(target, name, "1: it answers no pings")
    if not isinstance(target, PodPlace) or (veth := topology.host_veth(target.pod)) is None:
        return
    gate = node.link_of(veth.master) or veth
    if flow.version == 4 and flow.source is node and flow.source_address.is_loopback:
        names = [f"ipv4/conf/{name}/route_localnet" for name in ("all", gate.name)]
        if all(node.sysctl(name) == "0" for name in names):
            yield _of_setting(node, names[1], "0: packets from 127.0.0.1 do not leave the node")
    port = node.link_settings.ports.get(veth.index)
    if flow.source is target and node.is_bridge_filtered(flow.version) and port is not None and not port.hairpin:
        text = f"the packet would leave by the port {veth.name} that it came from, and hairpin is off there"
        yield Suspect("hairpin", node.name, text, veth.name, look=f"bridge -d link show dev {veth.name}")


def _of_setting(place: Place, name: str, effect: str) -> Suspect:
    return Suspect("setting", place.name, f"net/{name} is {effect}", f"net/{name}", look=f"sysctl net/{name}")


def obstacle_suspects(topology: Topology, flow: Flow) -> Iterator[Suspect]:
    """Yields the obstacles on the way: those of interfaces, first the certain ones, then those of namespaces."""
    on_way = [(place, link) for place, link in legs.list_links(topology, flow) if link]
    present = [
        (place, link, one)
        for place, link in on_way
        for one in (*list_obstacles(place, link), *list_port_obstacles(place, link))
    ]
    for place, link, one in sorted(present, key=lambda item: item[2].name in UNCERTAIN):
        yield Suspect(one.name, place.name, f"{link.name}: {one.text}", link.name, look=one.look)
    for place in dict.fromkeys((flow.source, topology.node, flow.target or topology.node)):
        for one in list_namespace_obstacles(place):
            yield Suspect(one.name, place.name, one.text, look=one.look)


def _suspects(topology: Topology, seen: Observation, met: Sequence[MetRule]) -> Iterator[Suspect]:
    flow, arrival = seen.flow, seen.arrival
    if seen.send_error:
        yield from _send_suspects(seen)
    yield from _translation_suspects(topology, seen, met)
    routed_to = _routed_destination(topology, seen)
    request = Leg(
        topology, seen, flow.source, flow.target, flow.source_address, flow.destination, routed_to, (REQUEST,)
    )
    if arrival is None:
        yield from translation.to_no_pod(topology, seen)
        yield from legs.leg_suspects(request)
        yield from _answered_by_another(topology, seen)
    if arrival is None and flow.target is not None:
        return
    if arrival is not None:
        yield from _arrival_suspects(topology, seen, arrival)
    yield from _untranslated_suspects(topology, seen)
    if flow.target is not None and arrival is not None:
        back = Leg(
            topology, seen, flow.target, flow.source, arrival.destination, arrival.source, flow.source_address, _ANSWERS
        )
        yield from legs.leg_suspects(back)
    elif answers := seen.seen(topology.node, _ANSWERS, outgoing=False):
        first = answers[0]
        yield from translation.for_other_machine(topology, answers)
        arriving = topology.node.link(first.interface)
        yield from legs.leg_suspects(
            Leg(
                topology, seen, topology.node, flow.source, first.source, first.destination, flow.source_address,
                _ANSWERS, arriving,
            )
        )  # fmt: skip


def _routed_destination(topology: Topology, seen: Observation) -> Address:
    """Returns the destination of the request after a translation: the target's, if that is a pod with another one."""
    target = seen.flow.target
    if isinstance(target, PodPlace) and topology.pod_of(seen.flow.destination) is not target.pod:
        return target.address(seen.flow.version) or seen.flow.destination
    return seen.flow.destination


def _translation_suspects(topology: Topology, seen: Observation, met: Sequence[MetRule]) -> Iterator[Suspect]:
    """Yields a rule that sends the packet to another destination than the pod that it is for."""
    flow = seen.flow
    if flow.target is None or flow.target.kind == EXTERNAL:
        return
    expected = flow.target.pod_addresses if isinstance(flow.target, PodPlace) else (flow.destination,)
    for one in seen.seen(topology.node, (REQUEST,)):
        if one.destination not in (flow.destination, *expected):
            rule = next((each for each in met if str(one.destination) in each.text), None)
            by = f" by {rule.describe()}" if rule else ""
            text = f"the packet's destination becomes {one.destination} port {one.port}{by}, not {flow.target.name}"
            owner, look = (rule.owner, rule.look) if rule else ("", "nft list ruleset")
            yield Suspect("translated", topology.node.name, text, rule.describe() if rule else "", owner, look)
    if seen.arrival is None and isinstance(flow.target, PodPlace):
        for rule in met:
            if (
                "dnat" in rule.text.lower()
                and rule.owner != "podwire"
                and not any(str(each) in rule.text for each in expected)
            ):
                text = f"a rule translates the packet, and it does not arrive at {flow.target.name}: {rule.describe()}"
                yield Suspect("translated", rule.place, text, rule.describe(), rule.owner, rule.look)


def _send_suspects(seen: Observation) -> Iterator[Suspect]:
    flow = seen.flow
    packet = packet_to(flow.destination, flow.source_address, protocol=flow.protocol, port=flow.port)
    yield from layer3.routing_suspects(flow.source, packet)
    if seen.send_error == errno.EMSGSIZE:
        link = flow.source.link_of(flow.source.route(packet).ifindex)
        if link:
            yield from layer3.mtu_suspects(flow.source, link, flow.size)


def _arrival_suspects(topology: Topology, seen: Observation, arrival: Sighting) -> Iterator[Suspect]:
    """Yields why a place does not take a packet that arrived at its interface."""
    target = seen.flow.target
    if target is None or seen.seen(target, _ANSWERS, outgoing=True):
        return
    yield from legs.missing_address(target, arrival.destination)
    yield from translation.not_masqueraded(topology, seen.flow, target, arrival)
    packet = packet_to(arrival.destination, arrival.source, arrival.interface)
    if target.kind != NODE or topology.node.has(arrival.destination):
        yield from layer3.routing_suspects(target, packet)
    back = packet_to(arrival.source, arrival.destination, protocol=seen.flow.protocol)
    yield from layer3.routing_suspects(target, back)


def _untranslated_suspects(topology: Topology, seen: Observation) -> Iterator[Suspect]:
    """Yields that the answer came from the pod's address instead of the one that the packet was sent to."""
    answer = seen.untranslated_answer
    if answer is not None:
        flow = seen.flow
        text = (
            f"the answer comes from {answer.source}, not from {flow.destination}: it passed the bridge without the "
            "rules that translate it back (net/bridge/bridge-nf-call-iptables), and the sender refuses it"
        )
        yield Suspect("untranslated", topology.node.name, text, "bridge-nf-call-iptables", look="sysctl net.bridge")


def _answered_by_another(topology: Topology, seen: Observation) -> Iterator[Suspect]:
    """Yields that the node itself answered a packet for a published port."""
    answer = seen.answer
    if answer is None or not isinstance(seen.flow.target, PodPlace):
        return
    if answer.kind in _ANSWERS and seen.flow.protocol == TCP:
        verb = "accepted" if answer.kind == ANSWER else "refused"
        text = (
            f"the packet was not forwarded to {seen.flow.target.name}: the node itself {verb} the connection to "
            f"{seen.flow.destination} port {seen.flow.port}"
        )
        where = topology.node.name
        yield Suspect(
            "not-forwarded", where, text, f"port {seen.flow.port}", look=f"ss -tlnp sport = :{seen.flow.port}"
        )


def _unexplained(topology: Topology, seen: Observation) -> Suspect:
    """Returns what is known of a loss that nothing explains: where the packet was last seen."""
    flow, answer = seen.flow, seen.answer
    if answer is not None and answer.kind == ERROR:
        kind, code = answer.error
        mtu = f" with MTU {answer.mtu}" if answer.error in _TOO_BIG else ""
        text = f"{answer.source} answered with an ICMP error, type {kind} code {code}{mtu}"
        return Suspect("refused-by", str(answer.source), text, str(answer.source))
    concerned = (one for one in seen.discards if discards.concerns(one[1], flow.version, flow.protocol))
    for counting, name in concerned:
        text = f"the kernel of {counting.name} discarded the packet: {discards.meaning_of(name)} ({name})"
        return Suspect("discarded", counting.name, text, name, look=discards.command_for(name))
    passed = [(place, one) for place, one in seen.sightings if one.kind in (REQUEST, *_ANSWERS)]
    if not passed:
        return Suspect("unexplained", flow.source.name, "the packet did not leave its namespace, for no known reason")
    place, last = passed[-1]
    verb = "left" if last.is_outgoing else "arrived at"
    what = "the answer" if last.kind in _ANSWERS else "the packet"
    where = (
        f"{what} {verb} {place.name} by {last.interface}"
        if last.is_outgoing
        else f"{what} {verb} {place.name} at {last.interface}"
    )
    if flow.target is None and last.is_outgoing:
        text = f"{where} as {last.source} > {last.destination}, and no answer came: the fault is beyond this node"
        beyond = Suspect("beyond", "beyond the node", text, str(flow.destination))
        return (
            network_policy.at_other_node(flow, last) if last.kind == REQUEST and place is topology.node else None
        ) or beyond
    if what == "the packet" and last.kind == REQUEST and seen.arrival is not None:
        text = f"the packet arrived at {place.name} {last.interface}, and no answer was sent, for no known reason"
        return Suspect("no-answer", place.name, text, f"port {flow.target_port}" if flow.port else "")
    if flow.target is None and last.kind == REQUEST and not last.is_outgoing and place.has(last.destination):
        port = f" port {last.port}" if flow.port else ""
        text = f"the packet arrived at {place.name}, and what uses {last.destination}{port} there sent no answer"
        return Suspect(
            "no-answer", place.name, text, port.strip(), look=f"ss -lnp sport = :{last.port}" if port else ""
        )
    explanation = "rules were not traced" if seen.blind else "nothing here explains it"
    return Suspect("unexplained", place.name, f"{where}, and was not seen after that; {explanation}", last.interface)
