"""Checks the ports of the networks' bridges: state, spanning tree, isolation, VLANs, and settings that stop frames."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from kernel import vlan
from kernel.bridge_state import FORWARDING, BridgePort
from kernel.link import OPERSTATE_UP, Link
from kernel.rtnl import Socket
from podwire.doctor.finding import Check, Fault, Finding, Severity
from podwire.doctor.node import CheckedNode
from podwire.doctor.pods import VethPod, list_pods
from podwire.doctor.shell_command import ShellCommand, unless_intended
from podwire.predictions.obstacles import NEEDLESS_WITH_ENTRY, wrong_flags

_GROUP = "links"

_STP = Fault(
    "spanning-tree",
    Severity.WARNING,
    "the spanning tree protocol is on for a network's bridge: a new pod's port forwards nothing for 30 s, and a loop, "
    "or a message from another bridge, blocks ports",
)
_BLOCKED = Fault(
    "port-blocked",
    Severity.PROBLEM,
    "a pod's port is disabled or blocked in its bridge: no frame passes",
)
_ISOLATED = Fault(
    "port-isolated",
    Severity.PROBLEM,
    "a pod's port is isolated, but its network does not say so: the pod does not reach other isolated pods",
)
_LOST_FLAG = Fault(
    "port-flag-lost",
    Severity.WARNING,
    "a pod's port lacks a flag that its network sets (hairpin, isolated)",
)
_SETTINGS = Fault(
    "port-settings",
    Severity.PROBLEM,
    "a setting of a pod's port, which podwire never changes, stops frames: flooding or learning is off, ARP is "
    "suppressed, or the port is locked",
)
_VLAN = Fault(
    "port-vlan-wrong",
    Severity.PROBLEM,
    "the bridge filters VLANs, and a pod's port is in another VLAN than the bridge itself (PVID): the pod does not "
    "reach its gateway",
)
_ENSLAVED = Fault(
    "interface-is-port",
    Severity.PROBLEM,
    "a network's bridge, a routed pod's interface, or the host's uplink is a port of another bridge: the host does not "
    "get the packets that arrive there",
)


def _ports(node: CheckedNode) -> Iterator[Finding]:
    pods = [pod for pod in list_pods(node) if pod.item.bridge and pod.host_veth]
    for name in dict.fromkeys(pod.item.bridge for pod in pods):
        bridge = node.link(name)
        if bridge is not None:
            yield from _bridge(node, bridge, [pod for pod in pods if pod.item.bridge == name])


def _bridge(node: CheckedNode, bridge: Link, pods: list[VethPod]) -> Iterator[Finding]:
    settings = node.link_settings.bridges.get(bridge.index)
    if settings is not None and settings.stp:
        text = "the spanning tree protocol is on"
        command = f"ip link set {quote(bridge.name)} type bridge stp_state 0"
        blocked = any(_state(node, pod) not in (None, FORWARDING) for pod in pods)
        severity = Severity.PROBLEM if blocked else None
        yield _STP.finding(
            bridge.name, text, ShellCommand(command), objects=(f"spanning tree of {bridge.name}",), severity=severity
        )
    fixed = {(one.ifindex, one.mac) for one in node.forwarding if one.is_static}
    for pod in pods:
        veth = pod.host_veth
        port = node.link_settings.ports.get(veth.index) if veth else None
        if veth is not None and port is not None and veth.master == bridge.index:
            is_fixed = (veth.index, pod.mac_bytes) in fixed
            yield from _port(pod, veth, port, bridge, is_fixed=is_fixed)
    if settings is not None and settings.vlan_filtering:
        yield from _vlans(bridge, pods)


def _state(node: CheckedNode, pod: VethPod) -> int | None:
    port = node.link_settings.ports.get(pod.host_veth.index) if pod.host_veth else None
    return port.state if port and pod.host_veth and pod.host_veth.operstate == OPERSTATE_UP else None


def _port(pod: VethPod, veth: Link, port: BridgePort, bridge: Link, *, is_fixed: bool) -> Iterator[Finding]:
    """Yields the findings about a port; `is_fixed`: a static entry has the MAC address of the pod."""
    subject, name, flags = pod.item.network.name, quote(veth.name), pod.item.port_flags
    what = f'the port "{veth.name}" of {pod.name}'
    if port.state != FORWARDING and veth.is_up and veth.operstate == OPERSTATE_UP:
        behind = (f"spanning tree of {bridge.name}", bridge.name)
        command = f"bridge link set dev {name} state {FORWARDING}"
        yield _BLOCKED.finding(
            subject, f"{what} is {port.state_name}", ShellCommand(command), behind=behind, objects=(veth.name,)
        )
    if port.isolated and "isolated" not in flags:
        fix = unless_intended(f"bridge link set dev {name} isolated off")
        yield _ISOLATED.finding(subject, f"{what} is isolated", fix, objects=(veth.name,))
    for flag, value in (("hairpin", port.hairpin), ("isolated", port.isolated)):
        if flag in flags and value is False:
            command = f"bridge link set dev {name} {flag} on"
            objects = (veth.name,)
            yield _LOST_FLAG.finding(subject, f"{what} is not set to {flag}", ShellCommand(command), objects=objects)
    flags_in_order = NEEDLESS_WITH_ENTRY if is_fixed else ()
    wrong = [flag[1:] for flag in wrong_flags(port) if flag[0] not in flags_in_order]
    if wrong:
        words = ", ".join(f"{word} {'on' if bad else 'off'}" for bad, word, _ in wrong)
        settings = " ".join(f"{word} {'off' if bad else 'on'}" for bad, word, _ in reversed(wrong))
        slow = ["learning", "flood", "neigh_suppress"]
        slow += [] if any(one.version == 6 for one in pod.addresses) else ["mcast_flood"]
        is_slow = all(word in slow for _, word, _ in wrong)
        text = f"{what} has {words}: {'; '.join(effect for _, _, effect in wrong)}"
        severity = Severity.WARNING if is_slow else None
        command = f"bridge link set dev {name} {settings}"
        yield _SETTINGS.finding(subject, text, ShellCommand(command), severity=severity, objects=(veth.name,))


def _vlans(bridge: Link, pods: list[VethPod]) -> Iterator[Finding]:
    """Compares the VLAN of each port with the bridge's; CHECK does so for networks that configure VLANs."""
    with Socket() as socket:
        members = vlan.list_by_port(socket, bridge)
        member = vlan.get_member(socket, bridge, bridge.index)
    pvid = vlan.pvid_of(member.vlans if member else {})
    for pod in pods:
        veth = pod.host_veth
        if pod.item.vlans or veth is None or veth.index not in members or not pvid:
            continue
        vlans = members[veth.index]
        port_pvid = vlan.pvid_of(vlans)
        if port_pvid != pvid or not vlans.get(pvid, 0) & vlan.UNTAGGED:
            text = f'the port "{veth.name}" of {pod.name} has PVID {port_pvid or "none"}, the bridge has {pvid}'
            command = f"bridge vlan add dev {quote(veth.name)} vid {pvid} pvid untagged"
            yield _VLAN.finding(pod.item.network.name, text, ShellCommand(command), objects=(veth.name,))


def _enslaved(node: CheckedNode) -> Iterator[Finding]:
    pods = list_pods(node)
    gates = {pod.gate.name: pod.gate for pod in pods if pod.gate}
    for link in {**gates, **{uplink.name: uplink for uplink in node.used_uplinks}}.values():
        master = node.link_of(link.master) if link.master else None
        if master is not None and master.kind == "bridge":
            text = f'it is a port of the bridge "{master.name}"'
            yield _ENSLAVED.finding(
                link.name, text, ShellCommand(f"ip link set {quote(link.name)} nomaster"), objects=(link.name,)
            )


CHECKS = (
    Check(
        _GROUP,
        "ports",
        "the pods' ports forward",
        _ports,
        (_STP, _BLOCKED, _ISOLATED, _LOST_FLAG, _SETTINGS, _VLAN),
    ),
    Check(_GROUP, "enslaved", "no bridge or uplink is a port of another bridge", _enslaved, (_ENSLAVED,)),
)
