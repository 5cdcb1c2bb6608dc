"""Suspects about translated addresses: a packet, or its answer, is lost because its source or destination is wrong.

The trace of nftables shows only the rules that a packet met. A rule that should have matched is predicted here.
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
    """Yields a rule that sends the packet to an address of the pods' subnet that no pod has."""
    flow, node = seen.flow, topology.node
    packet, hook = _arriving(flow), PREROUTING
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
        if topology.place_of(target) is None and _is_in_pods_subnet(topology, target):
            rule, look = _describe(event.rule)
            text = f"{rule} sends packets for {flow.destination} to {target}, which no pod has"
            yield Suspect("translated", node.name, text, rule, owner_of(event.chain, event.rule), look)


def not_masqueraded(topology: Topology, flow: Flow, target: Place, arrival: Sighting) -> Iterator[Suspect]:
    """Yields the reason why a packet arrives with its target's address as source: the node did not masquerade it."""
    if not target.has(arrival.source) or arrival.source.is_link_local:
        return
    node = topology.node
    text = f"the packet arrives with {target.name}'s address {arrival.source} as source: the node did not masquerade it"
    look, rule = "nft list ruleset", ""
    marking = _marking_rule(topology, flow, target.pod, arrival) if isinstance(target, PodPlace) else None
    if marking is not None:
        rule, look = _describe(marking)
        text += f", since {rule} changes the mark by which the node selects such packets"
    yield Suspect("not-masqueraded", node.name, text, rule, look=look)


def _marking_rule(topology: Topology, flow: Flow, pod: Pod, arrival: Sighting) -> FilterRule | None:
    """Returns another program's rule that changes the packet's mark before masquerading, as predicted."""
    node = topology.node
    hook = OUTPUT if flow.source is node else PREROUTING
    mark = traverse(node.ruleset, _arriving(flow), hook).packet.mark
    packet = Packet(
        flow.version, arrival.source, arrival.destination, flow.protocol, None, flow.target_port,
        oif=pod.bridge or pod.host_interface, mark=mark,
    )  # fmt: skip
    marking = traverse(node.ruleset, packet, POSTROUTING).marking
    return next((rule for rule in marking if owner_of(rule.chain, rule) != PODWIRE), None)


def for_other_machine(topology: Topology, answers: Sequence[Sighting]) -> Iterator[Suspect]:
    """Yields the address to which all answers come with another machine's MAC address, as that machine has it, too."""
    node, first = topology.node, answers[0]
    link = node.link(first.interface)
    if link is None or link.master or not node.has(first.destination):
        return
    if all(one.is_for_another for one in answers):
        text = (
            f"the answer to {first.destination} arrives at {link.name} with the MAC address of another machine, which "
            f"seems to have {first.destination}, the first address of {link.name}, as well"
        )
        yield Suspect("address", node.name, text, str(first.destination), look=f"ip address show dev {link.name}")


def _arriving(flow: Flow) -> Packet:
    """Returns a flow's packet before its translation; a pod's arrives at the pod's bridge or host veth."""
    source = flow.source
    gate = source.pod.bridge or source.pod.host_interface if isinstance(source, PodPlace) else ""
    return Packet(flow.version, flow.source_address, flow.destination, flow.protocol, None, flow.port or None, iif=gate)


def _is_in_pods_subnet(topology: Topology, address: Address) -> bool:
    return any(address in ip_interface(text).network for pod in topology.pods for text in pod.addresses)


def _describe(rule: FilterRule) -> tuple[str, str]:
    """Returns the name of a rule, and the command that lists its chain."""
    chain = rule.chain
    look = f"{chain.tool} -t {chain.table} -S {chain.name}" if chain.tool else f"nft -a list chain {chain}"
    return f"the rule with handle {rule.handle} of chain {chain}", look
