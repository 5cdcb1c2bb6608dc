"""What the policies of a cluster say of a connection: the reference that all else is compared with. Pure.

It is to be read beside the Kubernetes API's text, and has no index and no cache. A connection is allowed if it is
allowed at both ends: as egress of the pod that opens it, and as ingress of the pod that accepts it.

1. A policy isolates the pods of its namespace that its podSelector selects, in the directions of its policyTypes.
2. A pod that no policy isolates in a direction is open in this direction.
3. An isolated pod has the connections that at least one rule of at least one of these policies allows: policies add up.
4. Never blocked: a pod with itself, a pod with its node, and replies, which belong to a connection.
5. Pods on the host's network are their node, and finished pods have no address: selectors select neither.

The API leaves open whether pods' addresses match an ipBlock: they do. Source: networking.k8s.io/v1 NetworkPolicy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from agent.policy.objects import EGRESS, INGRESS, ClusterPod, IpBlock, Namespace, Peer, PodPeer, Policy, PortRange, Rule
from agent.policy.selector import Selector
from cni.address import Address, format_ip

EVERY_POD = PodPeer("", Selector(), Selector())  # also the peer of rules without peers
_NAMED_POLICIES = 3


class PodConnection(NamedTuple):
    """A connection, or the first packet of one: `protocol` in lower case; `port` is the destination's, 0 for ICMP."""

    source: Address
    destination: Address
    protocol: str
    port: int = 0

    def __str__(self) -> str:
        return f"{self.protocol} {self.port}" if self.port else self.protocol


class ClusterState(NamedTuple):
    """All that decides: pods by address, namespaces by name, policies, and the addresses of each node by its name."""

    pods: Mapping[Address, ClusterPod]
    namespaces: Mapping[str, Namespace]
    policies: Collection[Policy]
    nodes: Mapping[str, Collection[Address]] = {}


class Decision(NamedTuple):
    """The answer whether a connection is allowed, in the direction that decides, with the reason.

    `policies` are those that isolate the pod, none if it is not isolated. `policy` and `rule` (its number, from 0)
    allow the connection. `exemption` is the reason why policies do not count. `pod` and `peer` are for the sentence.
    """

    allowed: bool
    connection: PodConnection
    direction: str = ""
    pod: str = ""
    peer: str = ""
    policies: tuple[Policy, ...] = ()
    policy: Policy | None = None
    rule: int = -1
    exemption: str = ""

    def describe(self) -> str:
        """Returns the decision as a sentence."""
        if self.exemption:
            return self.exemption
        if not self.policies:
            return f"no policy isolates {self.pod or 'an end of it'} ({self.direction})"
        if self.policy is not None:
            where = f"{self.direction}, rule {self.rule + 1}"
            return f"policy {self.policy.name} of namespace {self.policy.namespace} allows it ({where})"
        names = [policy.name for policy in self.policies]
        more = f" and {len(names) - _NAMED_POLICIES} more" if len(names) > _NAMED_POLICIES else ""
        listed = ", ".join(names[:_NAMED_POLICIES]) + more
        subject = f"policy {listed}" if len(names) == 1 else f"policies {listed}"
        verb = "isolates" if len(names) == 1 else "isolate"
        way = "from" if self.direction == INGRESS else "to"
        return (
            f"{subject} of namespace {self.policies[0].namespace} {verb} it ({self.direction}): "
            f"no policy allows {self.connection} {way} {self.peer}"
        )


def decide(cluster: ClusterState, connection: PodConnection) -> Decision:
    """Returns whether both ends allow a connection: the decision of the end that has most to say, first the source."""
    ends = [decide_direction(cluster, connection, direction) for direction in (EGRESS, INGRESS)]
    return max(ends, key=lambda end: (not end.allowed, bool(end.policies), bool(end.exemption), bool(end.pod)))


def decide_direction(cluster: ClusterState, connection: PodConnection, direction: str) -> Decision:
    """Returns whether one end allows a connection: the source its egress, or the destination its ingress."""
    address, peer = connection.source, connection.destination
    if direction == INGRESS:
        address, peer = peer, address
    pod = cluster.pods.get(address)
    if pod is None:
        return Decision(True, connection, direction)
    if peer == address:
        return Decision(True, connection, direction, exemption="a pod always reaches itself")
    if peer in cluster.nodes.get(pod.node, ()):
        return Decision(True, connection, direction, exemption="a pod always reaches its node, and its node the pod")
    policies = tuple(policy for policy in cluster.policies if isolates(policy, pod, direction))
    decision = Decision(not policies, connection, direction, pod.name, _describe_peer(cluster, pod, peer), policies)
    for policy in policies:
        for number, rule in enumerate(policy.rules(direction) or ()):
            if _rule_allows(cluster, rule, connection, direction):
                return decision._replace(allowed=True, policy=policy, rule=number)
    return decision


def isolates(policy: Policy, pod: ClusterPod, direction: str) -> bool:
    """Returns whether a policy isolates a pod in a direction."""
    is_selected = policy.namespace == pod.namespace and policy.pods.matches(pod.labels)
    return is_selected and policy.rules(direction) is not None and pod.can_have_policies


def selects(peer: PodPeer, pod: ClusterPod, namespaces: Mapping[str, Namespace]) -> bool:
    """Returns whether a rule's selectors select a pod; a namespace that is not known is selected by no selector."""
    if peer.namespaces is None:
        is_selected = pod.namespace == peer.namespace
    else:
        namespace = namespaces.get(pod.namespace)
        is_selected = namespace is not None and peer.namespaces.matches(namespace.labels)
    return is_selected and peer.pods.matches(pod.labels) and pod.can_have_policies


def _rule_allows(cluster: ClusterState, rule: Rule, connection: PodConnection, direction: str) -> bool:
    """A rule allows what both its peers and its ports match; a rule without peers, or without ports, all of them."""
    address = connection.source if direction == INGRESS else connection.destination
    destination = cluster.pods.get(connection.destination)
    has_peer = rule.peers is None or any(_peer_matches(cluster, peer, address) for peer in rule.peers)
    if not has_peer or rule.ports is None:
        return has_peer
    # The name of a port is that of the destination pod. As egress it matches only a pod that the rule selects as a
    # pod: an ipBlock says nothing of containers.
    is_named = direction == INGRESS or _selects_pod(cluster, rule.peers or (EVERY_POD,), address)
    named = destination if is_named else None
    return any(_port_matches(port, connection, named) for port in rule.ports)


def _peer_matches(cluster: ClusterState, peer: Peer, address: Address) -> bool:
    if isinstance(peer, IpBlock):
        return address in peer.network and not any(address in network for network in peer.excepts)
    pod = cluster.pods.get(address)
    return pod is not None and selects(peer, pod, cluster.namespaces)


def _selects_pod(cluster: ClusterState, peers: tuple[Peer, ...], address: Address) -> bool:
    return any(isinstance(peer, PodPeer) and _peer_matches(cluster, peer, address) for peer in peers)


def _port_matches(port: PortRange, connection: PodConnection, destination: ClusterPod | None) -> bool:
    """A number or a range matches this protocol's ports; a name the ports that the destination's containers name so."""
    if port.protocol != connection.protocol:
        return False
    if not port.name:
        return port.first <= connection.port <= port.last
    needed = (port.name, port.protocol, connection.port)
    return destination is not None and needed in destination.ports


def _describe_peer(cluster: ClusterState, pod: ClusterPod, address: Address) -> str:
    peer = cluster.pods.get(address)
    if peer is None:
        return format_ip(address)
    return peer.name if peer.namespace == pod.namespace else f"{peer.name} of namespace {peer.namespace}"
