"""Checks what loses packets on the pods' way whichever their sender: queues, filters, eBPF programs, ARP, a bridge."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from podwire.doctor.finding import Check, Fault, Finding, Severity
from podwire.doctor.node import CheckedNode
from podwire.doctor.pods import VethPod, list_pods
from podwire.doctor.shell_command import ShellCommand
from podwire.facts import cgroups
from podwire.predictions import obstacles

_FAULTS = (
    Fault(
        obstacles.ARP_OFF,
        Severity.PROBLEM,
        "ARP is switched off on a pod's interface or on a bridge: pods and node do not learn each other's MAC address",
    ),
    Fault(
        obstacles.NO_ENTRY,
        Severity.PROBLEM,
        "the bridge's own MAC address is not in its forwarding database (`bridge fdb flush` deletes it): frames from "
        "the pods to the node are not delivered",
    ),
    Fault(
        obstacles.QUEUE,
        Severity.WARNING,
        "the queue of an interface on the pods' way delays or loses packets on purpose (netem), or passes less than "
        "1 Mbit/s, or no full packet: mostly left from a test",
    ),
    Fault(
        obstacles.CLASS,
        Severity.NOTE,
        "a class of traffic control (htb) of an interface on the pods' way passes less than 1 Mbit/s and has held "
        "packets back, or its queue loses packets; doctor does not know which packets. The class that packets enter by "
        "default is a warning",
    ),
    Fault(
        obstacles.FILTER,
        Severity.WARNING,
        "a filter of traffic control on the pods' way drops packets, or redirects them to another interface",
    ),
    Fault(
        obstacles.PROGRAM,
        Severity.NOTE,
        "an eBPF program (XDP, tcx, or a filter of traffic control) sees the packets of a pod's interface, bridge or "
        "uplink, or (netfilter, sk_lookup) those of the node; doctor does not know what it does",
    ),
)

_CGROUP = Fault(
    "cgroup-program",
    Severity.NOTE,
    "an eBPF program is attached to a cgroup of a pod's processes (IPAddressDeny= of systemd, a socket load balancer), "
    "and may refuse their packets or connections; doctor does not know what it does. Programs of the root cgroup, and "
    "those that the node's services have as well, are not reported",
)


def _check(node: CheckedNode) -> Iterator[Finding]:
    faults = {fault.name: fault for fault in _FAULTS}
    pods = list_pods(node)
    of_pods = {link.index: link for pod in pods for link in (pod.gate, pod.host_veth) if link}
    uplinks = {link.index: link for link in node.used_uplinks} if of_pods else {}
    for index, link in {**of_pods, **uplinks}.items():
        for one in obstacles.list_obstacles(node, link):
            advice = one.advice or f"change it in the program that created it; to list it: {one.look}"
            fix = ShellCommand(one.command) if one.command and index in of_pods else advice
            fault = faults[one.name]
            objects = (link.name,) if fault.severity is Severity.PROBLEM else ()
            yield fault.finding(link.name, one.text, fix, objects=objects)
    for one in obstacles.list_namespace_obstacles(node) if pods else ():
        yield faults[one.name].finding("node", one.text, f"look at: {one.look}")
    yield from _cgroups(pods)


def _cgroups(pods: list[VethPod]) -> Iterator[Finding]:
    """Yields the cgroups of pods that have programs, to which packets of `podwire test` do not belong."""
    named: dict[str, list[str]] = {}
    programs: dict[str, tuple[str, ...]] = {}
    for pod in pods:
        for path, kinds in cgroups.list_programs(pod.attachment.netns).items():
            programs[path] = kinds
            named.setdefault(path, []).append(pod.name)
    for path, kinds in programs.items():
        more = f" and {len(named[path]) - 1} more" if len(named[path]) > 1 else ""
        text = f"eBPF programs ({', '.join(kinds)}) can refuse packets or connections of the processes of "
        text += f"{named[path][0]}{more}, but not those of podwire test"
        yield _CGROUP.finding(path, text, f"look at: bpftool cgroup show {quote(path)}")


CHECKS = (
    Check("links", "traffic", "no queue, filter or program loses the pods' packets", _check, (*_FAULTS, _CGROUP)),
)
