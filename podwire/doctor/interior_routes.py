"""Checks the routes inside a running pod against those that ADD's result has.

A route of the result is compared where it decides: at an address that no narrower route of the result, and no subnet of
the pod's own addresses, contains. A route of the kernel or of the result is never deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from cni.address import Address, Cidr, Network
from kernel import sysctl
from kernel.fib import BY_ADVERTISEMENT, BY_KERNEL, LOCAL, UNICAST, FibRoute, packet_to
from kernel.link import Link
from kernel.netfilter.packet import Packet
from podwire.doctor import interior_faults as faults
from podwire.doctor import route_fixes
from podwire.doctor.finding import Finding
from podwire.doctor.interior_pod import InspectedPod
from podwire.doctor.pods import remote_addresses
from podwire.doctor.shell_command import ShellCommand, unless_intended
from podwire.predictions.routing import Choice


def list_findings(one: InspectedPod, link: Link) -> Iterator[Finding]:
    """Yields the faults of a pod's routes."""
    advertised = list(_advertised(one, link))
    yield from advertised
    for destination, gateway in one.expected_routes():
        if advertised and destination.version == 6:
            continue
        source = _source(one, destination.version)
        target = _target(one, destination)
        if source is not None and gateway is not None and target is not None:
            yield from _route(one, link, packet_to(target, source), gateway, destination)
    for other in _peers(one):
        choice = one.interior.fib.look_up(packet_to(other, _source(one, other.version)))
        if choice.kind not in (UNICAST, LOCAL, ""):
            yield _refusal(one, choice, f"packets to {other}", other.version)
            return


def _advertised(one: InspectedPod, link: Link) -> Iterator[Finding]:
    """Yields the IPv6 default routes that a pod learned from another router than the host, its gateway."""
    gateways = [each for each in one.pod.gateways if each.version == 6]
    if not (gateways and one.pod.item.routed):
        return
    for route in one.interior.fib.routes:
        is_learned = route.protocol == BY_ADVERTISEMENT and route.ifindex == link.index
        if is_learned and not route.destination.prefixlen and not (route.gateway and one.node.has(route.gateway)):
            words = route.describe(one.interior.names)
            text = f"it learned {words} from another pod's router advertisement; ADD set {gateways[0]}"
            off = sysctl.command(f"ipv6/conf/{link.name}/accept_ra", "0")
            fix = one.inner(off, route_fixes.deletion(route, one.interior.names))
            yield one.finding(faults.GATEWAY, text, fix)


def _source(one: InspectedPod, version: int) -> Address | None:
    return next((address for address in one.pod.addresses if address.version == version), None)


def _target(one: InspectedPod, destination: Cidr) -> Address | None:
    """Returns an address whose packets a route of the result should carry, None if narrower ones carry all."""
    network = destination.network
    if not network.prefixlen:
        return remote_addresses(network.version)[0]
    routes = [each.network for each, _ in one.expected_routes() if each.network.prefixlen > network.prefixlen]
    narrower = [each for each in (*routes, *one.networks) if each.version == network.version]
    if any(each.prefixlen <= network.prefixlen and network.network_address in each for each in narrower):
        return None
    ends = [end for each in narrower for end in _adjacent_addresses(each)]
    candidates = [network.network_address, network.broadcast_address, *ends]
    return next((each for each in candidates if each in network and not any(each in other for other in narrower)), None)


def _adjacent_addresses(network: Network) -> Iterator[Address]:
    """Yields the addresses before and behind a network."""
    for number in (-1, network.num_addresses):
        try:
            yield network.network_address + number
        except ValueError:  # there is none
            continue


def _peers(one: InspectedPod) -> list[Address]:
    """Returns the gateway and another pod of the network."""
    pod = one.pod
    others = (each for each, owner in one.owners.items() if owner.item is pod.item and each not in pod.addresses)
    return [*pod.gateways[:1], *islice(others, 1)]


def _route(one: InspectedPod, link: Link, packet: Packet, gateway: Address, destination: Cidr) -> Iterator[Finding]:
    choice = one.interior.fib.look_up(packet)
    target = packet.destination
    if choice.kind == "":
        yield one.finding(faults.ROUTE, f"it has no route to {destination.network}", one.restore(link))
    elif choice.kind != UNICAST:
        yield _refusal(one, choice, f"packets to {target}", target.version)
    elif choice.gateway != gateway or choice.ifindex != link.index:
        names = one.interior.names
        used = names.get(choice.ifindex, str(choice.ifindex))
        if used != one.ifname and not _is_only_attachment(one):
            return  # another attachment of the pod may be its way out
        hop = choice.gateway or f"no gateway (dev {used})"
        route = choice.route.describe(names) if choice.route else ""
        text = f"packets to {target} go to {hop} through {used}, and not to {gateway}: {route}"
        yield one.finding(faults.GATEWAY, text, _reroute(one, link, choice.route))


def _is_only_attachment(one: InspectedPod) -> bool:
    netns = one.pod.attachment.netns
    return len([each for each in one.node.running if each.netns == netns and not each.is_confined]) == 1


def _reroute(one: InspectedPod, link: Link, route: FibRoute | None) -> ShellCommand:
    """Returns the commands that delete the route in use, unless it is the kernel's or ADD's, and restore ADD's."""
    restore = one.restore(link)
    expected = [each.network for each, _ in one.expected_routes()]
    if route is None or route.protocol == BY_KERNEL or (route.destination in expected and not route.metric):
        return restore  # which replaces a route to the same destination
    return ShellCommand(f"{one.inner(route_fixes.deletion(route, one.interior.names))} && {restore}")


def _refusal(one: InspectedPod, choice: Choice, which: str, version: int) -> Finding:
    names = one.interior.names
    if choice.route is not None:
        text = f'its route "{choice.route.describe(names)}" refuses {which}'
        command = route_fixes.deletion(choice.route, names)
    else:
        words = choice.rule.words if choice.rule else ""
        text = f'its policy rule "{words}" refuses {which}'
        command = f"ip {route_fixes.family(version)}rule del {words}"
    return one.finding(faults.REFUSED, text, unless_intended(one.inner(command)))
