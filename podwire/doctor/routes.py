"""Checks the host's routes and policy rules for the packets from and to each pod, by predicting each look-up.

A rule that only chooses another way out, as on a node with two uplinks, is no fault: only a packet without a usable
route is.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from cni.address import Address, Network
from kernel import sysctl
from kernel.link import Link
from kernel.netfilter.evaluation import PREROUTING, traverse
from kernel.netfilter.packet import TCP, UDP, Packet
from kernel.route_choice import LOCAL, REFUSALS, UNICAST, Choice, Query
from podwire.doctor.attachments import ELSEWHERE
from podwire.doctor.finding import Check, Fault, Finding, Severity
from podwire.doctor.gateways import gateways_of, ipv6_of
from podwire.doctor.node import Node, overlapping
from podwire.doctor.pods import Pod, list_pods, list_uplinks, remote_addresses
from podwire.doctor.run import Run

_GROUP = "routes"
_SERVICES = ((TCP, 443), (TCP, 80), (UDP, 53))

_REFUSED = Fault(
    "route-refuses",
    Severity.PROBLEM,
    "a policy rule or a route of the host refuses packets from or to the pods (blackhole, unreachable, prohibit), or "
    "chooses a table without a route for them",
    "`ip rule del` or `ip route del` with the entry in the finding; for a rule that is not only about the pods: a rule "
    "before it that looks up table main for them",
)
_LOOPS = Fault(
    "route-loops",
    Severity.PROBLEM,
    "the host's route for what pods send to other machines leads back to the pods' bridge, or to the host itself",
    "`ip route del` with the route in the finding",
)
_REVERSE = Fault(
    "reverse-path",
    Severity.PROBLEM,
    "rp_filter is strict on an interface, and the host would send the answers elsewhere: the kernel drops the packets",
    "`sysctl -w net/ipv4/conf/INTERFACE/rp_filter=2`",
)
_NO_DEFAULT = Fault(
    "no-default-route",
    Severity.NOTE,
    "the host has an interface to other machines, but no default route: pods reach only connected networks",
    "`ip route add default via GATEWAY`, as the node's network configuration says",
)


def _check(node: Node) -> Iterator[Finding]:
    pods = list_pods(node)
    seen: set[tuple[str, str, str]] = set()
    for pod in pods:
        if pod.gate is None or not pod.gate.is_up or not pod.item.routed:
            continue
        is_first = next(one for one in pods if one.item is pod.item) is pod
        for address in pod.addresses:
            findings = [*_to_pod(node, pod, address)]
            findings += _from_pod(node, pod, address) if is_first or _names(node, address) else []
            for finding in findings:
                key = finding.name, pod.item.network.name, finding.fix
                if key not in seen:
                    seen.add(key)
                    yield finding
    yield from _defaults(node, pods)


def _names(node: Node, address: Address) -> bool:
    """Returns whether a policy rule may distinguish an address from others of its network."""
    return any(rule.source and address in rule.source and rule.source.prefixlen > 8 for rule in node.fib.rules)


def _defaults(node: Node, pods: list[Pod]) -> Iterator[Finding]:
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
        if links and not node.fib.look_up(Query(remote_addresses(version)[0])).kind:
            text = f'the host has no IPv{version} default route: "{links[0].name}" reaches only connected networks'
            yield _NO_DEFAULT.finding("host", text, "add it as the node's network configuration says")


def _to_pod(node: Node, pod: Pod, address: Address) -> Iterator[Finding]:
    sources: list[tuple[str, Address | None]] = [("lo", None)]
    sources += [(link.name, remote_addresses(address.version)[0]) for link in list_uplinks(node)[:1]]
    for iif, source in sources:
        choice = node.fib.look_up(Query(address, source, iif))
        where = "packets of this node" if iif == "lo" else "packets of other machines"
        if choice.kind == LOCAL:
            return  # the host has the address: another check reports it
        if choice.kind != UNICAST:
            yield _refused(node, pod, choice, f"{where} to {pod.name} ({address})", version=address.version)
            return
        if choice.ifindex != (pod.gate.index if pod.gate else 0):
            yield _elsewhere(node, pod, address, choice)
            return


def _elsewhere(node: Node, pod: Pod, address: Address, choice: Choice) -> Finding:
    link = node.link_of(choice.ifindex)
    name = link.name if link else f"interface {choice.ifindex}"
    gate = pod.gate.name if pod.gate else ""
    text = f'the host sends packets for {address} to "{name}", not to "{gate}": {choice.route}'
    subject = f"{pod.item.network.name}: {pod.name}"
    route, rule = choice.route, choice.rule
    if route is None or rule is None:
        return ELSEWHERE.finding(subject, text, objects=(pod.key,))
    if rule.table != 254 and not any(  # the policy rule is the cause, if table main has the pod's route
        one.table == rule.table and one.destination == route.destination and address in one.destination
        for one in node.fib.routes
        if one.destination.prefixlen
    ):
        command, advice = _bypass(pod, choice, address.version)
        return ELSEWHERE.finding(subject, text, command, advice=advice, objects=(pod.key,))
    fix: str
    if route.destination.prefixlen and route.protocol != 2 and _is_narrow(pod, route.destination.prefixlen, address):
        fix = Run(f"ip {_family(address.version)}route del {route} dev {quote(name)}")
    elif route.protocol == 2:  # RTPROT_KERNEL: of an address of the interface
        fix = f'"{name}" has an address in {route.destination}: remove that address, or change the pods\' subnet'
    else:
        connected = _connected(pod, address)
        fix = Run(connected) if connected else "remove the container and create it again"
    return ELSEWHERE.finding(subject, text, fix, objects=(pod.key,), behind=_addresses_of(pod))


def _addresses_of(pod: Pod) -> tuple[str, ...]:
    """Returns the objects whose fault explains a missing route: the bridge's addresses, and its IPv6."""
    name = pod.gate.name if pod.gate else ""
    return gateways_of(name), ipv6_of(name)


def _is_narrow(pod: Pod, length: int, address: Address) -> bool:
    """Returns whether a route is at most as wide as the pods' subnet: a wider one only shows that theirs is missing."""
    widths = [subnet.prefixlen for subnet in pod.item.subnets if address in subnet]
    return length >= min(widths, default=address.max_prefixlen)


def _connected(pod: Pod, address: Address) -> str:
    """Returns the command that adds the route to the pods that an address of the bridge, or ptp, had created."""
    if pod.gate is None:
        return ""
    if not pod.item.bridge:
        return f"ip {_family(address.version)}route replace {address} dev {quote(pod.gate.name)}"
    networks = (ip.address.network for ip in pod.attachment.typed_result.ips if ip.address.ip == address)
    gateway = next((one for one in pod.gateways if one.version == address.version), None)
    source = f" proto kernel scope link src {gateway}" if gateway and address.version == 4 else ""
    return f"ip {_family(address.version)}route replace {next(networks)} dev {quote(pod.gate.name)}{source}"


def _from_pod(node: Node, pod: Pod, address: Address) -> Iterator[Finding]:
    gate = pod.gate.name if pod.gate else ""
    version = address.version
    for service in _SERVICES:
        for remote in remote_addresses(version):
            host_choice = node.fib.look_up(Query(remote, None, "lo", 0, *service))
            if host_choice.kind in REFUSALS:
                yield _refused(node, pod, host_choice, f"packets from pods and host to {remote}", version=version)
                continue
            packet = Packet(version, address, remote, service[0], None, service[1], iif=gate)
            mark = traverse(node.ruleset, packet, PREROUTING).packet.mark or 0
            choice = node.fib.look_up(Query(remote, address, gate, mark, *service))
            if choice.kind in REFUSALS or (choice.kind != UNICAST and host_choice.kind == UNICAST):
                yield _refused(node, pod, choice, f"packets from the pods to {remote}", version=version)
            elif choice.kind != UNICAST:
                continue  # the host itself has no default route either
            elif choice.ifindex == (pod.gate.index if pod.gate else 0):
                yield _loop(pod, choice, version)
            elif version == 4:
                yield from _reverse(node, address, remote, choice)


def _loop(pod: Pod, choice: Choice, version: int) -> Finding:
    gate = pod.gate.name if pod.gate else ""
    text = f'packets from the pods to other machines are sent back to "{gate}": {choice.route}'
    fix, advice = _bypass(pod, choice, version)
    if choice.rule and choice.rule.table == 254:
        fix, advice = Run(f"ip {_family(version)}route del {choice.route}"), ""
    return _LOOPS.finding(pod.item.network.name, text, fix, advice=advice)


def _refused(node: Node, pod: Pod, choice: Choice, which: str, *, version: int) -> Finding:
    """Returns the finding about packets without a route, with the entry that refuses them."""
    if choice.route is not None:
        text = f'the route "{choice.route}" refuses {which}'
        command = f"ip {_family(version)}route del {choice.route}"
        return _REFUSED.finding(pod.item.network.name, text, Run(command), objects=(pod.key,))
    if choice.rule is not None:
        text = f'the policy rule "{choice.rule.words}" refuses {which}'
        fix, advice = _bypass(pod, choice, version)
        return _REFUSED.finding(pod.item.network.name, text, fix, advice=advice, objects=(pod.key,))
    missing = _missing_rule(node, version)
    if missing:
        text = f"no policy rule looks up table {missing[1]}: {which} have no route"
        fix = Run(f"ip {_family(version)}rule add priority {missing[0]} lookup {missing[1]}")
        return _REFUSED.finding(pod.item.network.name, text, fix, objects=(pod.key,))
    address = next(one for one in pod.addresses if one.version == version)
    fix_text = _connected(pod, address)
    text = f"no route of the host matches {which}"
    if which.startswith("packets from"):
        return _REFUSED.finding(
            pod.item.network.name, text, "add the route, or remove the policy rule that excludes it"
        )
    return _REFUSED.finding(
        pod.item.network.name, text, Run(fix_text) if fix_text else "", objects=(pod.key,), behind=_addresses_of(pod)
    )


def _missing_rule(node: Node, version: int) -> tuple[int, str] | None:
    tables = {rule.table for rule in node.fib.rules if rule.version == version and rule.action == "lookup"}
    return (32766, "main") if 254 not in tables else None


def _bypass(pod: Pod, choice: Choice, version: int) -> tuple[Run, str]:
    """Returns the command that deletes a rule about the pods only, or one that adds an exception for them."""
    rule = choice.rule
    assert rule is not None
    subnets = pod.item.subnets
    is_about_pods = (
        rule.iif in ((pod.gate.name,) if pod.gate else ())
        or any(one is not None and _is_of_pods(one, pod) for one in (rule.source, rule.destination))
        or not subnets
    )
    if is_about_pods:
        return Run(f"ip {_family(version)}rule del {rule.words}"), "it was added by hand, or by a program: look there"
    before = max(rule.priority - 1, 1)
    mine = [subnet for subnet in subnets if subnet.version == version]
    commands = [
        f"ip {_family(version)}rule add priority {before} {word} {subnet} lookup main"
        for subnet in mine
        for word in ("from", "to")
    ]
    advice = f'the rule "{rule.words}" is not only about the pods: this adds an exception for them'
    return Run(" && ".join(commands)), advice


def _is_of_pods(network: Network, pod: Pod) -> bool:
    """Returns whether a network is the pods' subnet, a part of it, or an address of a pod."""
    subnets = [ip.address.network for ip in pod.attachment.typed_result.ips if ip.address.network.prefixlen <= 24]
    return any(
        overlapping(network, [one]) and network.prefixlen >= one.prefixlen for one in (*pod.item.subnets, *subnets)
    )


def _reverse(node: Node, pod: Address, remote: Address, choice: Choice) -> Iterator[Finding]:
    uplink = node.link_of(choice.ifindex)
    if uplink is None or not _is_strict(uplink):
        return
    back = node.fib.look_up(Query(remote, pod))
    if back.kind == UNICAST and back.ifindex != uplink.index:
        name = f"ipv4/conf/{uplink.name}/rp_filter"
        text = (
            f'it is strict, and the way back to what "{uplink.name}" receives is another one: it drops answers to pods'
        )
        yield _REVERSE.finding(f"net/{name}", text, Run(sysctl.command(name, "2")))


def _is_strict(link: Link) -> bool:
    try:
        values = [sysctl.get(f"ipv4/conf/{name}/rp_filter") for name in ("all", link.name)]
    except OSError:
        return False
    return max(values) == "1"


def _family(version: int) -> str:
    return "-6 " if version == 6 else ""


CHECKS = (
    Check(
        _GROUP,
        "routes",
        "the host has routes for the packets from and to its pods",
        _check,
        (_REFUSED, _LOOPS, _REVERSE, _NO_DEFAULT),
    ),
)
