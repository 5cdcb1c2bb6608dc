"""Checks published ports, on which host processes may listen, and the tracked UDP flows, which may be out of date."""

from __future__ import annotations

from collections.abc import Iterator

from kernel.fib import packet_to
from kernel.netfilter import conntrack, nft
from kernel.netfilter.conntrack import TrackedFlow
from kernel.netfilter.packet import UDP, Packet
from kernel.sockets_table import ListeningSocket, find_processes, list_listeners
from podwire.doctor.finding import Check, Fault, Finding, Severity
from podwire.doctor.node import CheckedNode
from podwire.doctor.pods import VethPod, host_addresses, list_pods
from podwire.doctor.shell_command import ShellCommand
from podwire.node.model import HostPort
from podwire.node.programs import find_program
from podwire.output import plural
from podwire.predictions.evaluation import POSTROUTING, Fate, traverse

_GROUP = "host ports"
_HOLDERS = ("conmon", "podman", "rootlessport")  # podman keeps a published port open itself

_USED = Fault(
    "port-taken-by-process",
    Severity.WARNING,
    "a process of the host listens on a pod's published port: it gets no packets from other machines, as these go to "
    "the pod; or, if it was there first, its clients now reach the pod",
)
_STALE = Fault(
    "conntrack-stale",
    Severity.PROBLEM,
    "connection tracking has a UDP flow to a published port that is older than the pod's port: as long as packets "
    "come, they go to the former target",
)
_OLD = Fault(
    "conntrack-old-address",
    Severity.PROBLEM,
    "connection tracking still masquerades a UDP flow of a pod with an address that the host has lost: no "
    "answer arrives, for as long as the pod sends",
)


def _published(node: CheckedNode) -> list[tuple[VethPod, HostPort]]:
    return [(pod, port) for pod in list_pods(node) for port in pod.ports]


def _processes(node: CheckedNode) -> Iterator[Finding]:
    published = _published(node)
    if not published:
        return
    numbers = {(port.protocol_number, port.host_port) for _, port in published}
    listeners = [one for one in list_listeners({6, UDP}) if (one.protocol, one.port) in numbers]
    processes = find_processes(one.inode for one in listeners) if listeners else {}
    reported = set()
    for pod, port in published:
        for listener in listeners:
            key = port.protocol_number, port.host_port, listener.inode
            if (listener.protocol, listener.port) == (port.protocol_number, port.host_port) and key not in reported:
                reported.add(key)
                yield from _used_by(pod, port, listener, processes.get(listener.inode))


def _used_by(
    pod: VethPod, port: HostPort, listener: ListeningSocket, holder: tuple[int, str] | None
) -> Iterator[Finding]:
    if port.host_ip not in ("", "0.0.0.0", "::", str(listener.address)) and not listener.address.is_unspecified:
        return
    if holder is not None and holder[1] in _HOLDERS:
        return
    who = f"process {holder[0]} ({holder[1]})" if holder else "a process that is not visible here"
    number = f"{port.protocol} port {port.host_port}"
    text = f"{who} of the host listens on {number} ({listener.address}), which is published for {pod.name}"
    stop = f"stop {holder[1]}, " if holder else "stop it, "
    yield _USED.finding(pod.item.network.name, text, f"{stop}or publish another port for the pod")


def _flows(node: CheckedNode) -> Iterator[Finding]:
    published = [(pod, port) for pod, port in _published(node) if port.protocol_number == UDP]
    if not published:
        return
    ports = {port.host_port for _, port in published}
    versions = {address.version for pod, _ in published for address in pod.addresses}
    try:
        with nft.open_socket() as socket:
            flows = [flow for version in sorted(versions) for flow in conntrack.list_udp_flows(socket, version, ports)]
    except nft.UnavailableError:
        return
    hosts = host_addresses(node)
    for pod, port in published:
        stale = [
            flow for flow in flows if flow.port == port.host_port and flow.destination in hosts and _is_stale(flow, pod)
        ]
        if stale:
            flow = stale[0]
            source, source_port = flow.reply_source or (flow.destination, flow.port)
            to_port = f"{plural(len(stale), 'tracked UDP flow')} to port {port.host_port}"
            text = f"{to_port}: to {source}:{source_port}, and not to {pod.name}"
            yield _STALE.finding(pod.item.network.name, text, *_fix(stale))


def _old_addresses(node: CheckedNode) -> Iterator[Finding]:
    pods = {address: pod for pod in list_pods(node) if pod.item.routed for address in pod.addresses}
    if not pods:
        return
    try:
        with nft.open_socket() as socket:
            versions, hosts = sorted({one.version for one in pods}), set(host_addresses(node))
            listed = [conntrack.list_flows_from_others(socket, version, set(pods), hosts) for version in versions]
    except nft.UnavailableError:
        return
    stale = [flow for flows in listed for flow in flows if _is_masqueraded(node, flow)]
    for address in dict.fromkeys(flow.reply_destination for flow in stale):
        same = [flow for flow in stale if flow.reply_destination == address]
        pod, first = pods[same[0].source], same[0]
        flow = f"from {pod.name} to {first.destination} port {first.port}"
        text = f"{plural(len(same), 'UDP flow')} leave with {address}, which the host has lost, for example that {flow}"
        yield _OLD.finding(pod.item.network.name, text, *_fix(same))


def _is_masqueraded(node: CheckedNode, flow: TrackedFlow) -> bool:
    """Returns whether a rule masquerades the flow; otherwise a rule with a fixed address has set its source."""
    uplink = node.link_of(node.fib.look_up(packet_to(flow.destination)).ifindex)
    packet = Packet(
        flow.source.version, flow.source, flow.destination, UDP, flow.source_port, flow.port,
        oif=uplink.name if uplink else "",
    )  # fmt: skip
    events = traverse(node.ruleset, packet, POSTROUTING).events
    return [one.action.kind for one in events if one.fate is Fate.CERTAIN][:1] == ["masquerade"]


def _is_stale(flow: TrackedFlow, pod: VethPod) -> bool:
    if flow.reply_source is None:
        return False
    target = flow.reply_source[0]
    return target.version in {one.version for one in pod.addresses} and target not in pod.addresses


def _fix(stale: list[TrackedFlow]) -> tuple[str]:
    if not find_program("conntrack"):
        return ("install the program conntrack, then run doctor again; or stop the sender for three minutes",)
    commands = dict.fromkeys(
        f"conntrack -D -p udp --orig-src {flow.source} --orig-dst {flow.destination} "
        f"--sport {flow.source_port} --dport {flow.port}"
        for flow in stale[:20]
    )
    return (ShellCommand(" && ".join(commands)),)


CHECKS = (
    Check(_GROUP, "processes", "no process of the host listens on a published port", _processes, (_USED,)),
    Check(_GROUP, "flows", "no tracked UDP flow to a published port is stale", _flows, (_STALE,)),
    Check("routes", "tracked flows", "no tracked UDP flow of a pod has an earlier address", _old_addresses, (_OLD,)),
)
