"""Checks the inside of each running pod: its interface, addresses, routes, neighbours, rules and settings.

ADD's result says what must be there. A fault that is existing here explains CHECK's failure, which is folded into it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from shlex import quote

from attachment.presence import Presence
from cni.address import Address, Cidr, format_mac
from cni.errors import CniError
from kernel.link import IFF_NOARP, Link
from kernel.netfilter.evaluation import INPUT, OUTPUT, Event, Fate, traverse
from kernel.netfilter.packet import ESTABLISHED, TCP, Packet
from kernel.netfilter.ruleset import FAMILY_NAMES
from kernel.route_choice import LOCAL, UNICAST, Query
from podwire.doctor import interior_faults as faults
from podwire.doctor.finding import UNSEEN, Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.gateways import gateway_commands, ipv6_of
from podwire.doctor.node import Node
from podwire.doctor.pods import Pod, list_pods, remote_addresses
from podwire.doctor.run import Run
from podwire.node.pod_interior import Interior, read_interior
from process.values import replace

_GROUP = "pods"
_LIMIT_S = 3.0
_ENDS = ("drop", "reject", "queue", "expire")


def _check(node: Node) -> Iterator[Finding]:
    pods = list_pods(node)
    owners: dict[Address, Pod] = {}
    for pod in pods:
        for address in pod.addresses:
            owners.setdefault(address, pod)
    end, checked, unseen = time.monotonic() + _LIMIT_S, 0, 0
    for pod in pods:
        if node.presence(pod.attachment) is not Presence.HERE or not pod.attachment.netns:
            continue
        if time.monotonic() > end:
            unseen += 1
            continue
        try:
            protocols = {port.protocol for port in pod.ports}
            interior = read_interior(pod.attachment.netns, pod.attachment.attachment.ifname, protocols)
        except (CniError, OSError) as error:
            yield UNSEEN.finding(pod.name, f"its namespace cannot be inspected: {error}", UNSEEN.fix)
            continue
        checked += 1
        yield from _Inspection(node, pod, interior, owners).run()
    if unseen:
        yield UNSEEN.finding(
            "pods", f"the inside of {unseen} pods was not inspected: time was up", "podwire doctor NETWORK"
        )
    elif checked:
        yield ok_finding("interiors", "pods", f"the inside of all {checked} was inspected")


class _Inspection:
    """The checks of one pod."""

    def __init__(self, node: Node, pod: Pod, interior: Interior, owners: dict[Address, Pod]) -> None:
        self._node = node
        self._pod = pod
        self._interior = interior
        self._owners = owners
        self._ifname = pod.attachment.attachment.ifname
        self._enter = f"nsenter --net={quote(pod.attachment.netns)} "
        self._subject = f"{pod.item.network.name}: {pod.name} {self._ifname}"

    def run(self) -> Iterator[Finding]:
        """Yields the findings."""
        link = self._interior.link(self._ifname)
        if link is None:
            return  # CHECK reports it
        if not link.is_up and not self._pod.item.is_container_veth_down:
            yield self._finding(faults.DOWN, f'"{self._ifname}" is down', self._restore(link, up=True))
            return
        first = [*self._link(link), *self._settings(link), *self._mtus(link)]
        yield from first
        if not any(finding.objects for finding in first):  # else its addresses may be gone for that reason
            yield from self._addresses(link)
            yield from self._routes(link)
        yield from self._neighbours(link)
        yield from self._rules()
        yield from self._listeners()
        loopback = self._interior.link("lo")
        if loopback is not None and not loopback.is_up:
            yield self._finding(faults.LOOPBACK, "lo is down", self._inner("ip link set lo up"), causes=False)

    def _finding(
        self, fault: Fault, text: str, fix: str, *, causes: bool = True, severity: Severity | None = None
    ) -> Finding:
        veth = self._pod.host_veth.name if self._pod.host_veth else ""
        objects = (self._pod.key, f"interior {veth}") if causes else ()
        return fault.finding(self._subject, text, fix, objects=objects, severity=severity)

    def _inner(self, *commands: str) -> Run:
        return Run(" && ".join(self._enter + command for command in commands))

    def _restore(self, link: Link, *, up: bool = False) -> Run:
        """Returns the commands that restore addresses and routes as ADD's result has them."""
        name = quote(self._ifname)
        commands = [f"ip link set {name} up"] if up else []
        present = {
            (one.address.ip, one.address.network.prefixlen) for one in self._interior.addresses.get(link.index, ())
        }
        for ip in self._pod.attachment.typed_result.ips:
            if (ip.address.ip, ip.address.network.prefixlen) not in present:
                nodad = " nodad" if ip.address.version == 6 else ""
                commands.append(f"ip address replace {ip.address} dev {name}{nodad}")
        for destination, gateway in self._expected_routes():
            family = "-6 " if destination.version == 6 else ""
            if gateway is not None and not any(
                gateway in ip.address.network for ip in self._pod.attachment.typed_result.ips
            ):
                commands.append(f"ip {family}route replace {gateway} dev {name} scope link")
            via = f" via {gateway}" if gateway else ""
            commands.append(f"ip {family}route replace {destination.network}{via} dev {name}")
        return self._inner(*commands)

    def _expected_routes(self) -> list[tuple[Cidr, Address | None]]:
        """Returns the routes of ADD's result, with their gateways; those in a VRF are in another table."""
        result = self._pod.attachment.typed_result
        is_in_vrf = any(plugin["type"] == "vrf" for plugin in self._pod.item.network.plugins)
        routes = []
        for one in result.routes:
            gateway = one.gw or next(
                (ip.gateway for ip in result.ips if ip.gateway and ip.gateway.version == one.dst.version), None
            )
            if not (one.table or is_in_vrf):
                routes.append((one.dst, gateway))
        return routes

    def _link(self, link: Link) -> Iterator[Finding]:
        if self._pod.mac and link.mac and link.mac != self._pod.mac:
            text = f"its MAC address is {link.mac}, and was {self._pod.mac} at ADD"
            yield self._finding(
                faults.MAC, text, self._inner(f"ip link set {quote(self._ifname)} address {self._pod.mac}")
            )
        if link.flags & IFF_NOARP:
            yield self._finding(faults.NOARP, "ARP is off", self._inner(f"ip link set {quote(self._ifname)} arp on"))

    def _addresses(self, link: Link) -> Iterator[Finding]:
        present = [one.address for one in self._interior.addresses.get(link.index, ())]
        addresses = {one.ip for one in present}
        expected = self._pod.attachment.typed_result.ips
        missing = [ip.address for ip in expected if ip.address.ip not in addresses]
        if missing:
            text = f"it has lost {', '.join(map(str, missing))}"
            yield self._finding(faults.ADDRESS, text, self._restore(link))
        hosts = {one.address.ip for assigned in self._node.addresses.values() for one in assigned}
        for one in present:
            if one.ip in self._pod.addresses or one.ip.is_link_local:
                continue
            owner = self._owners.get(one.ip)
            owner_text = f"the pod {owner.name}" if owner else "the host" if one.ip in hosts else ""
            if owner_text:
                fix = self._inner(f"ip address del {one} dev {quote(self._ifname)}")
                text = f"it has {one}, the address of {owner_text}"
                yield self._finding(faults.FOREIGN_ADDRESS, text, fix, causes=False)

    def _routes(self, link: Link) -> Iterator[Finding]:
        for destination, gateway in self._expected_routes():
            version = destination.version
            source = next((one for one in self._pod.addresses if one.version == version), None)
            network = destination.network
            target = network.network_address if network.prefixlen else remote_addresses(version)[0]
            if source is not None and gateway is not None:
                yield from self._route(link, target, source, gateway, destination)
        for other in self._peers():
            source = next((one for one in self._pod.addresses if one.version == other.version), None)
            choice = self._interior.fib.look_up(Query(other, source))
            if choice.kind not in (UNICAST, LOCAL, ""):
                yield self._refusal(choice.route, choice.rule, f"packets to {other}", other.version)
                return

    def _peers(self) -> list[Address]:
        """Returns the gateway and another pod of the network."""
        others = [
            one for one, pod in self._owners.items() if pod.item is self._pod.item and one not in self._pod.addresses
        ]
        return [*self._pod.gateways[:1], *others[:1]]

    def _route(
        self, link: Link, target: Address, source: Address, gateway: Address, destination: Cidr
    ) -> Iterator[Finding]:
        choice = self._interior.fib.look_up(Query(target, source))
        if choice.kind == "":
            text = f"it has no route to {destination.network}"
            yield self._finding(faults.ROUTE, text, self._restore(link))
        elif choice.kind != UNICAST:
            yield self._refusal(choice.route, choice.rule, f"packets to {target}", target.version)
        elif choice.gateway != gateway or choice.ifindex != link.index:
            used = next((one.name for one in self._interior.links if one.index == choice.ifindex), str(choice.ifindex))
            if used != self._ifname and not self._is_ours_alone():
                return  # another attachment of the pod may be its way out
            hop = choice.gateway or f"no gateway (dev {used})"
            text = f"packets to {target} go to {hop} through {used}, and not to {gateway}: {choice.route}"
            yield self._finding(faults.GATEWAY, text, self._reroute(link, choice.route))

    def _is_ours_alone(self) -> bool:
        netns = self._pod.attachment.netns
        others = [one for one in self._node.running if one.netns == netns and not one.is_confined]
        return len(others) == 1

    def _reroute(self, link: Link, route: object) -> Run:
        """Returns the commands that delete the route in use, and restore the one of ADD."""
        family = "-6 " if ":" in str(route).split(" ", 1)[0] else ""
        return Run(f"{self._inner(f'ip {family}route del {route}')} && {self._restore(link)}")

    def _refusal(self, route: object, rule: object, which: str, version: int) -> Finding:
        family = "-6 " if version == 6 else ""
        if route is not None:
            return self._finding(
                faults.REFUSED, f'its route "{route}" refuses {which}', self._inner(f"ip {family}route del {route}")
            )
        words = getattr(rule, "words", "")
        return self._finding(
            faults.REFUSED, f'its policy rule "{words}" refuses {which}', self._inner(f"ip {family}rule del {words}")
        )

    def _neighbours(self, link: Link) -> Iterator[Finding]:
        macs = {
            one: pod.mac_bytes
            for one, pod in self._owners.items()
            if pod.item is self._pod.item and pod is not self._pod
        }
        gate = self._pod.gate
        if gate is not None and gate.mac:
            macs |= dict.fromkeys(self._pod.gateways, gate.mac_bytes)
        for entry in self._interior.neighbours:
            expected = macs.get(entry.address)
            if entry.ifindex != link.index or not expected or not entry.mac or entry.mac == expected or entry.is_proxy:
                continue
            text = f"it sends packets for {entry.address} to {format_mac(entry.mac)}, and not to {format_mac(expected)}"
            command = f"ip neigh del {entry.address} dev {quote(self._ifname)}"
            yield self._finding(faults.NEIGHBOUR, text, self._inner(command), causes=False)

    def _rules(self) -> Iterator[Finding]:
        rules = self._interior.ruleset
        if not rules.chains:
            return
        reported = set()
        for address in self._pod.addresses:
            for packet, hook in self._packets(address):
                for event in traverse(rules, packet, hook).events:
                    place = event.chain.place, event.rule.handle if event.rule else -1
                    if event.action.kind in _ENDS and event.fate >= Fate.PARTLY and place not in reported:
                        reported.add(place)
                        yield self._finding(faults.RULE, self._describe(event), self._rule_fix(event), causes=False)

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
            yield replace(back, protocol=port.protocol, source_port=None, port=port.container_port, state=8), INPUT

    def _describe(self, event: Event) -> str:
        what = f"the rule with handle {event.rule.handle}" if event.rule else "the policy"
        packet = event.packet
        service = (
            f" ({ {6: 'tcp', 17: 'udp'}.get(packet.protocol, packet.protocol) } {packet.port})" if packet.port else ""
        )
        where = "that it sends" if packet.oif else "that it gets"
        partly = "some " if event.fate is Fate.PARTLY else ""
        return f"{what} of chain {event.chain} in the pod drops {partly}packets {where}{service}"

    def _rule_fix(self, event: Event) -> str:
        """Returns advice: what is inside a pod is its software's."""
        chain = event.chain
        place = f"{FAMILY_NAMES.get(chain.family, '')} {quote(chain.table)} {quote(chain.name)}"
        look = self._inner(f"nft -a list chain {place}")
        return f"if the pod's software does not mean that, change it there, or create the pod again; look at it: {look}"

    def _settings(self, link: Link) -> Iterator[Finding]:
        values, name = self._interior.settings, self._ifname
        has_ipv6 = any(address.version == 6 for address in self._pod.addresses)
        for setting, bad, good, effect in (
            ("ipv4/ip_default_ttl", range(10), "64", "its packets expire on the way"),
            (f"ipv4/conf/{name}/arp_ignore", (8,), "0", "it does not answer ARP requests"),
            (f"ipv4/neigh/{name}/mcast_solicit", (0,), "3", "it does not ask for MAC addresses"),
            (f"ipv6/conf/{name}/disable_ipv6", (1,) if has_ipv6 else (), "0", "its IPv6 addresses are off"),
        ):
            value = values.get(setting, "")
            if value.isdigit() and int(value) in bad:
                text = f"net/{setting} is {value}: {effect}"
                fix = self._inner(f"sysctl -w net/{setting}={good}")
                if setting.startswith("ipv6"):  # the kernel has removed the addresses
                    fix = Run(f"{fix} && {self._restore(link)}")
                yield self._finding(faults.SETTING, text, fix, severity=Severity.PROBLEM)
        if values.get("ipv4/icmp_echo_ignore_all") == "1":
            text = "net/ipv4/icmp_echo_ignore_all is 1: it does not answer pings"
            yield self._finding(
                faults.SETTING,
                text,
                self._inner("sysctl -w net/ipv4/icmp_echo_ignore_all=0"),
                causes=False,
                severity=Severity.NOTE,
            )
        ports = values.get("ipv4/ip_local_port_range", "").split()
        if len(ports) == 2 and int(ports[1]) - int(ports[0]) < 100:
            text = f"net/ipv4/ip_local_port_range is {ports[0]} to {ports[1]}: it can open few connections"
            yield self._finding(
                faults.SETTING, text, self._inner("sysctl -w net/ipv4/ip_local_port_range='32768 60999'"), causes=False
            )

    def _mtus(self, link: Link) -> Iterator[Finding]:
        veth, bridge = self._pod.host_veth, self._pod.gate if self._pod.item.bridge else None
        name = quote(self._ifname)
        least = 1280 if any(address.version == 6 for address in self._pod.addresses) else 576
        if link.mtu < least:
            text = f'"{self._ifname}" has MTU {link.mtu}, and IP needs at least {least}'
            mtu = bridge.mtu if bridge and bridge.mtu >= least else 1500
            commands = [f"ip link set {quote(veth.name)} mtu {mtu}"] if veth is not None else []
            commands += [self._inner(f"ip link set {name} mtu {mtu}"), self._restore(link)]
            finding = self._finding(faults.MTU, text, "")
            if bridge is not None and bridge.mtu < least:  # it has the smallest MTU of its ports, and no IPv6 then
                commands += gateway_commands(self._node, self._pod.item)
                finding = replace(finding, objects=(*finding.objects, ipv6_of(bridge.name)))
            yield replace(finding, fix=Run(" && ".join(commands)))
        elif veth is not None and veth.mtu != link.mtu and not self._has_chained_mtu():
            text = f'"{self._ifname}" has MTU {link.mtu}, but its other end "{veth.name}" has {veth.mtu}'
            inner, outer = f"ip link set {name} mtu {veth.mtu}", f"ip link set {quote(veth.name)} mtu {link.mtu}"
            is_pods_wrong = bridge is None or veth.mtu == bridge.mtu
            yield self._finding(faults.MTU, text, self._inner(inner) if is_pods_wrong else Run(outer))
        elif bridge is not None and bridge.mtu < link.mtu:
            text = f'it has MTU {link.mtu}, but the bridge "{bridge.name}" has {bridge.mtu}'
            if self._pod is next((one for one in self._owners.values() if one.item is self._pod.item), None):
                fix = Run(f"ip link set {quote(bridge.name)} mtu {link.mtu}")  # once for each network
                yield self._finding(faults.MTU, text, fix, causes=False)

    def _has_chained_mtu(self) -> bool:
        """Returns whether a chained plugin (tuning) sets the MTU of the pod's interface alone."""
        return any("mtu" in plugin for plugin in self._pod.item.network.plugins[1:])

    def _listeners(self) -> Iterator[Finding]:
        for port in self._pod.ports:
            mine = [
                one
                for one in self._interior.listeners
                if (one.protocol, one.port) == (port.protocol, port.container_port)
            ]
            if mine and all(one.address.is_loopback for one in mine):
                where = f"port {port.container_port} listens on {mine[0].address} only"
                text = f"{where}, but host port {port.port} leads to it"
                yield self._finding(faults.LISTENS, text, faults.LISTENS.fix, causes=False)


CHECKS = (
    Check(
        _GROUP,
        "interiors",
        "no pod is running owner_text inside could be inspected",
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
            *(faults.SETTING, faults.LOOPBACK, faults.LISTENS),
        ),
    ),
)
