"""Decides whether the policies of a cluster allow a connection; tests compare the packet filter with it. Pure.

It follows the text of the Kubernetes API, without index and cache. A connection is allowed if both ends allow it: the
pod that opens it as egress, and the pod that accepts it as ingress.

1. A policy isolates the pods of its namespace that its podSelector selects, in the directions of its policyTypes.
2. If no policy isolates a pod in a direction, all its connections in this direction are allowed.
3. An isolated pod has the connections that at least one rule of any of these policies allows.
4. Always allowed: connections of a pod with itself and with its node, and replies, which belong to a connection.
5. Selectors select neither pods on the host's network, which have their node's addresses, nor finished pods.
6. An ipBlock matches the addresses of pods, too (the API leaves this open).

Source: networking.k8s.io/v1 NetworkPolicy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from agent.policy.objects import EGRESS, INGRESS, ClusterPod, IpBlock, Namespace, Peer, PodPeer, Policy, PortRange, Rule
from agent.policy.selector import Selector
from cni.address import Address, format_ip

EVERY_POD = PodPeer("", Selector(), Selector())  # also the peer of rules without peers
_LISTED_MAX = 3


class PodConnection(NamedTuple):
    """A connection: `protocol` in lower case; `port` is the destination's, 0 for ICMP."""

    source: Address
    destination: Address
    protocol: str
    port: int = 0

    def __str__(self) -> str:
        return f"{self.protocol} {self.port}" if self.port else self.protocol


class ClusterState(NamedTuple):
    """The facts that a decision depends on: pods by address, policies, namespaces and nodes' addresses by name."""

    pods: Mapping[Address, ClusterPod]
    namespaces: Mapping[str, Namespace]
    policies: Collection[Policy]
    nodes: Mapping[str, Collection[Address]] = {}


class Decision(NamedTuple):
    """The answer whether a connection is allowed in one direction, with the reason.

    `policies` isolate the pod; it is not isolated without any. Rule number `rule` (from 0) of `policy` allows the
    connection. `exemption` says why policies do not apply. `pod` and `peer` are names for `describe`.
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
            if self.pod:
                return f"no policy isolates {self.pod} ({self.direction})"
            address = self.connection.source if self.direction == EGRESS else self.connection.destination
            return f"{format_ip(address)} is not the address of a pod that policies can select ({self.direction})"
        if self.policy is not None:
            where = f"{self.direction}, rule {self.rule + 1}"
            return f"policy {self.policy.name} of namespace {self.policy.namespace} allows it ({where})"
        names = [policy.name for policy in self.policies]
        more = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
        listed = ", ".join(names[:_LISTED_MAX]) + more
        subject = f"policy {listed}" if len(names) == 1 else f"policies {listed}"
        verb = "isolates" if len(names) == 1 else "isolate"
        preposition = "from" if self.direction == INGRESS else "to"
        return (
            f"{subject} of namespace {self.policies[0].namespace} {verb} it ({self.direction}): "
            f"no policy allows {self.connection} {preposition} {self.peer}"
        )


def decide_direction(cluster: ClusterState, connection: PodConnection, direction: str) -> Decision:
    """Returns whether one end allows a connection: for EGRESS the source, for INGRESS the destination."""
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
    """Returns whether a peer selects a pod."""
    is_selected = selects_namespace(peer, pod.namespace, namespaces)
    return is_selected and peer.pods.matches(pod.labels) and pod.can_have_policies


def selects_namespace(peer: PodPeer, name: str, namespaces: Mapping[str, Namespace]) -> bool:
    """Returns whether a peer selects a namespace; if its object is unknown, only the empty selector selects it."""
    if peer.namespaces is None:
        return peer.namespace == name
    namespace = namespaces.get(name)
    return peer.namespaces.matches(namespace.labels) if namespace else peer.namespaces == Selector()


def _rule_allows(cluster: ClusterState, rule: Rule, connection: PodConnection, direction: str) -> bool:
    """Returns whether the peers and the ports of a rule match a connection."""
    address = connection.source if direction == INGRESS else connection.destination
    destination = cluster.pods.get(connection.destination)
    matches_peer = rule.peers is None or any(_peer_matches(cluster, peer, address) for peer in rule.peers)
    if not matches_peer or rule.ports is None:
        return matches_peer
    # The containers of the destination define its named ports. An egress rule uses them only if one of its selectors
    # selects the pod: an ipBlock selects addresses, which have no containers.
    selectors = [peer for peer in rule.peers or (EVERY_POD,) if isinstance(peer, PodPeer)]
    has_named_ports = direction == INGRESS or any(_peer_matches(cluster, peer, address) for peer in selectors)
    container_pod = destination if has_named_ports else None
    return any(_port_matches(port, connection, container_pod) for port in rule.ports)


def _peer_matches(cluster: ClusterState, peer: Peer, address: Address) -> bool:
    if isinstance(peer, IpBlock):
        return address in peer.network and not any(address in network for network in peer.excepts)
    pod = cluster.pods.get(address)
    return pod is not None and selects(peer, pod, cluster.namespaces)


def _port_matches(port: PortRange, connection: PodConnection, destination: ClusterPod | None) -> bool:
    """Returns whether a range contains a connection's port, or `destination` has a port of this name and number."""
    if port.protocol != connection.protocol:
        return False
    if not port.name:
        return port.first <= connection.port <= port.last
    named_port = (port.name, port.protocol, connection.port)
    return destination is not None and named_port in destination.ports


def _describe_peer(cluster: ClusterState, pod: ClusterPod, address: Address) -> str:
    peer = cluster.pods.get(address)
    if peer is None:
        return format_ip(address)
    return peer.name if peer.namespace == pod.namespace else f"{peer.name} of namespace {peer.namespace}"
