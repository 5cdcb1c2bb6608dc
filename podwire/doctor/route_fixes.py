"""The commands that give the pods' packets their route again.

A command is printed only if the prediction of the kernel's choice says that it has effect: so a route that the rules
never look up is not added. An entry of another program is deleted only if it is about the pods; for any other, a rule
that looks up table main for the pods comes before it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_network
from itertools import combinations
from shlex import quote
from typing import NamedTuple

from cni.address import Address, Network
from kernel.fib import BY_KERNEL, TABLE_LOCAL, TO_TABLE, UNICAST, FibRoute, FibRule
from kernel.netfilter.packet import Packet
from kernel.route import TABLE_MAIN
from podwire.doctor.node import CheckedNode
from podwire.doctor.pods import VethPod
from podwire.doctor.shell_command import ShellCommand
from podwire.predictions.routing import Choice, Fib, without_source

_BY_HAND = "find the program or script that added it, or it returns"
_MAIN_PRIORITY = 32766


class _Step(NamedTuple):
    """A command, what it makes of rules and routes, and advice."""

    command: str
    apply: Callable[[Fib], Fib]
    advice: str = ""


def toward_pod(node: CheckedNode, pod: VethPod, packet: Packet, choice: Choice) -> tuple[str, str]:
    """Returns the command that makes the host send a packet to a pod, and advice; "" if no command would help."""
    steps = list(_steps_toward(node, pod, packet, choice))
    gate = pod.gate.index if pod.gate else 0
    return _first(steps, node.fib, packet, lambda one: one.kind == UNICAST and one.ifindex == gate)


def from_pod(node: CheckedNode, pod: VethPod, packet: Packet, choice: Choice) -> tuple[str, str]:
    """Returns the command that lets a pod's packet leave by an interface that is not the pods', and advice.

    If the host itself has no route to the destination, it is enough that no entry refuses the packet.
    """
    steps = list(_steps_from(node, pod, packet, choice))
    ours = node.pod_interfaces | {pod.gate.name if pod.gate else ""}
    of_host = node.fib.look_up(without_source(packet)).kind

    def is_out(one: Choice) -> bool:
        link = node.link_of(one.ifindex)
        is_elsewhere = one.kind == UNICAST and link is not None and link.name not in ours
        return is_elsewhere or one.kind == of_host == ""

    return _first(steps, node.fib, packet, is_out)


def deletion(route: FibRoute, names: Mapping[int, str]) -> str:
    """Returns the command that deletes a route."""
    return f"ip {family(route.destination.version)}route del {shlex.join(route.describe(names).split())}"


def family(version: int) -> str:
    """Returns the option of `ip` for an IP version."""
    return "-6 " if version == 6 else ""


def _first(steps: list[_Step], fib: Fib, packet: Packet, works: Callable[[Choice], bool]) -> tuple[str, str]:
    """Returns the first step, or the first two steps together, that the prediction says to work."""
    for chosen in [*((one,) for one in steps), *combinations(steps, 2)]:
        changed = fib
        for step in chosen:
            changed = step.apply(changed)
        if works(changed.look_up(packet)):
            return ShellCommand(" && ".join(step.command for step in chosen)), next((one.advice for one in chosen), "")
    return "", ""


def _steps_toward(node: CheckedNode, pod: VethPod, packet: Packet, choice: Choice) -> Iterator[_Step]:
    address = packet.destination
    thrown = [] if choice.route else node.fib.list_thrown(packet)
    for route in [choice.route] if choice.route else thrown:
        if route.protocol == BY_KERNEL:
            yield from _delete_address(node, route)
        elif _is_narrow(pod, route.destination.prefixlen, address):
            yield _delete_route(node, route)
    rule = choice.rule
    if rule is not None and rule.table not in (TABLE_MAIN, TABLE_LOCAL) and _is_about_pods(pod, rule):
        yield _delete_rule(rule)
    yield from _restore(pod, address)
    yield from _missing_main(node, address.version)
    if rule is not None and rule.table not in (TABLE_MAIN, TABLE_LOCAL):
        yield from _exception(pod, rule, address.version, ("to",))


def _steps_from(node: CheckedNode, pod: VethPod, packet: Packet, choice: Choice) -> Iterator[_Step]:
    version = packet.destination.version
    route, rule = choice.route, choice.rule
    if route is not None and (route.kind != UNICAST or (rule and rule.table == TABLE_MAIN)):
        yield _delete_route(node, route)
    if rule is not None and rule.table != TABLE_MAIN:
        if _is_about_pods(pod, rule):
            yield _delete_rule(rule)
        yield from _exception(pod, rule, version, ("from", "to"))
    yield from _missing_main(node, version)


def _delete_route(node: CheckedNode, route: FibRoute) -> _Step:
    return _Step(deletion(route, node.names), lambda fib: fib.without_route(route))


def _delete_address(node: CheckedNode, route: FibRoute) -> Iterator[_Step]:
    """Yields the deletion of the address whose route the kernel has created, if the address is on lo."""
    for index, assigned in node.addresses.items():
        link = node.link_of(index)
        for one in assigned:
            if link is not None and link.name == "lo" and one.address.network == route.destination:
                command = f"ip address del {one.address} dev lo"
                advice = f"{one.address} makes the host accept every packet to {route.destination}"
                yield _Step(command, lambda fib: fib.without_route(route), advice)


def _delete_rule(rule: FibRule) -> _Step:
    command = f"ip {family(rule.version)}rule del {rule.words}"
    return _Step(command, lambda fib: fib.without_rule(rule), _BY_HAND)


def _restore(pod: VethPod, address: Address) -> Iterator[_Step]:
    """Yields the command that adds the route to the pods that an address of the bridge, or ptp, had created."""
    network, command = _connected(pod, address)
    gate = pod.gate
    if command and gate is not None:
        route = FibRoute(UNICAST, network, TABLE_MAIN, 0, ((gate.index, None),), BY_KERNEL)
        yield _Step(command, lambda fib: fib.with_route(route))


def _connected(pod: VethPod, address: Address) -> tuple[Network, str]:
    network = next(ip.address.network for ip in pod.attachment.typed_result.ips if ip.address.ip == address)
    if pod.gate is None:
        return network, ""
    command = f"ip {family(address.version)}route replace"
    if not pod.item.bridge:
        return ip_network(address), f"{command} {address} dev {quote(pod.gate.name)}"
    gateway = next((one for one in pod.gateways if one.version == address.version), None)
    source = f" proto kernel scope link src {gateway}" if gateway and address.version == 4 else ""
    return network, f"{command} {network} dev {quote(pod.gate.name)}{source}"


def _missing_main(node: CheckedNode, version: int) -> Iterator[_Step]:
    """Yields the rule that looks up table main, if no rule does."""
    rules = [rule for rule in node.fib.rules if rule.version == version and rule.action == TO_TABLE]
    if not any(rule.table == TABLE_MAIN for rule in rules):
        rule = FibRule(version, _MAIN_PRIORITY, TO_TABLE, TABLE_MAIN)
        command = f"ip {family(version)}rule add priority {_MAIN_PRIORITY} lookup main"
        yield _Step(command, lambda fib: fib.with_rule(rule), "no policy rule looks up table main")


def _exception(pod: VethPod, rule: FibRule, version: int, words: tuple[str, ...]) -> Iterator[_Step]:
    """Yields rules before `rule` that look up table main for the pods."""
    subnets = [subnet for subnet in _subnets(pod) if subnet.version == version]
    priority = max(rule.priority - 1, 0)
    rules = [
        FibRule(
            version, priority, TO_TABLE, TABLE_MAIN,
            source=subnet if word == "from" else None, destination=subnet if word == "to" else None,
        )
        for subnet in subnets
        for word in words
    ]  # fmt: skip
    if not rules:
        return

    def apply(fib: Fib) -> Fib:
        for one in rules:
            fib = fib.with_rule(one)
        return fib

    commands = [
        f"ip {family(version)}rule add priority {priority} {word} {subnet} lookup main"
        for subnet in subnets
        for word in words
    ]
    advice = f'the rule "{rule.words}" is not only about the pods: this adds an exception for them'
    yield _Step(" && ".join(commands), apply, advice)


def _is_about_pods(pod: VethPod, rule: FibRule) -> bool:
    """Returns whether a policy rule selects packets by the pods' bridge, interface or addresses."""
    if pod.gate is not None and rule.iif == pod.gate.name:
        return True
    return any(one is not None and _is_of_pods(one, pod) for one in (rule.source, rule.destination))


def _is_of_pods(network: Network, pod: VethPod) -> bool:
    """Returns whether a network is the pods' subnet, a part of it, or an address of a pod."""
    return any(network.overlaps(one) and network.prefixlen >= one.prefixlen for one in _subnets(pod))


def _subnets(pod: VethPod) -> list[Network]:
    """Returns the subnets of the network's ranges; without ranges, those of the addresses in the pod's result."""
    results = [ip.address.network for ip in pod.attachment.typed_result.ips]
    return list(dict.fromkeys([*pod.item.subnets, *(one for one in results if not pod.item.subnets)]))


def _is_narrow(pod: VethPod, length: int, address: Address) -> bool:
    """Returns whether a route is at most as wide as the pods' subnet: a wider one only shows that theirs is missing."""
    widths = [subnet.prefixlen for subnet in _subnets(pod) if address in subnet]
    return length >= min(widths, default=address.max_prefixlen)
