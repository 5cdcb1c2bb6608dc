"""Checks the host's routes and policy rules for the packets from and to each pod, by predicting each look-up.

A rule that only chooses another way out, as on a node with two uplinks, is no fault: only a packet without a usable
route is.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from cni.address import Address
from kernel import sysctl
from kernel.fib import BY_KERNEL, LOCAL, REFUSALS, UNICAST, packet_to
from kernel.link import IFF_LOOPBACK, IFF_LOWER_UP, Link
from kernel.netfilter.packet import TCP, UDP, Packet
from kernel.reverse_path import is_strict
from kernel.route import TABLE_MAIN
from podwire.doctor import route_fixes
from podwire.doctor.attachments import ELSEWHERE
from podwire.doctor.finding import Check, Fault, Finding, Severity
from podwire.doctor.gateways import advertised_at, gateways_of, ipv6_of
from podwire.doctor.node import CheckedNode
from podwire.doctor.pods import VethPod, host_addresses, list_pods, list_uplinks, node_address, remote_addresses
from podwire.doctor.shell_command import ShellCommand, unless_intended
from podwire.predictions.evaluation import PREROUTING, traverse
from podwire.predictions.routing import MARTIAN, Choice, without_source
from process.values import replace

_GROUP = "routes"
_ADVICE = "add the route, or remove the entry that excludes it"
_SERVICES = ((TCP, 443), (TCP, 80), (UDP, 53))

_REFUSED = Fault(
    "route-refuses",
    Severity.PROBLEM,
    "a policy rule or a route of the host refuses packets from or to the pods (blackhole, unreachable, prohibit), or "
    "chooses a table without a route for them",
)
_LOOPS = Fault(
    "route-loops",
    Severity.PROBLEM,
    "the host's route for what pods send to other machines leads back to the pods' bridge, or to the host itself",
)
_REVERSE = Fault(
    "reverse-path",
    Severity.PROBLEM,
    "rp_filter is strict on an interface, and the host would send the answers elsewhere: the kernel drops the packets",
)
_THROUGH_POD = Fault(
    "default-through-pod",
    Severity.PROBLEM,
    "the host's default route leads to the interface of a pod: a DHCP client (dhcpcd) or a network manager of the host "
    "took the pods' veths for uplinks",
)
_NO_DEFAULT = Fault(
    "no-default-route",
    Severity.NOTE,
    "the host has an interface to other machines, but no default route: pods reach only connected networks",
)


_UPLINK_DOWN = Fault(
    "uplink-down",
    Severity.PROBLEM,
    "the host has no interface to other machines that is up: pods reach only this node",
)


def _check(node: CheckedNode) -> Iterator[Finding]:
    pods = list_pods(node)
    findings: dict[tuple[str, str, str], Finding] = {}
    firsts = {pod.item.network.name: pod for pod in reversed(pods)}
    for pod in pods:
        if pod.gate is None or not pod.gate.is_up or not pod.item.routed:
            continue
        is_first = firsts[pod.item.network.name] is pod
        for address in pod.addresses:
            of_pod = [*_to_pod(node, pod, address)]
            of_pod += _from_pod(node, pod, address) if is_first or _names(node, address) else []
            for finding in of_pod:
                first = findings.setdefault((finding.name, pod.item.network.name, finding.fix), finding)
                objects = dict.fromkeys((*first.objects, *finding.objects))
                findings[first.name, pod.item.network.name, first.fix] = replace(first, objects=tuple(objects))
    yield from findings.values()
    yield from _defaults(node, pods)


def _names(node: CheckedNode, address: Address) -> bool:
    """Returns whether a policy rule may distinguish an address from others of its network."""
    return any(rule.source and address in rule.source and rule.source.prefixlen > 8 for rule in node.fib.rules)


def _defaults(node: CheckedNode, pods: list[VethPod]) -> Iterator[Finding]:
    for version in (4, 6):
        if not any(address.version == version for pod in pods if pod.item.routed for address in pod.addresses):
            continue
        links = [
            link
            for link in list_uplinks(node)
            if any(
                one.address.version == version and not one.address.ip.is_link_local
                for one in node.addresses.get(link.index, ())
            )
        ]
        down = [link for link in node.links if not links and _is_uplink(node, link)]
        if down and version == 4 and not node.used_uplinks:
            names = ", ".join(f'"{link.name}" {_state(link)}' for link in down)
            fix = f"ip link set {quote(down[0].name)} up, and its routes, as the node's network configuration says"
            yield _UPLINK_DOWN.finding("host", f"no interface to other machines is up: {names}", fix)
        packet = packet_to(remote_addresses(version)[0], node_address(node, version))
        if links and not _of_host(node, packet).kind:
            text = f'the host has no IPv{version} default route: "{links[0].name}" reaches only connected networks'
            text += node.fib.describe_other_source(packet, node.names)
            yield _NO_DEFAULT.finding("host", text, "add it as the node's network configuration says")


def _of_host(node: CheckedNode, packet: Packet) -> Choice:
    """Returns the host's route for a packet without a source address or, if there is none, with the host's address."""
    choice = node.fib.look_up(without_source(packet))
    return choice if choice.kind else node.fib.look_up(packet)


def _is_uplink(node: CheckedNode, link: Link) -> bool:
    """Returns whether an interface that is down may lead to other machines."""
    is_podwires = link.name in node.pod_interfaces or link.name in {item.bridge for item in node.interfaces}
    kinds = ("", "veth", "bond", "team", "vlan", "bridge")
    return link.kind in kinds and not link.flags & IFF_LOOPBACK and not is_podwires and _state(link) != "is up"


def _state(link: Link) -> str:
    return "is up" if link.is_up and link.flags & IFF_LOWER_UP else "has no carrier" if link.is_up else "is down"


def _to_pod(node: CheckedNode, pod: VethPod, address: Address) -> Iterator[Finding]:
    version = address.version
    public = node_address(node, version)
    packets = [("packets of this node", packet_to(address))]
    packets += [(f"packets of this node from {public}", packet_to(address, public))] if public else []
    uplinks = list_uplinks(node)[:1]
    packets += [
        ("packets of other machines", packet_to(address, remote_addresses(version)[0], link.name)) for link in uplinks
    ]
    for which, packet in packets:
        choice = node.fib.look_up(packet)
        if choice.kind == LOCAL and address in host_addresses(node):
            return  # another check reports it
        if choice.kind not in (UNICAST, LOCAL):
            yield _refused(node, pod, packet, choice, f"{which} to {pod.name} ({address})")
            return
        if choice.ifindex != (pod.gate.index if pod.gate else 0):
            yield _elsewhere(node, pod, packet, choice)
            return


def _elsewhere(node: CheckedNode, pod: VethPod, packet: Packet, choice: Choice) -> Finding:
    address, route = packet.destination, choice.route
    link = node.link_of(choice.ifindex)
    name = link.name if link else f"interface {choice.ifindex}"
    gate = pod.gate.name if pod.gate else ""
    source = "" if packet.iif or packet.source.is_unspecified else f" from {packet.source}"
    text = f'the host sends packets{source} for {address} to "{name}", not to "{gate}": {node.describe(route)}'
    subject = f"{pod.item.network.name}: {pod.name}"
    fix, advice = route_fixes.toward_pod(node, pod, packet, choice)
    if not fix and route is not None and route.protocol == BY_KERNEL:
        fix = f'"{name}" has an address in {route.destination}: remove that address, or change the pods\' subnet'
    behind = () if choice.rule and choice.rule.table != TABLE_MAIN else _addresses_of(pod)
    fix = fix or "remove the container and create it again"
    return ELSEWHERE.finding(subject, text, fix, advice=advice, objects=(pod.key,), behind=behind)


def _addresses_of(pod: VethPod) -> tuple[str, ...]:
    """Returns the objects whose fault explains a missing route: the bridge's addresses, and its IPv6."""
    name = pod.gate.name if pod.gate else ""
    return gateways_of(name), ipv6_of(name)


def _from_pod(node: CheckedNode, pod: VethPod, address: Address) -> Iterator[Finding]:
    gate = pod.gate.name if pod.gate else ""
    version = address.version
    for service in _SERVICES:
        for remote in remote_addresses(version):
            of_host = packet_to(remote, node_address(node, version), "", 0, *service)
            host_choice = _of_host(node, of_host)
            if host_choice.kind in REFUSALS:
                yield _refused(node, pod, of_host, host_choice, f"packets from pods and host to {remote}")
                continue
            arriving = Packet(version, address, remote, service[0], None, service[1], iif=gate)
            mark = traverse(node.ruleset, arriving, PREROUTING).packet.mark or 0
            packet = packet_to(remote, address, gate, mark, *service)
            choice = node.fib.look_up(packet)
            if choice.kind == MARTIAN or (choice.kind == LOCAL and _is_proxied(choice)):
                continue  # packets to the pod show why its address is one of this host, too
            if choice.kind in REFUSALS or (choice.kind != UNICAST and host_choice.kind == UNICAST):
                yield _refused(node, pod, packet, choice, f"packets from the pods to {remote}")
            elif choice.kind != UNICAST:
                continue  # the host itself has no default route either
            elif choice.ifindex == (pod.gate.index if pod.gate else 0):
                yield _loop(node, pod, packet, choice)
            elif through := _pod_behind(node, choice):
                yield _through_pods(node, pod, choice, through)
            elif version == 4:
                yield from _reverse(node, address, remote, choice)


def _is_proxied(choice: Choice) -> bool:
    """Returns whether a rule for marked packets delivers them to this host: a transparent proxy (TPROXY) gets them."""
    return choice.rule is not None and bool(choice.rule.mask)


def _pod_behind(node: CheckedNode, choice: Choice) -> str:
    """Returns the name of the host veth of a pod that a route uses, "" if it uses none."""
    link = node.link_of(choice.ifindex)
    return link.name if link and link.name in node.pod_interfaces else ""


def _through_pods(node: CheckedNode, pod: VethPod, choice: Choice, name: str) -> Finding:
    """Returns the finding about default routes through pods, as DHCP clients create them; one command for all."""
    text = f'packets to other machines are sent to "{name}", the interface of a pod: {node.describe(choice.route)}'
    commands = []
    for route in node.fib.routes:
        links = [node.link_of(index) for index, _ in route.hops]
        names = [link.name for link in links if link]
        if not route.destination.prefixlen and len(names) == 1 and names[0] in node.pod_interfaces:
            commands.append(route_fixes.deletion(route, node.names))
    advice = (
        "a DHCP client or a network manager of the host configures the pods' interfaces: exclude them there "
        "(dhcpcd.conf: denyinterfaces veth*), or the route returns"
    )
    return _THROUGH_POD.finding(
        pod.item.network.name, text, ShellCommand(" && ".join(commands)), advice=advice, objects=(name,)
    )


def _loop(node: CheckedNode, pod: VethPod, packet: Packet, choice: Choice) -> Finding:
    gate = pod.gate.name if pod.gate else ""
    text = f'packets from the pods to other machines are sent back to "{gate}": {node.describe(choice.route)}'
    fix, advice = route_fixes.from_pod(node, pod, packet, choice)
    behind = (advertised_at(gate),)
    return _LOOPS.finding(pod.item.network.name, text, fix or _ADVICE, advice=advice, behind=behind)


def _refused(node: CheckedNode, pod: VethPod, packet: Packet, choice: Choice, which: str) -> Finding:
    """Returns the finding about packets without a route, with the entry that refuses them."""
    if choice.route is not None:
        verb = "delivers to this host" if choice.kind == LOCAL else "refuses"
        text = f'the route "{node.describe(choice.route)}" {verb} {which}'
    elif choice.rule is not None:
        text = f'the policy rule "{choice.rule.words}" refuses {which}'
    elif thrown := node.fib.list_thrown(packet):
        text = f'the route "{node.describe(thrown[0])}" ends the search for {which}, and no other table has a route'
    else:
        text = f"no route of the host matches {which}{node.fib.describe_other_source(packet, node.names)}"
    is_to_pod = packet.destination in pod.addresses
    find = route_fixes.toward_pod if is_to_pod else route_fixes.from_pod
    fix, advice = find(node, pod, packet, choice)
    if fix and choice.kind in (*REFUSALS, LOCAL):  # a blackhole, or a proxy on this host
        fix, advice = unless_intended(fix), ""
    behind = _addresses_of(pod) if is_to_pod and choice.route is None and choice.rule is None else ()
    objects = (pod.key,) if is_to_pod or choice.kind else ()
    return _REFUSED.finding(pod.item.network.name, text, fix or _ADVICE, advice=advice, objects=objects, behind=behind)


def _reverse(node: CheckedNode, pod: Address, remote: Address, choice: Choice) -> Iterator[Finding]:
    uplink = node.link_of(choice.ifindex)
    if uplink is None or not is_strict(node.socket, uplink):
        return
    back = node.fib.look_up(packet_to(remote, pod))
    if back.kind == UNICAST and back.ifindex != uplink.index:
        name = f"ipv4/conf/{uplink.name}/rp_filter"
        text = (
            f'it is strict, and the way back to what "{uplink.name}" receives is another one: it drops answers to pods'
        )
        yield _REVERSE.finding(f"net/{name}", text, unless_intended(sysctl.command(name, "2")))


CHECKS = (
    Check(
        _GROUP,
        "routes",
        "the host has routes for the packets from and to its pods",
        _check,
        (_REFUSED, _LOOPS, _THROUGH_POD, _REVERSE, _NO_DEFAULT, _UPLINK_DOWN),
    ),
)
