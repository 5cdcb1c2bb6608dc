"""What a translation of addresses makes of a packet: a source or destination at which it, or its answer, is lost.

The trace of nftables shows which rules a packet met, and not which rule was to match and did not: that is predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import ip_interface

from cni.address import Address
from kernel.netfilter.packet import LOCAL, Packet
from kernel.netfilter.ruleset import FilterRule
from kernel.packet_tap import REQUEST, Sighting
from podwire.node.model import Pod
from podwire.node.rule_owners import PODWIRE, owner_of
from podwire.predictions.evaluation import OUTPUT, POSTROUTING, PREROUTING, traverse
from podwire.trace.exchange import Flow, Observation
from podwire.trace.place import Place
from podwire.trace.suspect import Suspect
from podwire.trace.topology import PodPlace, Topology
from process.values import replace


def to_no_pod(topology: Topology, seen: Observation) -> Iterator[Suspect]:
    """Yields a rule that sends the packet to an address in a pods' subnet that no pod has."""
    flow, node = seen.flow, topology.node
    packet, hook = _arriving(flow, flow.source.pod if isinstance(flow.source, PodPlace) else None), PREROUTING
    if flow.source is node:
        hook = OUTPUT
    elif arrived := seen.seen(node, (REQUEST,), outgoing=False):
        packet = replace(packet, iif=packet.iif or arrived[0].interface)
    if node.has(flow.destination):
        packet = replace(packet, destination_type=LOCAL)
    for event in traverse(node.ruleset, packet, hook).events:
        target = event.action.address
        if event.action.kind != "dnat" or target is None or event.rule is None:
            continue
        if topology.place_of(target) is None and _is_pods(topology, target):
            rule, look = _describe(event.rule)
            text = f"{rule} sends packets for {flow.destination} to {target}, which no pod has"
            yield Suspect("translated", node.name, text, rule, owner_of(event.chain, event.rule), look)


def with_target_source(topology: Topology, flow: Flow, target: Place, arrival: Sighting) -> Iterator[Suspect]:
    """Yields that a packet arrives with an address of its target as source, with the rule that changed its mark."""
    if not target.has(arrival.source) or arrival.source.is_link_local:
        return
    node = topology.node
    text = f"the packet arrives with {target.name}'s address {arrival.source} as source: the node did not masquerade it"
    look, rule = "nft list ruleset", ""
    if isinstance(target, PodPlace):
        pod, hook = target.pod, OUTPUT if flow.source is node else PREROUTING
        mark = traverse(node.ruleset, _arriving(flow, pod), hook).packet.mark
        gate = pod.bridge or pod.host_interface
        packet = Packet(
            flow.version,
            arrival.source,
            arrival.destination,
            flow.protocol,
            None,
            flow.target_port,
            oif=gate,
            mark=mark,
        )
        marking = traverse(node.ruleset, packet, POSTROUTING).marking
        for one in [one for one in marking if owner_of(one.chain, one) != PODWIRE][:1]:
            rule, look = _describe(one)
            text += f", since {rule} changes the mark by which it selects such packets"
    yield Suspect("not-masqueraded", node.name, text, rule, look=look)


def to_other_machine(topology: Topology, answers: Sequence[Sighting]) -> Iterator[Suspect]:
    """Yields that all answers have the MAC address of another machine, as that has the address, too."""
    node, first = topology.node, answers[0]
    link = node.link(first.interface)
    if link is None or link.master or not node.has(first.destination):
        return
    if all(one.is_for_another for one in answers):
        text = (
            f"the answer to {first.destination} arrives at {link.name} with the MAC address of another machine: the "
            f"sender takes {first.destination}, the first address of {link.name}, for that machine's"
        )
        yield Suspect("address", node.name, text, str(first.destination), look=f"ip address show dev {link.name}")


def _arriving(flow: Flow, pod: Pod | None) -> Packet:
    gate = (pod.bridge or pod.host_interface) if pod and isinstance(flow.source, PodPlace) else ""
    return Packet(flow.version, flow.source_address, flow.destination, flow.protocol, None, flow.port or None, iif=gate)


def _is_pods(topology: Topology, address: Address) -> bool:
    return any(address in ip_interface(text).network for pod in topology.pods for text in pod.addresses)


def _describe(rule: FilterRule) -> tuple[str, str]:
    """Returns the name of a rule, and the command that lists its chain."""
    chain = rule.chain
    look = f"{chain.tool} -t {chain.table} -S {chain.name}" if chain.tool else f"nft -a list chain {chain}"
    return f"the rule with handle {rule.handle} of chain {chain}", look
