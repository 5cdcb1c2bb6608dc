"""Checks what the host believes about MAC addresses: neighbour entries and the bridges' forwarding databases.

Doctor sends no requests: it compares with the MAC addresses in the results of ADD.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from cni.address import format_mac
from kernel.neighbour import NeighbourEntry
from podwire.doctor.finding import Check, Fault, Finding, Severity
from podwire.doctor.node import CheckedNode
from podwire.doctor.pods import VethPod, is_of_same_container, list_pods, list_uplinks, port_of_mac
from podwire.doctor.shell_command import ShellCommand

_GROUP = "neighbours"

_WRONG = Fault(
    "neighbour-wrong",
    Severity.PROBLEM,
    "the host's neighbour entry (ARP, NDP) of a pod has another MAC address than the pod: it was set, or another "
    "machine or pod answers for the address",
)
_PROXY = Fault(
    "neighbour-proxied",
    Severity.PROBLEM,
    "the host answers ARP or NDP requests for a pod on the pods' own bridge: other pods reach the host instead",
)
_FORWARDING = Fault(
    "forwarding-entry-wrong",
    Severity.PROBLEM,
    "a bridge's forwarding database has a pod's MAC address at another port: frames to the pod leave there",
)
_SAME_MAC = Fault(
    "mac-twice",
    Severity.PROBLEM,
    "two pods on one bridge have the same MAC address: the bridge sends the frames of both to the one that sent last",
)
_SILENT = Fault(
    "gateway-silent",
    Severity.WARNING,
    "the gateway of a route of the host does not answer ARP or NDP requests: the machines behind it are not reachable",
)
_FIXED = Fault(
    "gateway-fixed",
    Severity.NOTE,
    "the neighbour entry of the host's gateway was set by hand: if the gateway has another MAC address now, no packet "
    "leaves the node",
)


def _entries(node: CheckedNode) -> Iterator[Finding]:
    pods = [pod for pod in list_pods(node) if pod.gate]
    by_place = {(pod.gate.index, address): pod for pod in pods if pod.gate for address in pod.addresses}
    for entry in node.neighbours:
        pod = by_place.get((entry.ifindex, entry.address))
        if pod is None or pod.gate is None:
            continue
        where = f"{entry.address} dev {quote(pod.gate.name)}"
        subject = f"{pod.item.network.name}: {pod.name}"
        if entry.is_proxy:
            text = f'the host answers for {entry.address} on "{pod.gate.name}"'
            yield _PROXY.finding(subject, text, ShellCommand(f"ip neigh del proxy {where}"))
        elif entry.mac and pod.mac_bytes and entry.mac != pod.mac_bytes and not entry.is_without_arp:
            if not entry.is_permanent and is_of_same_container(node, pod, entry.mac):
                continue
            how = "was set to" if entry.is_permanent else "was learned as"
            text = f'{entry.address} on "{pod.gate.name}" {how} {format_mac(entry.mac)}, but the pod has {pod.mac}'
            fix = duplicate_advice(node, pod, entry) or ShellCommand(f"ip neigh del {where}")
            yield _WRONG.finding(subject, text, fix, behind=(pod.mac_object(format_mac(entry.mac)),))


def duplicate_advice(node: CheckedNode, pod: VethPod, entry: NeighbourEntry) -> str:
    """Returns advice for a learned entry whose MAC address answers on the pods' bridge: a deleted one comes back.

    Behind the port of the pod that has the address, it is an earlier MAC address of that pod.
    """
    port = "" if entry.is_permanent else port_of_mac(node, pod, entry.mac)
    owners = (one.host_veth for one in list_pods(node) if one.host_veth and entry.address in one.addresses)
    if not port or port in [veth.name for veth in owners]:
        return ""
    where = f'behind the port "{port}" of {pod.item.bridge}'
    return f"another machine has {entry.address}, too: remove it from the one with {format_mac(entry.mac)}, {where}"


def _forwarding(node: CheckedNode) -> Iterator[Finding]:
    pods = [pod for pod in list_pods(node) if pod.item.bridge and pod.host_veth and pod.mac_bytes]
    by_mac: dict[tuple[int, bytes], VethPod] = {}
    for pod in pods:
        bridge = node.link(pod.item.bridge)
        if bridge is None or pod.mac_bytes is None:
            continue
        other = by_mac.setdefault((bridge.index, pod.mac_bytes), pod)
        if other is not pod:
            text = f"{other.name} and {pod.name} both have {pod.mac}"
            yield _SAME_MAC.finding(pod.item.network.name, text, f"remove the pod {pod.name} and create it again")
    for entry in node.forwarding:
        pod_here = by_mac.get((entry.master, entry.mac))
        if pod_here is None or pod_here.host_veth is None or entry.ifindex == pod_here.host_veth.index:
            continue
        port = node.link_of(entry.ifindex)
        name = port.name if port else str(entry.ifindex)
        text = f'"{pod_here.item.bridge}" sends frames for {pod_here.mac} ({pod_here.name}) to "{name}"'
        vlan = f" vlan {entry.vlan}" if entry.vlan else ""
        target = "self" if entry.ifindex == entry.master else "master"
        command = f"bridge fdb del {pod_here.mac} dev {quote(name)} {target}{vlan}"
        yield _FORWARDING.finding(pod_here.item.network.name, text, ShellCommand(command))


def _gateways(node: CheckedNode) -> Iterator[Finding]:
    routes = {hop: route for route in reversed(node.fib.routes) for hop in route.hops}
    defaults = {hop for version in (4, 6) for route in node.fib.list_defaults(version) for hop in route.hops}
    uplinks = {link.index for link in list_uplinks(node)}
    for entry in node.neighbours:
        link, route = node.link_of(entry.ifindex), routes.get((entry.ifindex, entry.address))
        if link is None or route is None or entry.is_proxy:
            continue
        if entry.is_failed:
            text = f'the gateway {entry.address} on "{link.name}" does not answer: {node.describe(route)}'
            yield _SILENT.finding(
                "host", text, "check cable, VLAN and address of the interface, and the gateway; or remove the route"
            )
        elif entry.is_permanent and entry.ifindex in uplinks and (entry.ifindex, entry.address) in defaults:
            text = f'the MAC address of the gateway {entry.address} on "{link.name}" was set to {format_mac(entry.mac)}'
            command = f"ip neigh del {entry.address} dev {quote(link.name)}"
            yield _FIXED.finding("host", text, ShellCommand(command))


CHECKS = (
    Check(_GROUP, "entries", "no neighbour entry of a pod is wrong", _entries, (_WRONG, _PROXY)),
    Check(_GROUP, "forwarding", "the bridges know where their pods are", _forwarding, (_FORWARDING, _SAME_MAC)),
    Check(_GROUP, "next hops", "no gateway of the host is known to be silent", _gateways, (_SILENT, _FIXED)),
)
