"""NetworkPolicy: the tests' reading of the Kubernetes API, and whether the agent decides as it does."""

import json
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any, NamedTuple

import pytest

from agent.policy import evaluator, objects
from tests.support.policy_cases import make_cluster, make_connections, pod_ips
from tests.support.policy_oracle import Connection, Document, is_allowed, of_kind

EVERYTHING: Document = {}
FRONT: Document = {"matchLabels": {"app": "front"}}
BACK: Document = {"matchLabels": {"app": "back"}}
BLUE: Document = {"matchLabels": {"team": "blue"}}

ADDRESSES = {
    "node1": "192.168.0.1",
    "node2": "192.168.0.2",
    "front": "10.244.1.1",
    "back": "10.244.1.2",
    "back6": "fd00:1::2",
    "leaving": "10.244.1.3",
    "client": "10.244.2.1",
    "client6": "fd00:2::1",
    "old": "10.244.2.7",
    "far": "10.244.2.2",
    "remote": "203.0.113.7",
    "remote6": "2001:db8::7",
}


def document(kind: str, name: str, namespace: str = "", **fields: Any) -> Document:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": fields.pop("labels", {})}
    return {"kind": kind, "metadata": metadata, **fields}


def pod(name: str, app: str, node: str, *addresses: str, phase: str = "Running", **spec: Any) -> Document:
    """Returns a pod; the namespace is a part of its name."""
    namespace, _, name = name.partition("/")
    spec = {"nodeName": node, "containers": [{"name": "main"}], **spec}
    status = {"phase": phase, **(pod_ips(addresses) if addresses else {})}
    return document("Pod", name, namespace, labels={"app": app}, spec=spec, status=status)


def ports(*texts: str) -> list[Document]:
    """Returns the ports of a container, from texts as "http/TCP/80"."""
    fields = [text.split("/") for text in texts]
    return [{"name": name, "protocol": protocol, "containerPort": int(port)} for name, protocol, port in fields]


LEAVING = pod("shop/leaving", "leaving", "node-1", ADDRESSES["leaving"])
LEAVING["metadata"]["deletionTimestamp"] = "2026-11-29T07:00:00Z"
CONTAINERS = [
    {"name": "main", "ports": ports("http/TCP/8080", "dns/UDP/53")},
    {"name": "second", "ports": ports("http/UDP/8081", "http2/TCP/8082", "http3/TCP/8083")},
]
INIT = [
    {"name": "sidecar", "restartPolicy": "Always", "ports": [{"name": "metrics", "containerPort": 9090}]},
    {"name": "setup", "ports": ports("setup/TCP/7000")},
]
CLUSTER = [
    document("Node", "node-1", status={"addresses": [{"type": "InternalIP", "address": ADDRESSES["node1"]}]}),
    document("Node", "node-2", status={"addresses": [{"type": "InternalIP", "address": ADDRESSES["node2"]}]}),
    document("Namespace", "shop", labels={"team": "red"}),
    document("Namespace", "web", labels={"team": "blue"}),
    pod("web/done", "front", "node-1", ADDRESSES["back"], phase="Succeeded"),  # its address is back's now
    pod("shop/failed", "front", "node-2", ADDRESSES["old"], phase="Failed"),
    pod("shop/new", "front", ""),
    pod("shop/front", "front", "node-1", ADDRESSES["front"]),
    pod("shop/back", "back", "node-1", *(ADDRESSES["back"], "FD00:1:0::2"), containers=CONTAINERS, initContainers=INIT),
    pod("shop/host", "front", "node-2", ADDRESSES["node2"], hostNetwork=True, containers=CONTAINERS),
    pod("web/client", "front", "node-2", ADDRESSES["client"], ADDRESSES["client6"], containers=[
        {"name": "main", "ports": ports("http/TCP/80")}
    ]),
    pod("shop/far", "far", "node-2", ADDRESSES["far"]),
    LEAVING,
]  # fmt: skip


class Example(NamedTuple):
    """Policies of the namespace "shop", and connections as "source destination protocol port"."""

    policies: list[Document]
    allowed: list[str]
    refused: list[str]


def ingress(*rules: Document, pods: Document = EVERYTHING) -> Document:
    return {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [*rules]}


def egress(*rules: Document, pods: Document = EVERYTHING) -> Document:
    return {"podSelector": pods, "policyTypes": ["Egress"], "egress": [*rules]}


def expression(key: str, operator: str, *values: str) -> Document:
    return {"matchExpressions": [{"key": key, "operator": operator} | ({"values": [*values]} if values else {})]}


def block(cidr: str, *excepts: str) -> Document:
    return {"ipBlock": {"cidr": cidr, "except": [*excepts]}}


EXAMPLES = {
    "a pod that no policy selects is not isolated": Example(
        [ingress(pods=FRONT)], ["client back tcp 80", "remote back icmp 0", "back remote udp 53"], []
    ),
    "a policy selects pods of its namespace only": Example(
        [ingress()], ["front client tcp 80"], ["client front tcp 80", "client6 back6 tcp 80"]
    ),
    "a policy without podSelector selects all pods of its namespace": Example(
        [{"policyTypes": ["Ingress"]}], ["front client tcp 80"], ["client front tcp 80", "client back tcp 80"]
    ),
    "no policyTypes and no egress rules mean Ingress": Example(
        [{"podSelector": EVERYTHING}, {"podSelector": EVERYTHING, "egress": []}],
        ["front remote tcp 80"],
        ["remote front tcp 80"],
    ),
    "no policyTypes and egress rules mean Ingress and Egress": Example(
        [{"podSelector": EVERYTHING, "egress": [{"ports": [{"port": 80}]}]}],
        ["front remote tcp 80"],
        ["remote front tcp 80", "front remote tcp 81"],
    ),
    "rules of a direction that is not in policyTypes are ignored": Example(
        [{"podSelector": EVERYTHING, "policyTypes": ["Egress"], "ingress": [{}]}],
        ["remote front tcp 80"],
        ["front remote tcp 80"],
    ),
    "an empty list of rules allows nothing and an empty rule everything": Example(
        [ingress(pods=FRONT), ingress({}, pods=BACK)],
        ["client back tcp 1", "remote6 back6 icmp 0"],
        ["client front tcp 1", "remote front icmp 0"],
    ),
    "missing or empty from means everywhere, missing or empty ports every protocol": Example(
        [ingress({"from": [], "ports": [{"port": 80}]}, pods=FRONT), ingress({"ports": []}, pods=BACK)],
        ["remote front tcp 80", "client back sctp 9", "client back icmp 0"],
        ["remote front tcp 81", "remote front icmp 0"],
    ),
    "policies add up": Example(
        [ingress(), ingress({"ports": [{"port": 80}]}), ingress({"from": [{"podSelector": BACK}]})],
        ["client front tcp 80", "back front udp 9"],
        ["client front tcp 81"],
    ),
    "both ends must allow": Example(
        [egress({"to": [{"podSelector": BACK}]}, pods=FRONT), ingress({"ports": [{"port": 80}]}, pods=BACK)],
        ["front back tcp 80", "client back tcp 80"],
        ["front back tcp 81", "front client tcp 80"],
    ),
    "a peer matches only with the ports of its rule": Example(
        [ingress({"from": [{"podSelector": FRONT}], "ports": [{"port": 1}]}, {"from": [block("203.0.113.0/24")]})],
        ["front back tcp 1", "remote back tcp 2"],
        ["front back tcp 2"],
    ),
    "podSelector alone means the namespace of the policy": Example(
        [ingress({"from": [{"podSelector": EVERYTHING}]})], ["front back tcp 80"], ["client back tcp 80"]
    ),
    "namespaceSelector alone means all pods of the namespaces": Example(
        [ingress({"from": [{"namespaceSelector": BLUE}]})], ["client back tcp 80"], ["front back tcp 80"]
    ),
    "both selectors in one element must match": Example(
        [ingress({"from": [{"namespaceSelector": EVERYTHING, "podSelector": BACK}]}),
         ingress({"from": [{"namespaceSelector": BLUE, "podSelector": FRONT}]}, pods=BACK)],
        ["back front tcp 80", "client back tcp 80"],
        ["front back tcp 80", "client front tcp 80"],
    ),
    "two elements are alternatives": Example(
        [ingress({"from": [{"namespaceSelector": BLUE}, {"podSelector": FRONT}]})],
        ["client back tcp 80", "front back tcp 80"],
        ["leaving back tcp 80"],
    ),
    "an empty namespaceSelector selects pods of all namespaces, and no other addresses": Example(
        [ingress({"from": [{"namespaceSelector": EVERYTHING}]})],
        ["client back tcp 80", "client6 back6 icmp 0"],
        ["remote back tcp 80", "node2 back tcp 80"],
    ),
    "In and Exists need the key, NotIn and DoesNotExist match without it": Example(
        [ingress({"from": [{"podSelector": expression("app", "In", "front", "x")}], "ports": [{"port": 1}]},
                 {"from": [{"podSelector": expression("app", "NotIn", "front")}], "ports": [{"port": 2}]},
                 {"from": [{"podSelector": expression("no", "NotIn", "front")}], "ports": [{"port": 3}]},
                 {"from": [{"podSelector": expression("app", "Exists")}], "ports": [{"port": 4}]},
                 {"from": [{"podSelector": expression("no", "DoesNotExist")}], "ports": [{"port": 5}]},
                 {"from": [{"podSelector": expression("no", "In", "front")}], "ports": [{"port": 6}]},
                 {"from": [{"podSelector": expression("no", "Exists")}], "ports": [{"port": 6}]},
                 {"from": [{"podSelector": expression("app", "DoesNotExist")}], "ports": [{"port": 6}]})],
        ["front back tcp 1", "leaving back tcp 2", *(f"front back tcp {port}" for port in (3, 4, 5))],
        ["leaving back tcp 1", "front back tcp 2", "front back tcp 6"],
    ),
    "matchLabels and matchExpressions must both match": Example(
        [ingress({"from": [{"podSelector": FRONT | expression("app", "NotIn", "front")}]})], [], ["front back tcp 80"]
    ),
    "protocol is TCP if missing, and alone means all its ports": Example(
        [ingress({"ports": [{"port": 80}, {"protocol": "UDP"}]}), ingress({"ports": [{}]}, pods=BACK)],
        ["remote front tcp 80", "remote front udp 9", "remote back tcp 9"],
        ["remote front sctp 80", "remote front tcp 81", "remote front icmp 0", "remote back sctp 9"],
    ),
    "endPort includes both ends": Example(
        [ingress({"ports": [{"protocol": "SCTP", "port": 80, "endPort": 82}]})],
        [f"remote back sctp {port}" for port in (80, 81, 82)],
        ["remote back sctp 79", "remote back sctp 83", "remote back tcp 81"],
    ),
    "a name is a port of the destination with the same protocol": Example(
        [ingress({"ports": [{"port": "http"}, {"port": "dns"}]}, {"ports": [{"port": "http3"}]})],
        ["client back tcp 8080", "client back tcp 8083"],
        ["client back udp 8081", "client back tcp 8082", "client back tcp 53", "client front tcp 8080"],
    ),
    "for egress a name is each destination's port": Example(
        [egress({"ports": [{"port": "http"}]})],
        ["front back tcp 8080", "front client tcp 80"],
        ["front back tcp 80", "front client tcp 8080", "front remote tcp 80", "front node2 tcp 8080"],
    ),
    "names are those of containers and sidecars, not of other init containers": Example(
        [ingress({"ports": [{"port": "metrics"}, {"port": "setup"}]})],
        ["client back tcp 9090"],
        ["client back tcp 7000"],
    ),
    "a name matches no destination that only an ipBlock allows": Example(
        [egress({"to": [block("0.0.0.0/0"), {"podSelector": BACK}], "ports": [{"port": "http"}]})],
        ["front back tcp 8080"],
        ["front client tcp 80", "front remote tcp 80"],
    ),
    "for ingress a name is a port of the selected pod also with an ipBlock": Example(
        [ingress({"from": [block("0.0.0.0/0")], "ports": [{"port": "http"}]})],
        ["remote back tcp 8080"],
        ["remote back tcp 80"],
    ),
    "an ipBlock contains pods too, without its exceptions": Example(
        [ingress({"from": [block("10.244.0.0/16", "10.244.1.0/24"), block("203.0.113.0/24", "203.0.113.7/32")]})],
        ["client back tcp 80", "old back tcp 80"],
        ["front back tcp 80", "remote back tcp 80"],
    ),
    "an exception of one block does not restrict another": Example(
        [ingress({"from": [block("0.0.0.0/0", "203.0.113.0/24"), block("203.0.113.7/32")]})], ["remote back tcp 80"], []
    ),
    "0.0.0.0/0 contains no IPv6 and ::/0 no IPv4": Example(
        [ingress({"from": [block("0.0.0.0/0")], "ports": [{"port": 4}]},
                 {"from": [block("::/0")], "ports": [{"port": 6}]})],
        ["remote back tcp 4", "remote6 back6 tcp 6"],
        ["remote back tcp 6", "remote6 back6 tcp 4"],
    ),
    "a pod reaches itself and its node, and its node reaches it": Example(
        [ingress(), egress()],
        ["back back tcp 80", "back6 back6 icmp 0", "back node1 tcp 80", "node1 back udp 80", "node2 far tcp 80"],
        ["node1 far tcp 80", "far node1 tcp 80", "back node2 tcp 80", "node2 back tcp 80", "front back tcp 80"],
    ),
    "a pod of the host's network is its node: no selector matches it, an ipBlock does": Example(
        [ingress({"from": [{"podSelector": FRONT}]}, {"from": [block("192.168.0.2/32")], "ports": [{"port": 1}]}),
         egress(pods=FRONT)],
        ["node2 back tcp 1", "node2 client tcp 9", "node2 remote tcp 9"],
        ["node2 back tcp 2"],
    ),
    "a pod that has ended is no subject and no peer": Example(
        [ingress({"from": [{"namespaceSelector": BLUE}]}), egress(pods=FRONT)],
        ["client leaving tcp 80", "old remote tcp 80", "remote old tcp 80"],
        ["back leaving tcp 80", "old leaving tcp 80"],
    ),
    "a terminating pod is a subject and a peer until it is deleted": Example(
        [ingress({"from": [{"podSelector": {"matchLabels": {"app": "leaving"}}}]})],
        ["leaving back tcp 80"], ["client leaving tcp 80"],
    ),
}  # fmt: skip


def connection(text: str) -> Connection:
    source, destination, protocol, port = text.split()
    return Connection(ADDRESSES[source], ADDRESSES[destination], protocol, int(port))


def policies(specs: list[Document]) -> list[Document]:
    return [document("NetworkPolicy", f"policy-{number}", "shop", spec=spec) for number, spec in enumerate(specs)]


def parsed(documents: list[Document]) -> evaluator.ClusterState:
    """Returns a cluster as the agent reads it."""
    return evaluator.ClusterState(
        evaluator.pods_by_address([objects.parse_pod(pod) for pod in of_kind(documents, "Pod")]),
        {each["metadata"]["name"]: objects.parse_namespace(each) for each in of_kind(documents, "Namespace")},
        [objects.parse_policy(policy) for policy in of_kind(documents, "NetworkPolicy")],
        {node["metadata"]["name"]: node_addresses(node) for node in of_kind(documents, "Node")},
    )


def decided(cluster: evaluator.ClusterState, connection: Connection) -> bool:
    """Returns the verdict of the agent."""
    ends = ip_address(connection.source), ip_address(connection.destination)
    return evaluator.decide(cluster, evaluator.PodConnection(*ends, connection.protocol, connection.port)).allowed


def node_addresses(node: Document) -> list[Any]:
    return [ip_address(each["address"]) for each in node["status"]["addresses"] if each["type"] == "InternalIP"]


@pytest.mark.every_case
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_specification(name):
    """The oracle and the agent decide each example of a sentence of the specification as the sentence says."""
    example = EXAMPLES[name]
    documents = CLUSTER + policies(example.policies)
    desired = dict.fromkeys(example.allowed, True) | dict.fromkeys(example.refused, False)
    assert {text: is_allowed(documents, connection(text)) for text in desired} == desired
    cluster = parsed(documents)
    assert {text: decided(cluster, connection(text)) for text in desired} == desired


class Case(NamedTuple):
    """The documents of a cluster, and a connection in it."""

    documents: list[Document]
    connection: Connection

    def differs(self) -> bool:
        """Returns whether the agent decides otherwise than the oracle."""
        return decided(parsed(self.documents), self.connection) != is_allowed(*self)

    def parts(self) -> Iterator["Case"]:
        """Yields the case without one pod, without one policy, and without one rule of a policy that has several."""
        for index, each in enumerate(self.documents):
            others = self.documents[:index] + self.documents[index + 1 :]
            if each["kind"] in ("Pod", "NetworkPolicy"):
                yield self._replace(documents=others)
            for direction in ("ingress", "egress"):
                rules = each.get("spec", {}).get(direction, [])
                for number in range(len(rules) if len(rules) > 1 else 0):
                    spec = each["spec"] | {direction: rules[:number] + rules[number + 1 :]}
                    yield self._replace(documents=[*others, each | {"spec": spec}])

    def described(self, seed: int) -> str:
        """Returns the smallest part of the case that still differs, as text."""
        smaller = next((part for part in self.parts() if part.differs()), None)
        if smaller:
            return smaller.described(seed)
        cluster = "\n".join(json.dumps(each) for each in self.documents)
        return f"seed {seed}: the oracle returns {is_allowed(*self)} for {self.connection} in\n{cluster}"


@pytest.mark.parametrize("part", range(4))
def test_the_agent_decides_as_the_oracle(part, request):
    """The agent and the oracle decide 1,500 connections in random clusters alike, at night 25,000."""
    clusters = 1250 if request.config.getoption("--nightly") else 75
    for seed in range(part * clusters, (part + 1) * clusters):
        documents = make_cluster(seed)
        cluster = parsed(documents)
        for each in make_connections(seed, documents, 20):
            is_same = decided(cluster, each) == is_allowed(documents, each)
            assert is_same, Case(documents, each).described(seed)
