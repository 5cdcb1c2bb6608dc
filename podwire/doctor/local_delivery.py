"""Checks that the node takes the packets to its own addresses: the rule of table local, and a local route each."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from kernel.address import IFA_F_DADFAILED, IFA_F_TENTATIVE
from kernel.fib import LOCAL, TABLE_LOCAL
from podwire.doctor.finding import Check, Fault, Finding, Severity
from podwire.doctor.node import CheckedNode
from podwire.doctor.pods import list_pods, list_uplinks
from podwire.doctor.route_fixes import family
from podwire.doctor.shell_command import ShellCommand

_RULE = Fault(
    "local-rule-missing",
    Severity.PROBLEM,
    "no policy rule looks up table local: the node takes no packet to its own addresses, not even from pods",
)
_ROUTE = Fault(
    "local-route-missing",
    Severity.PROBLEM,
    "an address of a bridge of pods or of an uplink has no route in table local (flushed): the node does not answer "
    "there",
)


def _check(node: CheckedNode) -> Iterator[Finding]:
    pods = list_pods(node)
    links = {link.index: link for link in (*(pod.gate for pod in pods if pod.gate), *list_uplinks(node)) if link.is_up}
    if not pods:
        return
    local = {route.destination for route in node.fib.routes if route.kind == LOCAL}  # those of a VRF in its table
    for version in sorted({address.version for pod in pods for address in pod.addresses}):
        if not any(rule.version == version and rule.table == TABLE_LOCAL for rule in node.fib.rules):
            command = ShellCommand(f"ip {family(version)}rule add priority 0 from all lookup local")
            text = f"no IPv{version} policy rule looks up table local: the node takes no packet to its own addresses"
            yield _RULE.finding("host", text, command, objects=("table local",))
    for index, link in links.items():
        for one in node.addresses.get(index, ()):
            address = one.address.ip
            needs_route = not one.flags & (IFA_F_DADFAILED | IFA_F_TENTATIVE) and not address.is_link_local
            if needs_route and not any(address in network for network in local if network.version == address.version):
                options = f"dev {quote(link.name)} table local proto kernel scope host src {address}"
                options = options if address.version == 4 else f"dev {quote(link.name)} table local"
                text = f'the node does not take packets to {address}, which "{link.name}" has: no local route'
                command = ShellCommand(f"ip {family(address.version)}route add local {address} {options}")
                yield _ROUTE.finding(link.name, text, command)


CHECKS = (Check("routes", "local", "the node takes the packets to its own addresses", _check, (_RULE, _ROUTE)),)
