"""Checks the node's way to other machines: default routes that pods advertised, gateways, subnets, the source address.

With these faults each packet has a route, so that the check of routes reports nothing. But the packet goes to a wrong
machine, or its answer does.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from cni.address import Address
from kernel import fib, sysctl
from kernel.fib import BY_ADVERTISEMENT, LOCAL, packet_to
from kernel.link import IFF_NOARP, Link
from kernel.route import TABLE_MAIN
from podwire.doctor import route_fixes
from podwire.doctor.finding import Check, Fault, Finding, Severity
from podwire.doctor.gateways import advertised_at
from podwire.doctor.node import CheckedNode
from podwire.doctor.pods import VethPod, list_pods, list_uplinks, remote_addresses
from podwire.doctor.shell_command import ShellCommand, unless_intended

_GROUP = "routes"
_ETHERNET_MAC = len("02:00:00:00:00:01")
_SHORTEST_PREFIX = 16  # of a subnet of public addresses on one Ethernet

_ADVERTISED = Fault(
    "default-advertised-by-pod",
    Severity.PROBLEM,
    "the host learned an IPv6 default route from a pod's router advertisement: it may send that pod the packets to "
    "other machines",
)
_OCCUPIED = Fault(
    "gateway-is-host",
    Severity.PROBLEM,
    "one of the host's interfaces has the address of the host's gateway (with IPVS, that of an externalIP): the host "
    "keeps the packets for the gateway",
)
_WIDE = Fault(
    "uplink-subnet-wide",
    Severity.NOTE,
    "the subnet of an uplink's address has more public addresses than one network: the host looks for distant "
    "machines by ARP, and does not send to its gateway",
)
_SOURCE = Fault(
    "uplink-without-address",
    Severity.PROBLEM,
    "the uplink has no address for masquerading: the pods' packets leave with the address of another interface, and no "
    "answer arrives",
)
_IPV6_OFF = Fault(
    "uplink-ipv6-off",
    Severity.NOTE,
    "the pods have an IPv6 default route, and IPv6 is switched off on the host's uplink",
)


def _check(node: CheckedNode) -> Iterator[Finding]:
    pods = [pod for pod in list_pods(node) if pod.item.routed]
    if pods:
        advertised = list(_advertised(node, pods))
        yield from advertised
        yield from _occupied_gateways(node)
        yield from _wide_subnets(node)
        if not advertised:
            yield from _sources(node, pods)
            yield from _disabled_ipv6(node, pods)


def _advertised(node: CheckedNode, pods: list[VethPod]) -> Iterator[Finding]:
    to_pods = {link.index: link for pod in pods for link in (pod.gate, pod.host_veth) if link}
    for route in node.fib.routes:
        link = to_pods.get(route.ifindex)
        if link is not None and route.protocol == BY_ADVERTISEMENT and not route.destination.prefixlen:
            text = f'a pod advertised itself as router: {node.describe(route)}, learned at "{link.name}"'
            off = sysctl.command(f"ipv6/conf/{link.name}/accept_ra", "0")
            fix = ShellCommand(f"{off} && {route_fixes.deletion(route, node.names)}")
            yield _ADVERTISED.finding(link.name, text, fix, objects=(advertised_at(link.name),))


def _occupied_gateways(node: CheckedNode) -> Iterator[Finding]:
    gateways = {hop: route for route in node.fib.routes if route.table == TABLE_MAIN for _, hop in route.hops if hop}
    for gateway, route in gateways.items():
        links = node.links_by_address.get(gateway, [])
        if gateway.is_link_local:  # each interface may have it: docker0 has fe80::1, the gateway of many hosters
            links = [link for link in links if link.index == route.ifindex]
        if links and node.fib.look_up(packet_to(gateway)).kind == LOCAL:
            text = f'"{links[0].name}" has the address {gateway} of the gateway of "{node.describe(route)}"'
            look = f"ip address show dev {quote(links[0].name)}"
            fix = f"remove {gateway} from the Service's externalIPs, or in the program that added it; to list: {look}"
            yield _OCCUPIED.finding(links[0].name, text, fix)


def _wide_subnets(node: CheckedNode) -> Iterator[Finding]:
    for link in list_uplinks(node):
        for one in node.addresses.get(link.index, ()):
            network = one.address.network
            is_wide = network.version == 4 and network.prefixlen < _SHORTEST_PREFIX and network.is_global
            if is_wide and _is_on_link(node, link):
                text = f"the subnet of its address {one.address} has {network.num_addresses} public addresses"
                yield _WIDE.finding(
                    link.name,
                    text,
                    f"set it with its network's prefix length; to list it: ip address show dev {quote(link.name)}",
                )


def _is_on_link(node: CheckedNode, link: Link) -> bool:
    """Returns whether the host sends packets to a wide subnet without a gateway, so that it looks for each machine."""
    routes = (one for one in node.fib.routes if one.ifindex == link.index and not one.gateway)
    is_used = any(0 < one.destination.prefixlen < _SHORTEST_PREFIX for one in routes)
    return is_used and len(link.mac) == _ETHERNET_MAC and not link.flags & IFF_NOARP


def _sources(node: CheckedNode, pods: list[VethPod]) -> Iterator[Finding]:
    """Yields uplinks whose masqueraded packets get no answers: they leave with a pods' or a link-local address."""
    subnets, gates = [subnet for pod in pods for subnet in pod.item.subnets], [pod.gate for pod in pods]
    for version in (4, 6):
        if not any(_is_masqueraded(pod, version) for pod in pods):
            continue
        remote = remote_addresses(version)[0]
        choice, source = node.fib.look_up(packet_to(remote)), fib.source_for(node.socket, remote)
        uplink = node.link_of(choice.ifindex)
        is_usable = source and not _is_unreachable(source, choice.gateway)
        is_usable = is_usable and not any(source in subnet for subnet in subnets)
        if source and not is_usable and uplink and uplink not in gates and uplink.name not in node.pod_interfaces:
            text = f"it has no IPv{version} address for other machines: pods' packets leave with {source}"
            yield _SOURCE.finding(uplink.name, text, "give it its address again")


def _disabled_ipv6(node: CheckedNode, pods: list[VethPod]) -> Iterator[Finding]:
    has_route = node.fib.look_up(packet_to(remote_addresses(6)[0])).kind
    if has_route or not any(_is_masqueraded(pod, 6) for pod in pods):
        return
    for link in list_uplinks(node):
        name = f"ipv6/conf/{link.name}/disable_ipv6"
        if node.sysctl(name) == "1":
            text = "it is 1, but the pods have an IPv6 default route: their IPv6 packets do not leave the host"
            yield _IPV6_OFF.finding(f"net/{name}", text, unless_intended(sysctl.command(name, "0")))


def _is_unreachable(source: Address, gateway: Address | None) -> bool:
    """Returns whether no answer arrives at a source: a microVM's 169.254.0.2 has a gateway there, which translates."""
    has_translator = source.version == 4 and gateway is not None and gateway.is_link_local
    return source.is_link_local and not has_translator


def _is_masqueraded(pod: VethPod, version: int) -> bool:
    """Returns whether a pod's packets to other machines are masqueraded."""
    has_default = any(
        one.dst.version == version and not one.dst.network.prefixlen for one in pod.attachment.typed_result.routes
    )
    return has_default and pod.item.masquerades


CHECKS = (
    Check(
        _GROUP,
        "way out",
        "the host sends the pods' packets to its gateway, from its address",
        _check,
        (_ADVERTISED, _OCCUPIED, _WIDE, _SOURCE, _IPV6_OFF),
    ),
)
