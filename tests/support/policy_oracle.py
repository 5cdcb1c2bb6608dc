"""NetworkPolicy as the Kubernetes API describes it: whether the documents of a cluster allow a connection.

The agent's evaluator is compared with it. One rule: each function is a sentence of the API, read from the JSON
documents; it shares no code and no values with the agent, and prefers the obvious form to the fast one.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple

Document = dict[str, Any]


class Connection(NamedTuple):
    """A connection's first packet: `protocol` is tcp, udp, sctp or icmp; icmp has port 0."""

    source: str
    destination: str
    protocol: str
    port: int


def is_allowed(documents: Sequence[Document], connection: Connection) -> bool:
    """Returns whether a connection is allowed at both ends.

    "Both the egress policy on the source pod and the ingress policy on the destination pod need to allow the
    connection." "A Pod cannot block access to itself."
    """
    source = pod_at(documents, connection.source)
    destination = pod_at(documents, connection.destination)
    if source is not None and source is destination:
        return True
    return (source is None or _may(documents, source, "egress", connection)) and (
        destination is None or _may(documents, destination, "ingress", connection)
    )


def of_kind(documents: Sequence[Document], kind: str) -> list[Document]:
    """Returns the documents of one kind."""
    return [document for document in documents if document["kind"] == kind]


def pod_at(documents: Sequence[Document], address: str) -> Document | None:
    """Returns the pod that has an address.

    "Pods in phase Succeeded or Failed keep status.podIP while the address is allocated to another pod: they are no
    subject and no peer." "hostNetwork pods are their node." A terminating pod is a pod as any other, until the kubelet
    gives its address to the next one: of several pods with an address it belongs to the youngest.
    """
    holders = [
        pod
        for pod in of_kind(documents, "Pod")
        if pod["status"].get("phase") not in ("Succeeded", "Failed")
        and not pod["spec"].get("hostNetwork")
        and _has_address(pod, address)
    ]
    return max(holders, key=_age, default=None)


def _age(pod: Document) -> tuple[str, str]:
    metadata = pod["metadata"]
    return "" if metadata.get("deletionTimestamp") else metadata.get("creationTimestamp", ""), metadata["uid"]


def _has_address(pod: Document, address: str) -> bool:
    """Returns whether an address is one of a pod's: "podIPs holds the IP addresses allocated to the pod"."""
    texts = [entry["ip"] for entry in pod["status"].get("podIPs") or []] + [pod["status"].get("podIP")]
    return any(text and _is_same(text, address) for text in texts)


@cache
def _is_same(one: str, other: str) -> bool:
    return ip_address(one) == ip_address(other)


@cache
def _is_in(address: str, network: str) -> bool:
    return ip_address(address) in ip_network(network, strict=False)


def _may(documents: Sequence[Document], pod: Document, direction: str, connection: Connection) -> bool:
    """Returns whether the policies let a pod make ("egress") or accept ("ingress") a connection.

    "Traffic to and from the node where a Pod is running is always allowed." "By default, a pod is non-isolated."
    "Network policies do not conflict; they are additive": one rule of one policy is enough.
    """
    other = connection.destination if direction == "egress" else connection.source
    if _is_node_of(documents, pod, other):
        return True
    policies = [policy for policy in of_kind(documents, "NetworkPolicy") if _isolates(policy, pod, direction)]
    rules = [(policy, rule) for policy in policies for rule in policy["spec"].get(direction) or []]
    return not policies or any(_rule_allows(documents, *each, direction, connection) for each in rules)


def _is_node_of(documents: Sequence[Document], pod: Document, address: str) -> bool:
    """Returns whether an address is one of the node on which a pod runs."""
    for node in of_kind(documents, "Node"):
        if node["metadata"]["name"] == pod["spec"].get("nodeName"):
            texts = [each["address"] for each in node["status"]["addresses"] if each["type"].endswith("IP")]
            return any(_is_same(text, address) for text in texts)
    return False


def _isolates(policy: Document, pod: Document, direction: str) -> bool:
    """Returns whether a policy isolates a pod in a direction.

    "A pod is isolated for egress if there is any NetworkPolicy that both selects the pod and has Egress in its
    policyTypes." "podSelector selects pods of the policy's namespace; if it is not specified, it is empty."
    "If no policyTypes are specified, Ingress will always be set and Egress will be set if there are any egress rules."
    """
    spec, namespace = policy["spec"], policy["metadata"]["namespace"]
    if namespace != pod["metadata"]["namespace"] or not _selects(spec.get("podSelector") or {}, pod):
        return False
    default = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    return direction.capitalize() in (spec.get("policyTypes") or default)


def _rule_allows(
    documents: Sequence[Document], policy: Document, rule: Document, direction: str, connection: Connection
) -> bool:
    """Returns whether a rule allows a connection.

    "The traffic must match both ports and from." "Items in this list are combined using a logical OR. If this field is
    empty or missing, this rule matches all sources", and "all ports": the other protocols, ICMP included.
    """
    other = connection.source if direction == "ingress" else connection.destination
    peers = rule.get("from" if direction == "ingress" else "to") or [{}]
    peers = [peer for peer in peers if not peer or _is_peer(documents, policy, peer, other)]
    ports = rule.get("ports")
    if not ports:
        return bool(peers)
    pairs = [(peer, port) for peer in peers for port in ports]
    if direction == "egress":  # an address has no names of ports
        pairs = [(peer, port) for peer, port in pairs if not ("ipBlock" in peer and isinstance(port.get("port"), str))]
    return any(_port_matches(documents, port, connection) for _, port in pairs)


def _is_peer(documents: Sequence[Document], policy: Document, peer: Document, address: str) -> bool:
    """Returns whether an address is one that an element of `from` or `to` describes.

    "podSelector alone selects the pods in the policy's own namespace"; "namespaceSelector alone selects all pods in
    the namespaces"; both "select the pods matching podSelector in the namespaces selected by namespaceSelector".
    "If ipBlock is set then neither of the other fields can be." It matches pods' addresses too.
    """
    if "ipBlock" in peer:
        return _is_in_block(peer["ipBlock"], address)
    pod = pod_at(documents, address)
    if pod is None or not _selects(peer.get("podSelector") or {}, pod):
        return False
    name = pod["metadata"]["namespace"]
    if peer.get("namespaceSelector") is None:
        return bool(name == policy["metadata"]["namespace"])
    if not any(peer["namespaceSelector"].values()):  # also if the namespace's object is not known
        return True
    namespaces = of_kind(documents, "Namespace")
    return any(each["metadata"]["name"] == name and _selects(peer["namespaceSelector"], each) for each in namespaces)


def _is_in_block(block: Document, address: str) -> bool:
    """Returns whether a block contains an address: "except describes CIDRs that should not be included"."""
    return _is_in(address, block["cidr"]) and not any(_is_in(address, each) for each in block.get("except") or [])


def _selects(selector: Document, document: Document) -> bool:
    """Returns whether a label selector selects a document.

    "matchLabels and matchExpressions are ANDed. An empty label selector matches all objects."
    """
    labels = document["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()) and all(
        _is_met(expression, labels) for expression in selector.get("matchExpressions") or []
    )


def _is_met(expression: Document, labels: dict[str, str]) -> bool:
    """Returns whether labels meet an expression: NotIn also selects "resources with no labels with the key"."""
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    raise ValueError(expression["operator"])


def _port_matches(documents: Sequence[Document], port: Document, connection: Connection) -> bool:
    """Returns whether an element of `ports` matches a connection's protocol and destination port.

    "protocol: if not specified, this field defaults to TCP." "port: numerical or named port on a pod. If this field is
    not provided, this matches all port names and numbers." "The range of ports from port to endPort, inclusive."
    """
    protocol, number = (port.get("protocol") or "TCP"), port.get("port")
    if protocol.lower() != connection.protocol:
        return False
    if number is None:
        return True
    if isinstance(number, str):
        pod = pod_at(documents, connection.destination)
        return pod is not None and connection.port in _numbers(pod, number, protocol)
    return bool(number <= connection.port <= (port.get("endPort") or number))


def _numbers(pod: Document, name: str, protocol: str) -> Iterator[int]:
    """Yields the numbers of a pod's ports with a name and a protocol: of containers and of sidecar init containers."""
    sidecars = [each for each in pod["spec"].get("initContainers") or [] if each.get("restartPolicy") == "Always"]
    for container in [*pod["spec"]["containers"], *sidecars]:
        for port in container.get("ports") or []:
            if port.get("name") == name and (port.get("protocol") or "TCP") == protocol:
                yield port["containerPort"]
