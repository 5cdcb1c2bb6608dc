"""The packets whose way through the packet filter doctor predicts: from, to and between pods. None is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address

from cni.address import Address, parse_mac
from kernel.netfilter.packet import DNAT_STATUS, ESTABLISHED, ICMP, ICMPV6, LOCAL, RELATED, TCP, UDP, UNTRACKED, Packet
from kernel.netfilter.ruleset import FilterRule
from podwire.doctor.node import CheckedNode
from podwire.doctor.pods import VethPod, list_pods, list_uplinks, near_address, node_address, remote_addresses
from podwire.node.model import HostPort
from podwire.node.rule_owners import PODWIRE, owner_of
from podwire.predictions.evaluation import (
    EGRESS,
    FORWARD,
    INGRESS,
    INPUT,
    OUTPUT,
    POSTROUTING,
    PREROUTING,
    PacketEvent,
    Traversal,
    list_services,
    traverse,
    traverse_device,
)
from process.values import replace

_SERVICES = ((TCP, 443), (TCP, 80), (UDP, 53), (ICMP, 0))
_MOST_SERVICES, _MOST_PODS, _MOST_PORTS = 64, 24, 24
_UPLINK = "?"  # an interface to other machines that no rule names: without a default route it is unknown
_NEIGHBOUR_SOLICITATION = 135
_ANY_MTU = 1 << 16
_BY_NAME = {TCP: "tcp", UDP: "udp"}
TO_OTHERS, TO_LAN, REPLIES, TO_NODE, FROM_NODE, BETWEEN, PUBLISHED, LOCALLY, RESOLVING, TOO_BIG = (
    "from the pods to other machines",
    "from the pods to machines on the node's own network",
    "from other machines in reply to the pods",
    "from the pods to this node",
    "from this node to the pods",
    "between pods",
    "to a published port",
    "from this node to a published port",
    "by which the pods find their gateway (ARP, NDP)",
    "by which this node reports to the pods that packets are too big for the way out",
)


@dataclass(frozen=True)
class Happening:
    """An event, with the pod and the kind of packets that it happens to; `service` is "tcp 443", or ""."""

    event: PacketEvent
    pod: VethPod
    label: str
    service: str = ""
    port: HostPort | None = None


class Prediction:
    """Predicts the ways of the packets of all networks' pods."""

    def __init__(self, node: CheckedNode) -> None:
        self._node = node
        self._rules = node.ruleset
        foreign = [one for rules in self._rules.rules.values() for one in rules if _is_foreign(one)]
        self._data = b"\n".join(rule.data for rule in foreign)
        self._services_by_version: dict[int, list[tuple[int, int]]] = {}
        self.uplinks = [link.name for link in list_uplinks(node)]
        self.pods: dict[str, tuple[VethPod, ...]] = {}  # by network: the pods whose packets are predicted

    def run(self) -> list[Happening]:
        """Returns all events."""
        if not self._rules.chains:
            return []
        pods = list_pods(self._node)
        happenings: list[Happening] = []
        for item in self._node.interfaces:
            mine = [pod for pod in pods if pod.item is item and pod.gate]
            chosen = self._representatives(mine)
            self.pods[item.network.name] = tuple(chosen)
            for pod in chosen:
                for address in pod.addresses:
                    happenings += self._of_pod(pod, address, mine)
            named = {service for services in self._services_by_version.values() for service in services}
            for pod in mine:
                sample = _sample(pod) if pod in chosen else ()
                for port in pod.ports:
                    if port in sample or (port.protocol_number, port.host_port) in named:
                        happenings += self._published(pod, port)
        return happenings

    def _representatives(self, pods: list[VethPod]) -> list[VethPod]:
        """Returns the first and the last pod, and those whose address or interface a rule names."""
        named = [pod for pod in pods if self._is_named(pod)]
        ends = [*pods[:1], *pods[len(pods) // 2 : len(pods) // 2 + 1], *pods[-1:]]
        chosen = {pod.key: pod for pod in [*ends, *named]}
        return list(chosen.values())[:_MOST_PODS]

    def _is_named(self, pod: VethPod) -> bool:
        tokens = [address.packed for address in pod.addresses]
        tokens += [pod.host_veth.name.encode() + b"\0"] if pod.host_veth else []
        tokens += [pod.mac_bytes] if pod.mac_bytes else []
        texts = [str(address).encode() for address in pod.addresses]
        return any(token in self._data for token in (*tokens, *texts))

    def _of_pod(self, pod: VethPod, address: Address, mine: list[VethPod]) -> Iterator[Happening]:
        version = address.version
        uplink = self.uplinks[0] if self.uplinks else _UPLINK
        gate = pod.gate.name if pod.gate else ""
        link = parse_mac(pod.gate.mac) if pod.gate and pod.gate.mac else None
        first = Packet(
            version, address, remote_addresses(version)[0], iif=gate, source_mac=pod.mac_bytes, destination_mac=link
        )
        if pod.item.routed:
            for service in self._services(first):
                for remote in remote_addresses(version)[: 1 if service not in _SERVICES[:3] else None]:
                    packet = _with_service(replace(first, destination=remote), service)
                    yield from _label(self._leaving(pod, packet, uplink), pod, TO_OTHERS, service)
                    yield from _label(self._returning(pod, packet, uplink), pod, REPLIES, service)
            if near := near_address(self._node, version):
                packet = _with_service(replace(first, destination=near), _SERVICES[0])
                yield from _label(self._leaving(pod, packet, uplink), pod, TO_LAN, _SERVICES[0])
        yield from self._with_node(pod, first)
        yield from self._too_big(pod, first)
        yield from self._between(pod, first, mine)
        yield from self._resolving(pod, first)

    def _services(self, packet: Packet) -> list[tuple[int, int]]:
        """Returns the usual services, and those that rules of other programs name; once for each IP version."""
        if packet.version not in self._services_by_version:
            services = list(_SERVICES)
            for one in list_services(self._rules, packet, _is_foreign):
                if one not in services and len(services) < _MOST_SERVICES:
                    services.append(one)
            self._services_by_version[packet.version] = services
        return self._services_by_version[packet.version]

    def _leaving(self, pod: VethPod, packet: Packet, uplink: str) -> Iterator[PacketEvent]:
        steps = _Steps(packet)
        yield from self._arriving(steps, pod)
        yield from steps.run(lambda one: traverse(self._rules, one, PREROUTING))
        if steps.packet.destination_type == LOCAL:
            return
        yield from steps.run(lambda one: traverse(self._rules, replace(one, oif=uplink), FORWARD))
        yield from steps.run(lambda one: traverse(self._rules, replace(one, iif="", oif=uplink), POSTROUTING))
        yield from steps.run(lambda one: traverse_device(self._rules, one, EGRESS, uplink))

    def _arriving(self, steps: _Steps, pod: VethPod) -> Iterator[PacketEvent]:
        """Yields the events before a pod's packet leaves its bridge for the host."""
        veth = pod.host_veth.name if pod.host_veth else ""
        gate = steps.packet.iif
        yield from steps.run(lambda one: traverse_device(self._rules, one, INGRESS, veth))
        if pod.item.bridge:
            for hook in (PREROUTING, INPUT):
                yield from steps.run(lambda one, hook=hook: self._on_bridge(one, hook, veth, ""))
            yield from steps.run(lambda one: traverse_device(self._rules, one, INGRESS, gate))

    def _departing(self, steps: _Steps, pod: VethPod) -> Iterator[PacketEvent]:
        """Yields the events after the host has sent a packet to a pod."""
        veth = pod.host_veth.name if pod.host_veth else ""
        gate = pod.gate.name if pod.gate else ""
        if pod.item.bridge:
            yield from steps.run(lambda one: traverse_device(self._rules, one, EGRESS, gate))
            for hook in (OUTPUT, POSTROUTING):
                yield from steps.run(lambda one, hook=hook: self._on_bridge(one, hook, "", veth))
        yield from steps.run(lambda one: traverse_device(self._rules, one, EGRESS, veth))

    def _on_bridge(self, packet: Packet, hook: int, iif: str, oif: str) -> Traversal:
        outcome = traverse(self._rules, replace(packet, iif=iif, oif=oif), hook, bridge=True)
        return replace(outcome, packet=replace(outcome.packet, iif=packet.iif, oif=packet.oif))

    def _returning(self, pod: VethPod, sent: Packet, uplink: str) -> Iterator[PacketEvent]:
        gate = sent.iif
        public = node_address(self._node, sent.version)
        reply = replace(
            sent, source=sent.destination, destination=sent.source, source_port=sent.port, port=None,
            source_mac=None, destination_mac=None, iif=uplink, oif="", state=ESTABLISHED, icmp_type=None,
        )  # fmt: skip
        steps = _Steps(reply)
        yield from steps.run(lambda one: traverse_device(self._rules, one, INGRESS, uplink))
        if public:
            outcome = traverse(self._rules, replace(reply, destination=public, destination_type=LOCAL), PREROUTING)
            yield from (event for event in outcome.events if event.action.kind != "untrack")
            if outcome.drop:
                return
        yield from steps.run(lambda one: traverse(self._rules, replace(one, oif=gate), FORWARD))
        yield from steps.run(lambda one: traverse(self._rules, replace(one, iif="", oif=gate), POSTROUTING))
        yield from self._departing(steps, pod)

    def _with_node(self, pod: VethPod, first: Packet) -> Iterator[Happening]:
        gateway = next((one for one in pod.gateways if one.version == first.version), None)
        if gateway is None:
            return
        services = [(ICMP, 0), (UDP, 53), (TCP, 6443)]
        for service in services:
            packet = _with_service(replace(first, destination=gateway, destination_type=LOCAL), service)
            yield from _label(self._into_node(pod, packet), pod, TO_NODE, service)
            answer = replace(packet, state=ESTABLISHED)
            yield from _label(self._into_node(pod, answer), pod, FROM_NODE, service)
        services += [(port.protocol_number, port.container_port) for port in _sample(pod)]  # as kubelet's probes
        for service in dict.fromkeys(services):
            packet = _with_service(first, service)
            call = replace(
                packet, source=gateway, destination=first.source, source_type=LOCAL, iif="", oif=first.iif,
                source_mac=None, destination_mac=None,
            )  # fmt: skip
            yield from _label(self._out_of_node(pod, call), pod, FROM_NODE, service)

    def _too_big(self, pod: VethPod, first: Packet) -> Iterator[Happening]:
        """Yields the events of the node's ICMP errors to a pod whose packets are too big for the way out (RFC 1191)."""
        gateway = next((one for one in pod.gateways if one.version == first.version), None)
        if gateway is not None and pod.host_veth is not None and self._way_out_mtu(first.version) < pod.host_veth.mtu:
            protocol, kind, code = (ICMP, 3, 4) if first.version == 4 else (ICMPV6, 2, 0)
            error = replace(
                first, source=gateway, destination=first.source, source_type=LOCAL, iif="", oif=first.iif,
                source_mac=None, destination_mac=None, protocol=protocol, icmp_type=kind, icmp_code=code,
                state=RELATED,
            )  # fmt: skip
            yield from _label(self._out_of_node(pod, error), pod, TOO_BIG, (0, 0))

    def _way_out_mtu(self, version: int) -> int:
        """Returns the smallest MTU of the uplinks and of the routes by them."""
        uplinks = {link.index: link for link in list_uplinks(self._node)}
        routes = (one for one in self._node.fib.routes if one.destination.version == version and one.ifindex in uplinks)
        mtus = [*(link.mtu for link in uplinks.values()), *(one.mtu for one in routes if one.mtu)]
        for link in uplinks.values() if version == 6 else ():
            mtus.append(int(self._node.sysctl(f"ipv6/conf/{link.name}/mtu") or link.mtu))
        return min(mtus, default=_ANY_MTU)

    def _into_node(self, pod: VethPod, packet: Packet) -> Iterator[PacketEvent]:
        steps = _Steps(packet)
        yield from self._arriving(steps, pod)
        for hook in (PREROUTING, INPUT):
            yield from steps.run(lambda one, hook=hook: traverse(self._rules, one, hook))

    def _out_of_node(self, pod: VethPod, packet: Packet) -> Iterator[PacketEvent]:
        steps = _Steps(packet)
        for hook in (OUTPUT, POSTROUTING):
            yield from steps.run(lambda one, hook=hook: traverse(self._rules, one, hook))
        yield from self._departing(steps, pod)

    def _between(self, pod: VethPod, first: Packet, mine: list[VethPod]) -> Iterator[Happening]:
        if not pod.item.bridge or "isolated" in pod.item.port_flags:
            return
        other = next((one for one in mine if one is not pod and one.host_veth), None)
        address = next((one for one in other.addresses if one.version == first.version), None) if other else None
        if other is None or address is None or pod.host_veth is None or other.host_veth is None:
            return
        for service in ((TCP, 443), (ICMP, 0)):
            packet = _with_service(replace(first, destination=address, destination_mac=other.mac_bytes), service)
            yield from _label(self._bridged(packet, pod, other), pod, BETWEEN, service)

    def _bridged(self, packet: Packet, pod: VethPod, other: VethPod) -> Iterator[PacketEvent]:
        steps, gate = _Steps(packet), packet.iif
        source = pod.host_veth.name if pod.host_veth else ""
        target = other.host_veth.name if other.host_veth else ""
        yield from steps.run(lambda one: self._on_bridge(one, PREROUTING, source, ""))
        yield from steps.run(lambda one: self._on_bridge(one, FORWARD, source, target))
        if self._node.is_bridge_filtered(packet.version):
            yield from steps.run(lambda one: traverse(self._rules, one, PREROUTING))
            yield from steps.run(lambda one: traverse(self._rules, replace(one, oif=gate), FORWARD))
        yield from steps.run(lambda one: self._on_bridge(one, POSTROUTING, "", target))

    def _resolving(self, pod: VethPod, first: Packet) -> Iterator[Happening]:
        gateway = next((one for one in pod.gateways if one.version == first.version), None)
        if gateway is None:
            return
        if first.version == 4:
            packet = replace(first, version=0, destination=gateway, protocol=0, destination_mac=b"\xff" * 6)
            answer = replace(packet, source=gateway, destination=first.source, iif="", oif=first.iif, source_mac=None)
        else:
            packet = replace(
                first, destination=gateway, destination_type=LOCAL, protocol=ICMPV6, state=UNTRACKED,
                icmp_type=_NEIGHBOUR_SOLICITATION,
            )  # fmt: skip
            answer = replace(packet, source=gateway, destination=first.source, iif="", oif=first.iif, icmp_type=136)
        steps = _Steps(packet)
        events = [*self._arriving(steps, pod), *steps.run(lambda one: traverse(self._rules, one, INPUT))]
        back = _Steps(answer)
        events += [*back.run(lambda one: traverse(self._rules, one, OUTPUT)), *self._departing(back, pod)]
        yield from _label(events, pod, RESOLVING, (0, 0))

    def _published(self, pod: VethPod, port: HostPort) -> Iterator[Happening]:
        for address in pod.addresses:
            public = node_address(self._node, address.version) or ip_address(
                "192.0.2.1" if address.version == 4 else "2001:db8::1"
            )
            if port.host_ip and ip_address(port.host_ip).version == address.version:
                public = public if port.host_ip in ("0.0.0.0", "::") else ip_address(port.host_ip)
            packet = Packet(
                address.version, remote_addresses(address.version)[0], public, port.protocol_number,
                port=port.host_port, iif=self.uplinks[0] if self.uplinks else _UPLINK, destination_type=LOCAL,
            )  # fmt: skip
            events = self._arriving_at_port(pod, packet, address, port)
            yield from (Happening(event, pod, PUBLISHED, _text(port), port) for event in events)
            if address.version == 4 and not (public.is_loopback or port.host_ip not in ("", "0.0.0.0")):
                local_packet = replace(packet, source=public, iif="", oif="lo", source_type=LOCAL)
                local_events = _Steps(local_packet).run(lambda one: traverse(self._rules, one, OUTPUT))
                yield from (Happening(event, pod, LOCALLY, _text(port), port) for event in local_events)

    def _arriving_at_port(
        self, pod: VethPod, packet: Packet, address: Address, port: HostPort
    ) -> Iterator[PacketEvent]:
        steps = _Steps(packet)
        yield from steps.run(lambda one: traverse_device(self._rules, one, INGRESS, one.iif))
        yield from steps.run(lambda one: traverse(self._rules, one, PREROUTING))
        if steps.is_over:
            return
        gate = pod.gate.name if pod.gate else ""
        steps.packet = replace(
            steps.packet, destination=address, port=port.container_port, status=DNAT_STATUS, destination_type=1,
            oif=gate,
        )  # fmt: skip
        yield from steps.run(lambda one: traverse(self._rules, one, FORWARD))
        steps.packet = replace(steps.packet, iif="")
        yield from steps.run(lambda one: traverse(self._rules, one, POSTROUTING))
        yield from self._departing(steps, pod)


class _Steps:
    """A packet on its way: `run` applies a hook, unless an earlier one has dropped the packet."""

    def __init__(self, packet: Packet) -> None:
        self.packet = packet
        self.is_over = False

    def run(self, hook: object) -> list[PacketEvent]:
        """Applies a hook; returns its events."""
        if self.is_over or not callable(hook):
            return []
        outcome: Traversal = hook(self.packet)
        self.packet = outcome.packet
        self.is_over = outcome.drop is not None
        return list(outcome.events)


def _is_foreign(rule: FilterRule) -> bool:
    return owner_of(rule.chain, rule) != PODWIRE


def _with_service(packet: Packet, service: tuple[int, int]) -> Packet:
    protocol, port = service
    if protocol == ICMP and packet.version == 6:
        protocol = ICMPV6
    return replace(packet, protocol=protocol, port=port or None)


def _label(events: Iterable[PacketEvent], pod: VethPod, label: str, service: tuple[int, int]) -> Iterator[Happening]:
    protocol, port = service
    text = f"{_BY_NAME.get(protocol, protocol)} {port}" if port else "ping" if protocol == ICMP else ""
    yield from (Happening(event, pod, label, text) for event in events)


def _text(port: HostPort) -> str:
    return f"{port.protocol} {port.host_port}"


def _sample(pod: VethPod) -> tuple[HostPort, ...]:
    """Returns a pod's published ports; of many, some at equal distances: each costs a way through a rule of each."""
    return pod.ports[:: -(-len(pod.ports) // _MOST_PORTS) or 1]
