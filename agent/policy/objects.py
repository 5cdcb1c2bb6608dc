"""Pods, namespaces and network policies as small values, parsed from the API's documents. Pure.

One rule: a document that no API server would accept raises ValueError, whose text names the object, the field and the
fault. The caller reports it and, for a policy, uses `deny_all_policy` instead.

A cluster may have 100,000 pods, so a value has only the fields that policies need, and equal strings and equal labels
share one Python object. The parameter `at` is the path of a field, for error texts.

Source: the Kubernetes API, core/v1 Pod and Namespace, networking.k8s.io/v1 NetworkPolicy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache, partial
from sys import intern
from typing import NamedTuple, TypeVar

from agent.api_object import Document, object_at, objects_at
from agent.policy.selector import Selector, parse_selector
from cni.address import Address, Network, parse_cidr, parse_ip

V = TypeVar("V")

INGRESS, EGRESS = "ingress", "egress"
TCP = "tcp"
LAST_PORT = 65535
_PROTOCOLS = {"TCP": TCP, "UDP": "udp", "SCTP": "sctp"}
_TYPES = ("Ingress", "Egress")
_FINISHED = ("Succeeded", "Failed")
# The annotation has the UID by which the runtime knows a static pod; the kubelet's object in the API has another UID.
_STATIC_UID = "kubernetes.io/config.mirror"
_LEADING_ZEROS = re.compile(r"\b0+(?=\d)")  # in IPv4 blocks: API servers before 1.35 read 010.0.0.0/8 as 10.0.0.0/8
_CACHE_SIZE = 1 << 14  # label mappings, and lists of ports: the pods of one Deployment share theirs


class NamedPort(NamedTuple):
    """A container's port with a name; the protocol in lower case."""

    name: str
    protocol: str
    number: int


class ClusterPod(NamedTuple):
    """A pod. If two pods have the same address, it belongs to the pod with the higher `precedence`.

    `can_have_policies` is False on the host's network, and for a finished pod: policies apply to neither.
    `precedence` is the time of creation in seconds, 0 while the pod is terminating. `ports` are the named ports of its
    containers and sidecars.
    """

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    addresses: tuple[Address, ...] = ()
    node: str = ""
    can_have_policies: bool = True
    ports: tuple[NamedPort, ...] = ()
    precedence: int = 0


class Namespace(NamedTuple):
    """A namespace with its labels; unlike pods and policies, it is in no `namespace`."""

    name: str
    labels: Mapping[str, str]
    namespace: str = ""


class PodPeer(NamedTuple):
    """Pods that `pods` selects: in the namespaces that `namespaces` selects, or in `namespace` if that is None."""

    namespace: str
    namespaces: Selector | None
    pods: Selector


class IpBlock(NamedTuple):
    """The addresses of a network, except those in `excepts`."""

    network: Network
    excepts: tuple[Network, ...] = ()


Peer = PodPeer | IpBlock


class PortRange(NamedTuple):
    """A range of ports of a protocol: from `first` to `last`, or, if `name` is set, container ports of this name."""

    protocol: str
    first: int = 0
    last: int = LAST_PORT
    name: str = ""


class Rule(NamedTuple):
    """Allows connections with one of the peers, to one of the ports.

    None means every peer, or every port of every protocol, including ICMP.
    """

    peers: tuple[Peer, ...] | None = None
    ports: tuple[PortRange, ...] | None = None


class Policy(NamedTuple):
    """A network policy. Rules of None: it isolates no pod in this direction; no rules: it allows nothing."""

    namespace: str
    name: str
    pods: Selector
    ingress: tuple[Rule, ...] | None
    egress: tuple[Rule, ...] | None

    def rules(self, direction: str) -> tuple[Rule, ...] | None:
        """Returns the rules of a direction."""
        return self.ingress if direction == INGRESS else self.egress


def names_of(document: Document) -> tuple[str, str]:
    """Returns namespace ("" if the object is in none) and name of an object; raises ValueError if it has no name."""
    metadata = object_at(document, "metadata")
    namespace, name = metadata.get("namespace") or "", metadata.get("name")
    if not (isinstance(namespace, str) and isinstance(name, str) and name):
        raise ValueError("an object has no name")
    return intern(namespace), name


def parse_pod(document: Document) -> ClusterPod:
    """Returns the pod of a core/v1 Pod object; raises ValueError."""
    metadata, spec, status = (object_at(document, key) for key in ("metadata", "spec", "status"))
    namespace, name = names_of(document)
    at = f"Pod {namespace}/{name}"
    uid, node = metadata.get("uid"), spec.get("nodeName") or ""
    if not isinstance(uid, str) or not isinstance(node, str):
        raise ValueError(f"{at}: metadata.uid or spec.nodeName is not a string")
    static_uid = object_at(metadata, "annotations").get(_STATIC_UID)
    return ClusterPod(
        namespace,
        name,
        static_uid if isinstance(static_uid, str) else uid,
        _labels(metadata, at),
        _pod_addresses(status, at),
        intern(node),
        spec.get("hostNetwork") is not True and status.get("phase") not in _FINISHED,
        _named_ports(spec),
        0 if metadata.get("deletionTimestamp") else _parse_time(metadata.get("creationTimestamp")),
    )


def parse_namespace(document: Document) -> Namespace:
    """Returns the namespace of a core/v1 Namespace object; raises ValueError."""
    _, name = names_of(document)
    return Namespace(intern(name), _labels(object_at(document, "metadata"), f"Namespace {name}"))


def parse_policy(document: Document) -> Policy:
    """Returns the policy of a NetworkPolicy object; raises ValueError.

    A missing list means the same as an empty one. Without `policyTypes`, the policy isolates ingress, and egress only
    if `spec.egress` has rules.
    """
    namespace, name = names_of(document)
    spec = object_at(document, "spec")
    try:
        types = _list(spec, "policyTypes", "spec") or _TYPES[: 2 if spec.get("egress") else 1]
        if not all(each in _TYPES for each in types):
            raise ValueError("spec.policyTypes has a value other than Ingress and Egress")
        pods = parse_selector(spec.get("podSelector") or {}, "spec.podSelector")
        ingress = _rules(spec, INGRESS, "from", namespace) if "Ingress" in types else None
        egress = _rules(spec, EGRESS, "to", namespace) if "Egress" in types else None
    except ValueError as error:
        raise ValueError(f"NetworkPolicy {namespace}/{name}: {error}") from None
    return Policy(namespace, name, pods, ingress, egress)


def deny_all_policy(document: Document) -> Policy:
    """Returns a policy that replaces an invalid one: it allows nothing in either direction.

    It selects the same pods, or all of the namespace if its podSelector is invalid. Raises ValueError without a name.
    """
    namespace, name = names_of(document)
    try:
        pods = parse_selector(object_at(document, "spec").get("podSelector") or {}, "spec.podSelector")
    except ValueError:
        pods = Selector()
    return Policy(namespace, name, pods, (), ())


def _rules(spec: Document, direction: str, peers_key: str, namespace: str) -> tuple[Rule, ...]:
    def parse(rule: Document, at: str) -> Rule:
        peers = _parse_list(rule, peers_key, at, partial(_peer, namespace))
        return Rule(peers or None, _parse_list(rule, "ports", at, _port_range) or None)

    return _parse_list(spec, direction, "spec", parse)


def _parse_list(document: Document, key: str, at: str, parse: Callable[[Document, str], V]) -> tuple[V, ...]:
    """Returns the parsed objects of a list; `parse` gets each object and its path."""
    places = [(item, f"{at}.{key}[{n}]") for n, item in enumerate(_list(document, key, at))]
    return tuple(parse(_object(item, place), place) for item, place in places)


def _peer(namespace: str, document: Document, at: str) -> Peer:
    pods, namespaces, block = (document.get(key) for key in ("podSelector", "namespaceSelector", "ipBlock"))
    if block is not None and (pods is not None or namespaces is not None):
        raise ValueError(f"{at} has an ipBlock and a selector")
    if block is not None:
        fields = _object(block, f"{at}.ipBlock")
        excepts = _list(fields, "except", f"{at}.ipBlock")
        return IpBlock(
            _network(fields.get("cidr"), f"{at}.ipBlock.cidr"),
            tuple(_network(text, f"{at}.ipBlock.except[{n}]") for n, text in enumerate(excepts)),
        )
    if pods is None and namespaces is None:
        raise ValueError(f"{at} has no selector and no ipBlock")
    return PodPeer(
        namespace if namespaces is None else "",  # policies of several namespaces share the set
        None if namespaces is None else parse_selector(namespaces, f"{at}.namespaceSelector"),
        Selector() if pods is None else parse_selector(pods, f"{at}.podSelector"),
    )


def _network(text: object, at: str) -> Network:
    if not isinstance(text, str):
        raise ValueError(f"{at} is not a string")
    if ":" not in text:
        text = _LEADING_ZEROS.sub("", text)
    try:
        return parse_cidr(text).network  # API servers before 1.35 accept, and ignore, host bits
    except ValueError:
        raise ValueError(f"{at} {text!r} is not a network such as 10.1.0.0/16") from None


def _port_range(document: Document, at: str) -> PortRange:
    port, end = document.get("port"), document.get("endPort")
    protocol_name = document.get("protocol", "TCP")
    protocol = _PROTOCOLS.get(protocol_name) if isinstance(protocol_name, str) else None
    if protocol is None:
        raise ValueError(f"{at}.protocol {protocol_name!r} is none of TCP, UDP, SCTP")
    if end is not None and not _is_port(port):
        raise ValueError(f"{at} has an endPort without a number as port")
    if port is None:
        return PortRange(protocol)
    if isinstance(port, str) and port:
        return PortRange(protocol, 0, 0, intern(port))
    last = port if end is None else end
    if not isinstance(port, int) or not isinstance(last, int) or not (_is_port(port) and port <= last <= LAST_PORT):
        raise ValueError(f"{at}: {port!r} to {last!r} is not a range of ports")
    return PortRange(protocol, port, last)


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LAST_PORT


def _labels(metadata: Document, at: str) -> Mapping[str, str]:
    labels = metadata.get("labels") or {}
    if not isinstance(labels, Mapping) or not all(isinstance(value, str) for value in labels.values()):
        raise ValueError(f"{at}: metadata.labels is not an object with string values")
    return _shared_labels(tuple(sorted(labels.items())))


@lru_cache(maxsize=_CACHE_SIZE)
def _shared_labels(pairs: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return {intern(key): intern(value) for key, value in pairs}


def _pod_addresses(status: Document, at: str) -> tuple[Address, ...]:
    texts = [item.get("ip") for item in objects_at(status, "podIPs")]
    try:
        return tuple(parse_ip(str(text)) for text in texts or [status.get("podIP")] if text)
    except ValueError as error:
        raise ValueError(f"{at}: status.podIPs: {error}") from None


def _named_ports(spec: Document) -> tuple[NamedPort, ...]:
    containers = objects_at(spec, "containers")
    sidecars = [item for item in objects_at(spec, "initContainers") if item.get("restartPolicy") == "Always"]
    ports = []
    for container in containers + sidecars:
        for port in objects_at(container, "ports"):
            name, number, protocol_name = port.get("name"), port.get("containerPort"), port.get("protocol") or "TCP"
            if isinstance(name, str) and name and isinstance(number, int) and isinstance(protocol_name, str):
                ports.append((name, _PROTOCOLS.get(protocol_name, protocol_name), number))
    return _shared_ports(tuple(dict.fromkeys(ports)))


@lru_cache(maxsize=_CACHE_SIZE)
def _shared_ports(ports: tuple[tuple[str, str, int], ...]) -> tuple[NamedPort, ...]:
    return tuple(NamedPort(intern(name), protocol, number) for name, protocol, number in ports)


def _parse_time(text: object) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp()) if isinstance(text, str) else 0
    except ValueError:
        return 0


def _object(value: object, at: str) -> Document:
    if not isinstance(value, Mapping):
        raise ValueError(f"{at} is not an object")
    return value


def _list(document: Document, key: str, at: str) -> list[object]:
    value = document.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{at}.{key} is not a list")
    return value
