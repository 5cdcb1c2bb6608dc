"""Checks the queues, traffic filters and XDP programs on the pods' way: some lose or drop packets."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from kernel import traffic
from kernel.link import Link
from kernel.rtnl import Socket
from podwire.doctor.finding import Check, Fault, Finding, Severity
from podwire.doctor.node import Node
from podwire.doctor.pods import list_pods
from podwire.doctor.run import Run

_GROUP = "links"
_INGRESS, _EGRESS = 0xFFFFFFF2, 0xFFFFFFF3  # TC_H_MIN_INGRESS and _EGRESS of clsact
_LOSING = {"netem": "delays, loses or reorders packets", "plug": "holds packets back", "blackhole": "drops all packets"}

_QUEUE = Fault(
    "queue-loses-packets",
    Severity.WARNING,
    "the queue of an interface on the pods' way delays or loses packets on purpose (netem): mostly left from a test",
    "`tc qdisc del dev INTERFACE root` for an interface of podwire's; otherwise look for the program that set it",
)
_FILTER = Fault(
    "traffic-filter-drops",
    Severity.WARNING,
    "a filter of traffic control on the pods' way drops packets",
    "`tc filter show dev INTERFACE ingress` (or `egress`) shows it: change it in the program that created it",
)
_PROGRAM = Fault(
    "traffic-program",
    Severity.NOTE,
    "an eBPF program (XDP, or a filter of traffic control) sees the packets of a pod's interface or bridge; doctor "
    "does not know what it does",
    "`ip link set INTERFACE xdp off`, `tc filter del`, if no program of this node needs it",
)


def _check(node: Node) -> Iterator[Finding]:
    pods = list_pods(node)
    gates = [pod.gate for pod in pods if pod.gate]
    veths = [pod.host_veth for pod in pods if pod.host_veth]
    pod_links = {link.index: link for link in [*gates, *veths]}
    every = {**pod_links, **{link.index: link for link in node.used_uplinks}}
    if not pod_links:
        return
    with Socket() as socket:
        kinds = traffic.list_kinds(socket)
        for index, link in every.items():
            yield from _queues(link, kinds.get(index, []), is_podwires=index in pod_links)
            if index in pod_links and ("clsact" in kinds.get(index, []) or "ingress" in kinds.get(index, [])):
                yield from _filters(socket, link, kinds[index])
    for index, link in pod_links.items():
        if index in node.link_settings.with_xdp:
            text = "an XDP program is attached to it"
            yield _PROGRAM.finding(link.name, text, f"if no program needs it: ip link set {quote(link.name)} xdp off")


def _queues(link: Link, kinds: list[str], *, is_podwires: bool) -> Iterator[Finding]:
    for kind, effect in _LOSING.items():
        if kind in kinds:
            command = Run(f"tc qdisc del dev {quote(link.name)} root")
            advice = f"change it in the program that created it; to list it: tc qdisc show dev {quote(link.name)}"
            yield _QUEUE.finding(link.name, f"its queue {kind} {effect}", command if is_podwires else advice)


def _filters(socket: Socket, link: Link, kinds: list[str]) -> Iterator[Finding]:
    directions = {"ingress": _INGRESS if "clsact" in kinds else traffic.RECEIVED}
    if "clsact" in kinds:
        directions["egress"] = _EGRESS
    for direction, parent in directions.items():
        for kind in dict.fromkeys(traffic.list_dropping_filters(socket, link.index, parent)):
            if kind == "bpf":
                text = f"a program filters what it {'receives' if direction == 'ingress' else 'sends'}"
                yield _PROGRAM.finding(link.name, text, f"look at: tc filter show dev {quote(link.name)} {direction}")
            else:
                text = f"a filter ({kind}) drops packets that it {'receives' if direction == 'ingress' else 'sends'}"
                command = f"tc filter show dev {quote(link.name)} {direction}"
                yield _FILTER.finding(
                    link.name, text, f"change it in the program that created it; to list it: {command}"
                )


CHECKS = (Check(_GROUP, "traffic", "no queue or filter loses the pods' packets", _check, (_QUEUE, _FILTER, _PROGRAM)),)
