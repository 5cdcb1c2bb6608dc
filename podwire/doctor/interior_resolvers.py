"""Checks the resolvers of a running pod as far as the node decides: whether a program can answer there."""

from __future__ import annotations

from collections.abc import Iterator

from cni.address import Address
from kernel.fib import LOCAL, UNICAST, packet_to
from kernel.netfilter.packet import LOCAL as LOCAL_ADDRESS
from kernel.netfilter.packet import UDP, Packet
from podwire.doctor import interior_faults as faults
from podwire.doctor.finding import Finding, Severity
from podwire.doctor.interior_pod import InspectedPod
from podwire.doctor.pods import remote_addresses
from podwire.facts import resolvers
from podwire.facts.network import NetworkFacts
from podwire.predictions.evaluation import OUTPUT, PREROUTING, traverse

_PORT = 53
_OTHER_FILE = "a copy of the host's resolv.conf names the host's own resolver: give the runtime another file (kubelet: "
_OTHER_FILE += "resolvConf: /run/systemd/resolve/resolv.conf), and create the pod again"

_SERVICE_FIX = "start the program that keeps the rules of services (kube-proxy), or create the service's pod again"
_CACHE_FIX = "start the cache again, or set the resolver to the address of the DNS service and create the pod again"


def list_findings(one: InspectedPod) -> Iterator[Finding]:
    """Yields the resolvers that cannot answer; a warning if the pod has another one."""
    known = resolvers.list_resolvers(one.pod.attachment.netns, of_node=False)
    if known is None:
        return
    if not known and not _listens(one.interior, None):
        yield one.finding(faults.RESOLVER, "its resolv.conf names no resolver", faults.RESOLVER_FIX, causes=False)
    problems = [(resolver, *problem) for resolver in known if (problem := _problem(one, resolver))]
    severity = Severity.PROBLEM if len(problems) == len(known) else Severity.WARNING
    for resolver, text, fix in problems:
        yield one.finding(faults.RESOLVER, f"its resolver {resolver} {text}", fix, causes=False, severity=severity)


def _problem(one: InspectedPod, resolver: Address) -> tuple[str, str] | None:
    """Returns why no program answers at a resolver's address, and what to do; None if nothing is known against it."""
    if resolver.is_loopback or resolver in one.pod.addresses:
        return None if _listens(one.interior, resolver) else ("is the pod itself, which has none", _OTHER_FILE)
    source = next((address for address in one.pod.addresses if address.version == resolver.version), None)
    choice = one.interior.fib.look_up(packet_to(resolver, source, protocol=UDP, port=_PORT))
    if choice.is_delivered and one.interior.names.get(choice.ifindex) != one.ifname:
        return None  # by another attachment
    if source is None or choice.kind not in (UNICAST, LOCAL):
        return f"cannot be reached: it has no IPv{resolver.version} route to it", _route_fix(one, resolver, source)
    gate = one.pod.gate.name if one.pod.gate else ""
    packet = Packet(resolver.version, source, resolver, UDP, None, _PORT, iif=gate)
    target = traverse(one.node.ruleset, packet, PREROUTING).packet.destination
    if target != resolver:  # a service's address
        is_gone = _is_no_pod(one, target) and not one.node.has(target)
        return (f"is a service that leads to {target}, which no pod has", _SERVICE_FIX) if is_gone else None
    if links := one.node.links_by_address.get(resolver):
        # kube-proxy's IPVS has the addresses of services on an interface of kind dummy.
        if _listens(one.node, resolver) or all(link.kind == "dummy" for link in links):
            return None
        return "is the node, where no program listens on UDP port 53", faults.RESOLVER_FIX
    if _is_of_cache(one, resolver, source):
        return "belongs to a cache on the host (NodeLocal DNSCache has rules for it); no interface has it", _CACHE_FIX
    if _is_no_pod(one, resolver):
        return "is no pod's address, although it is in the pods' subnet", faults.RESOLVER_FIX
    return None


def _route_fix(one: InspectedPod, resolver: Address, source: Address | None) -> str:
    """Returns the advice for a missing route: a route in IPAM, if the network has none and the pod can use it."""
    if source is None or any(resolver in destination.network for destination, _ in one.expected_routes()):
        return faults.RESOLVER_FIX
    route = f'{{"dst": "{resolver}/{resolver.max_prefixlen}"}}'
    return f'add {route} to "routes" of the network\'s "ipam", or {faults.RESOLVER_FIX}'


def _is_no_pod(one: InspectedPod, address: Address) -> bool:
    return any(address in subnet for subnet in one.pod.item.subnets) and address not in one.owners


def _is_of_cache(one: InspectedPod, resolver: Address, pod: Address) -> bool:
    """Returns whether rules exclude the host's answers from the resolver from connection tracking, but not from all."""
    other = remote_addresses(pod.version)[0]
    return _is_untracked(one, resolver, pod) and not _is_untracked(one, other, pod)


def _is_untracked(one: InspectedPod, resolver: Address, pod: Address) -> bool:
    answer = Packet(pod.version, resolver, pod, UDP, _PORT, None, source_type=LOCAL_ADDRESS)
    return any(event.action.kind == "untrack" for event in traverse(one.node.ruleset, answer, OUTPUT).events)


def _listens(facts: NetworkFacts, resolver: Address | None) -> bool:
    """Returns whether a program waits for queries at an address, None for any."""
    bound = (one.address for one in facts.list_listeners({UDP}) if one.port == _PORT)
    return any(resolver in (None, address) or address.is_unspecified for address in bound)
