"""The evaluator against the Kubernetes API's text: each sentence of the pages is a case."""

from ipaddress import ip_address
from typing import Any

import pytest

from agent.policy.evaluator import ClusterState, PodConnection, decide, pods_by_address
from agent.policy.objects import parse_namespace, parse_pod, parse_policy

NODES = {"n1": frozenset({ip_address("192.0.2.1")}), "n2": frozenset({ip_address("192.0.2.2")})}


def pod(namespace, name, address, node="n1", ports=(), **status):
    """Returns a pod with the labels app=<name> and name=<name>."""
    document: Any = {
        "metadata": {"namespace": namespace, "name": name, "uid": name, "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "hostNetwork": bool(status.pop("host", False)),
            "containers": [
                {"ports": [{"name": port[0], "containerPort": port[1], "protocol": port[2]} for port in ports]}
            ],
        },
        "status": {"phase": "Running", "podIPs": [{"ip": each} for each in address.split()], **status},
    }
    return parse_pod(document)


PODS = [
    pod("shop", "web", "10.0.0.1 fd00::1", ports=[("http", 80, "TCP"), ("dns", 53, "UDP")]),
    pod("shop", "db", "10.0.0.2", "n2", ports=[("http", 8080, "TCP")]),
    pod("other", "web", "10.0.1.1", ports=[("http", 81, "TCP")]),
    pod("unknown", "web", "10.0.2.1"),
    pod("shop", "node", "192.0.2.2", "n2", host=True),
    pod("shop", "job", "10.0.0.9", phase="Succeeded"),
]
ADDRESS = {f"{each.namespace}/{each.name}": str(each.addresses[0]) for each in PODS}
NAMESPACES = [
    parse_namespace({"metadata": {"name": name, "labels": {"name": name}}}) for name in ("shop", "other", "empty")
]


def cluster(*specs, namespace="shop"):
    policies = tuple(
        parse_policy({"metadata": {"namespace": namespace, "name": f"p{n}"}, "spec": spec})
        for n, spec in enumerate(specs)
    )
    return ClusterState(pods_by_address(PODS), {each.name: each for each in NAMESPACES}, policies, NODES)


def connect(source, destination, port="tcp 80"):
    protocol, _, number = port.partition(" ")
    first, last = (ip_address(ADDRESS.get(each, each)) for each in (source, destination))
    return PodConnection(first, last, protocol, int(number or 0))


def allows(specs, source, destination, port="tcp 80", **keys):
    return decide(cluster(*specs, **keys), connect(source, destination, port)).allowed


WEB = {"podSelector": {"matchLabels": {"app": "web"}}}
DENY = {"policyTypes": ["Ingress"]}
DENY_EGRESS = {"policyTypes": ["Egress"]}
NS_OTHER = {"namespaceSelector": {"matchLabels": {"name": "other"}}}


def ingress(*peers, ports=()):
    return {"ingress": [{"from": list(peers), "ports": list(ports)}]}


def egress(*peers, ports=()):
    return {"policyTypes": ["Egress"], "egress": [{"to": list(peers), "ports": list(ports)}]}


@pytest.mark.parametrize(
    ("specs", "connection", "is_allowed"),
    [
        ([], "shop/db shop/web", True),
        ([DENY], "shop/db shop/web", False),
        ([DENY], "shop/web other/web", True),  # ingress only
        ([DENY_EGRESS], "shop/db shop/web", False),
        ([DENY_EGRESS], "other/web shop/web", True),
        ([{**DENY, **WEB}], "shop/web shop/db", True),  # db is not selected
        ([DENY, {"ingress": [{}]}], "other/web shop/web", True),  # policies add up
        ([DENY, {"ingress": []}], "other/web shop/web", False),
        ([ingress(WEB)], "shop/web shop/db", True),
        ([ingress(WEB)], "other/web shop/db", False),  # a podSelector is for the policy's namespace
        ([ingress(NS_OTHER)], "other/web shop/db", True),
        ([ingress(NS_OTHER)], "shop/web shop/db", False),
        ([ingress({**NS_OTHER, **WEB})], "other/web shop/db", True),  # both: and
        ([ingress({**NS_OTHER, "podSelector": {"matchLabels": {"app": "db"}}})], "other/web shop/db", False),
        ([ingress(NS_OTHER, WEB)], "shop/web shop/db", True),  # two elements: or
        ([ingress({"namespaceSelector": {}})], "other/web shop/db", True),
        ([ingress({"namespaceSelector": {}})], "unknown/web shop/db", False),
        ([ingress({"namespaceSelector": {}})], "198.51.100.1 shop/db", False),
        ([ingress({"podSelector": {}})], "198.51.100.1 shop/db", False),
        ([{"ingress": [{}]}, DENY_EGRESS], "shop/db shop/web", False),  # both ends must allow
        ([egress({"podSelector": {}}), ingress(WEB)], "shop/db shop/web", False),
        ([egress({"podSelector": {}}), ingress(WEB)], "shop/web shop/db", True),
    ],
)
def test_selectors(specs, connection, is_allowed):
    """Policies isolate what they select in their directions, add up, and allow the peers of their rules."""
    assert allows(specs, *connection.split()) is is_allowed


BLOCK = {"ipBlock": {"cidr": "198.51.100.0/24", "except": ["198.51.100.128/25"]}}


@pytest.mark.parametrize(
    ("peer", "source", "is_allowed"),
    [
        (BLOCK, "198.51.100.1", True),
        (BLOCK, "198.51.100.200", False),
        ({"ipBlock": {"cidr": "0.0.0.0/0"}}, "10.0.1.1", True),  # pods' addresses match, too
        ({"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}, "10.0.1.1", False),
        ({"ipBlock": {"cidr": "10.0.0.0/8"}}, "10.0.0.9", True),  # a finished pod's address is only an address
        ({"podSelector": {}}, "10.0.0.9", False),
        ({"podSelector": {}}, "192.0.2.2", False),  # pods on the host's network are their node
        ({"ipBlock": {"cidr": "192.0.2.2/32"}}, "192.0.2.2", True),
    ],
)
def test_addresses(peer, source, is_allowed):
    """An ipBlock matches addresses without its exceptions; finished and host-network pods are no pods."""
    assert allows([ingress(peer)], source, "shop/web") is is_allowed


def test_versions():
    """A block of one IP version contains no address of the other; pods have both."""
    for cidr, is_allowed in (("0.0.0.0/0", False), ("::/0", True)):
        assert allows([ingress({"ipBlock": {"cidr": cidr}})], "2001:db8::1", "fd00::1") is is_allowed
    assert allows([egress({"podSelector": {}})], "shop/db", "shop/web")


@pytest.mark.parametrize(
    ("ports", "allowed"),
    [
        ([], "tcp 80,tcp 81,udp 53,sctp 80,icmp"),
        ([{}], "tcp 80,tcp 81"),
        ([{"port": 80}], "tcp 80"),
        ([{"port": 80, "endPort": 81}], "tcp 80,tcp 81"),
        ([{"protocol": "UDP"}, {"port": 81}], "tcp 81,udp 53"),
        ([{"port": "http"}], "tcp 80"),
        ([{"port": "dns"}], ""),  # the protocol differs
        ([{"port": "dns", "protocol": "UDP"}], "udp 53"),
        ([{"port": "none"}], ""),
        ([{"port": 80, "protocol": "SCTP"}], "sctp 80"),
    ],
)
def test_ports(ports, allowed):
    """A rule with ports never matches ICMP; a name is that of the destination's container, with the same protocol."""
    for rule in (ingress, egress):
        connections = ("tcp 80", "tcp 81", "udp 53", "sctp 80", "icmp")
        spec = rule({"podSelector": {}}, ports=ports)
        if rule is egress:
            spec["podSelector"] = {"matchLabels": {"app": "db"}}
        got = [each for each in connections if allows([spec], "shop/db", "shop/web", each)]
        assert ",".join(got) == allowed


@pytest.mark.parametrize(
    ("peers", "destination", "port", "is_allowed"),
    [
        ([{"podSelector": {}}], "shop/db", "tcp 8080", True),  # each peer's name for itself
        ([{"podSelector": {}}], "shop/db", "tcp 80", False),
        ([NS_OTHER], "other/web", "tcp 81", True),
        ([], "other/web", "tcp 81", True),
        ([], "198.51.100.1", "tcp 80", False),
        ([{"ipBlock": {"cidr": "0.0.0.0/0"}}], "shop/db", "tcp 8080", False),  # a block knows no containers
        ([{"ipBlock": {"cidr": "0.0.0.0/0"}}, NS_OTHER], "other/web", "tcp 81", True),
    ],
)
def test_named_ports_of_egress(peers, destination, port, is_allowed):
    """As egress a name means each peer's number of it, and nothing with an ipBlock."""
    spec = {**egress(*peers, ports=[{"port": "http"}]), **WEB}
    assert allows([spec], "shop/web", destination, port) is is_allowed


def test_node_and_pod_itself():
    """A pod reaches itself and its node, and its node the pod, whatever policies say; another node is an address."""
    closed = [DENY, DENY_EGRESS]
    assert allows(closed, "shop/web", "shop/web")
    assert allows(closed, "shop/web", "192.0.2.1")
    assert allows(closed, "192.0.2.1", "shop/web")
    assert not allows(closed, "192.0.2.2", "shop/web")
    assert not allows(closed, "shop/web", "192.0.2.2")


def test_address_of_several_pods():
    """Of several pods with one address the youngest has it that is neither finished nor terminating."""
    old, young = (PODS[0]._replace(uid=str(n), precedence=n) for n in (1, 2))
    finished, terminating = young._replace(is_finished=True, precedence=9), young._replace(uid="3", precedence=0)
    address = old.addresses[0]
    for pods in ([old, young, finished, terminating], [terminating, finished, young, old]):
        assert pods_by_address(pods)[address] is young


@pytest.mark.parametrize(
    ("specs", "source", "destination", "sentence"),
    [
        (
            [DENY],
            "shop/db",
            "shop/web",
            "policy p0 of namespace shop isolates it (ingress): no policy allows tcp 80 from db",
        ),
        (
            [DENY, DENY, DENY, DENY, DENY],
            "other/web",
            "shop/web",
            "policies p0, p1, p2 and 2 more of namespace shop isolate it (ingress): "
            "no policy allows tcp 80 from web of namespace other",
        ),
        (
            [DENY_EGRESS],
            "shop/web",
            "198.51.100.1",
            "policy p0 of namespace shop isolates it (egress): no policy allows tcp 80 to 198.51.100.1",
        ),
        ([DENY, ingress(WEB)], "shop/web", "shop/db", "policy p1 of namespace shop allows it (ingress, rule 1)"),
        ([egress()], "shop/web", "other/web", "policy p0 of namespace shop allows it (egress, rule 1)"),
        ([], "shop/web", "shop/db", "no policy isolates web (egress)"),
        ([], "shop/web", "198.51.100.1", "no policy isolates web (egress)"),
        ([], "198.51.100.1", "shop/web", "no policy isolates web (ingress)"),
        ([], "198.51.100.1", "198.51.100.1", "no policy isolates an end of it (egress)"),
        ([DENY], "192.0.2.1", "shop/web", "a pod always reaches its node, and its node the pod"),
    ],
)
def test_sentences(specs, source, destination, sentence):
    """A decision names direction, policy, rule and peer."""
    assert decide(cluster(*specs), connect(source, destination)).describe() == sentence
