"""Checks the inside of each running pod: its interface, addresses, routes, neighbours, rules and settings.

ADD's result says what must be there. A fault here explains CHECK's failure, which is folded into it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from shlex import quote

from attachment.presence import Presence
from cni.address import Address, format_mac
from cni.errors import CniError
from kernel.link import Link
from kernel.netfilter.packet import ESTABLISHED, TCP, Packet
from kernel.netfilter.ruleset import FAMILY_NAMES
from kernel.netns import Netns
from podwire.checking import LIMIT_S
from podwire.doctor import interior_addresses, interior_links, interior_resolvers, interior_routes
from podwire.doctor import interior_faults as faults
from podwire.doctor.finding import UNSEEN, UNSEEN_FIX, Check, Finding, Severity, ok_finding
from podwire.doctor.interior_pod import InspectedPod
from podwire.doctor.neighbours import duplicate_advice
from podwire.doctor.node import CheckedNode
from podwire.doctor.pods import VethPod, is_of_same_container, list_pods, remote_addresses
from podwire.facts.network import NetworkFacts
from podwire.output import plural
from podwire.predictions.evaluation import ENDS, INPUT, OUTPUT, PREROUTING, Fate, PacketEvent, traverse
from podwire.predictions.obstacles import ARP_OFF, UNCERTAIN, list_namespace_obstacles, list_obstacles
from process.values import replace

_GROUP = "pods"
_ANY_PORT = 80


def _check(node: CheckedNode) -> Iterator[Finding]:
    pods = list_pods(node)
    owners: dict[Address, VethPod] = {}
    for pod in pods:
        for address in pod.addresses:
            owners.setdefault(address, pod)
    end, checked, unseen = time.monotonic() + LIMIT_S, 0, 0
    for pod in pods:
        if node.presence(pod.attachment) is not Presence.HERE or not pod.attachment.netns:
            continue
        if time.monotonic() > end:
            unseen += 1
            continue
        try:
            with Netns(pod.attachment.netns) as netns, NetworkFacts(netns) as interior:
                findings = list(_Inspection(InspectedPod(node, pod, interior, owners)).run())
        except (CniError, OSError) as error:
            yield UNSEEN.finding(pod.name, f"its namespace cannot be inspected: {error}", UNSEEN_FIX)
            continue
        checked += 1
        yield from findings
    if unseen:
        text = f"{plural(unseen, 'pod')} could not be inspected inside: time was up"
        yield UNSEEN.finding("pods", text, "podwire doctor NETWORK")
    elif checked:
        yield ok_finding("interiors", "", f"{plural(checked, 'pod')} inspected inside")


class _Inspection:
    """The checks of one pod."""

    def __init__(self, one: InspectedPod) -> None:
        self._one = one
        self._node, self._pod, self._interior, self._ifname = one.node, one.pod, one.interior, one.ifname

    def run(self) -> Iterator[Finding]:
        """Yields the findings."""
        one = self._one
        link = self._interior.link(self._ifname)
        if link is None:
            return  # CHECK reports it
        if not link.is_up and not self._pod.item.is_container_veth_down:
            yield one.finding(faults.DOWN, f'"{self._ifname}" is down', one.restore(link, up=True))
            return
        first = list(interior_links.list_findings(one, link))
        yield from first
        for check in (interior_addresses.list_findings, interior_routes.list_findings):
            if not any(finding.objects for finding in first):  # else addresses and routes may be gone for that reason
                first = list(check(one, link))
                yield from first
        yield from self._obstacles(link)
        yield from self._neighbours(link)
        yield from self._rules()
        yield from self._listeners()
        yield from interior_resolvers.list_findings(one)
        loopback = self._interior.link("lo")
        if loopback is not None and not loopback.is_up:
            yield one.finding(faults.LOOPBACK, "lo is down", one.inner("ip link set lo up"), causes=False)

    def _obstacles(self, link: Link) -> Iterator[Finding]:
        for one in (*list_obstacles(self._interior, link), *list_namespace_obstacles(self._interior)):
            if one.name != ARP_OFF:  # interior_links reports it (faults.NOARP)
                severity = Severity.NOTE if one.name in UNCERTAIN else None
                advice = (
                    f"if the pod's software did not intend it, change it there; to list it: {self._one.inner(one.look)}"
                )
                yield self._one.finding(faults.TRAFFIC, one.text, advice, causes=False, severity=severity)

    def _neighbours(self, link: Link) -> Iterator[Finding]:
        for entry in self._interior.neighbours:
            expected = self._expected_mac(entry.address)
            if entry.ifindex != link.index or not expected or not entry.mac or entry.mac == expected or entry.is_proxy:
                continue
            owner = self._one.owners.get(entry.address)
            if owner and not entry.is_permanent and is_of_same_container(self._node, owner, entry.mac):
                continue
            text = f"it sends packets for {entry.address} to {format_mac(entry.mac)}, and not to {format_mac(expected)}"
            command = f"ip neigh del {entry.address} dev {quote(self._ifname)}"
            fix = duplicate_advice(self._node, self._pod, entry) or self._one.inner(command)
            behind = (owner.mac_object(format_mac(entry.mac)),) if owner else ()
            yield self._one.finding(faults.NEIGHBOUR, text, fix, causes=False, behind=behind)

    def _expected_mac(self, neighbour: Address) -> bytes | None:
        """Returns the MAC address of the gateway, or of another pod of the network; None if it is unknown."""
        gate = self._pod.gate
        if gate is not None and gate.mac and neighbour in self._pod.gateways:
            return gate.mac_bytes
        owner = self._one.owners.get(neighbour)
        if owner is None or owner is self._pod or owner.item is not self._pod.item:
            return None
        return owner.mac_bytes

    def _rules(self) -> Iterator[Finding]:
        rules = self._interior.ruleset
        if not rules.chains:
            return
        reported = set()
        for address in self._pod.addresses:
            for packet, hook in self._packets(address):
                for event in traverse(rules, packet, hook).events:
                    place = event.chain.place, event.rule.handle if event.rule else -1
                    if event.fate < Fate.PARTLY or place in reported:
                        continue
                    if event.action.kind in ENDS:
                        text = self._describe(event, "drops some" if event.fate is Fate.PARTLY else "drops")
                    elif event.action.kind == "redirect" and not self._listens(packet.protocol, event.action.port):
                        where = f"redirects to port {event.action.port}, where no program listens,"
                        text = self._describe(event, where)
                    else:
                        continue
                    reported.add(place)
                    yield self._one.finding(faults.RULE, text, self._rule_fix(event), causes=False)

    def _packets(self, address: Address) -> Iterator[tuple[Packet, int]]:
        sent = Packet(
            address.version,
            address,
            remote_addresses(address.version)[0],
            TCP,
            None,
            443,
            oif=self._ifname,
            source_type=2,
        )
        yield sent, OUTPUT
        yield replace(sent, protocol=17, port=53), OUTPUT
        back = replace(
            sent, source=sent.destination, destination=address, source_port=443, port=None, iif=self._ifname, oif="",
            state=ESTABLISHED, source_type=1, destination_type=2,
        )  # fmt: skip
        yield back, INPUT
        yield replace(back, protocol=17, source_port=53), INPUT
        for port in self._pod.ports:
            yield (
                replace(back, protocol=port.protocol_number, source_port=None, port=port.container_port, state=8),
                INPUT,
            )
        yield replace(back, source_port=None, port=_ANY_PORT, state=8), PREROUTING

    def _listens(self, protocol: int, port: int) -> bool:
        return any((one.protocol, one.port) == (protocol, port) for one in self._interior.list_listeners({protocol}))

    def _describe(self, event: PacketEvent, effect: str) -> str:
        what = f"the rule with handle {event.rule.handle}" if event.rule else "the policy"
        packet = event.packet
        service = (
            f" ({ {6: 'tcp', 17: 'udp'}.get(packet.protocol, packet.protocol) } {packet.port})" if packet.port else ""
        )
        where = "that it sends" if packet.oif else "that it gets"
        return f"{what} of chain {event.chain} in the pod {effect} packets {where}{service}"

    def _rule_fix(self, event: PacketEvent) -> str:
        """Returns advice: what is inside a pod is its software's."""
        chain = event.chain
        place = f"{FAMILY_NAMES.get(chain.family, '')} {quote(chain.table)} {quote(chain.name)}"
        look = self._one.inner(f"nft -a list chain {place}")
        return (
            "if the pod's software did not intend the rule, delete it in the pod or create the pod again; to list it: "
            f"{look}"
        )

    def _listeners(self) -> Iterator[Finding]:
        listeners = self._interior.list_listeners({port.protocol_number for port in self._pod.ports})
        for port in self._pod.ports:
            mine = [one for one in listeners if (one.protocol, one.port) == (port.protocol_number, port.container_port)]
            if mine and all(one.address.is_loopback for one in mine):
                where = f"port {port.container_port} listens on {mine[0].address} only"
                text = f"{where}, but host port {port.host_port} leads to it"
                yield self._one.finding(faults.LISTENS, text, faults.LISTENS_FIX, causes=False)
            others = sorted({one.port for one in listeners if one.protocol == port.protocol_number} - {53})
            if not mine and others and port.protocol_number == TCP:
                text = f"host port {port.host_port} leads to port {port.container_port}, where no program listens"
                text += f" (the pod listens on {', '.join(map(str, others[:5]))})"
                yield self._one.finding(faults.PORT_UNUSED, text, faults.PORT_UNUSED_FIX, causes=False)


CHECKS = (
    Check(
        _GROUP,
        "interiors",
        "no pod is running",
        _check,
        (
            *(
                faults.DOWN,
                faults.ADDRESS,
                faults.FOREIGN_ADDRESS,
                faults.GATEWAY,
                faults.ROUTE,
                faults.REFUSED,
                faults.NEIGHBOUR,
                faults.MAC,
                faults.NOARP,
                faults.MTU,
                faults.RULE,
            ),
            *(faults.TRAFFIC, faults.SETTING, faults.LOOPBACK, faults.LISTENS, faults.PORT_UNUSED, faults.RESOLVER),
        ),
    ),
)
