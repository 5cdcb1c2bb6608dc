"""NetworkPolicy: whether the tests' reading of the API, the agent's evaluator and its plan of the filter agree."""

import json
import re
from ipaddress import ip_address
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import pytest

from agent.policy.evaluator import PodConnection, decide_direction
from agent.policy.objects import EGRESS, INGRESS
from tests.support.policy_oracle import Connection, Document, is_allowed
from tests.support.policy_world import World, accepts, decide, node_documents, parsed

EVERYTHING: Document = {}
FRONT: Document = {"matchLabels": {"app": "front"}}
BACK: Document = {"matchLabels": {"app": "back"}}
BLUE: Document = {"matchLabels": {"team": "blue"}}

ADDRESSES = {
    "node1": "192.0.2.1",
    "node2": "192.0.2.2",
    "front": "10.244.1.1",
    "back": "10.244.1.2",
    "back6": "fd00:1::2",
    "leaving": "10.244.1.3",
    "client": "10.244.2.1",
    "client6": "fd00:2::1",
    "old": "10.244.2.7",
    "far": "10.244.2.2",
    "lost": "10.244.2.3",
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
    status = {"phase": phase, "podIPs": [{"ip": each} for each in addresses]}
    return document("Pod", name, namespace, labels={"app": app}, spec=spec, status=status)


def ports(*texts: str) -> list[Document]:
    """Returns the ports of a container, from texts as "http/TCP/80"."""
    fields = [text.split("/") for text in texts]
    return [{"name": name, "protocol": protocol, "containerPort": int(port)} for name, protocol, port in fields]


LEAVING = pod("shop/leaving", "leaving", "n1", ADDRESSES["leaving"])
LEAVING["metadata"]["deletionTimestamp"] = "2026-11-29T07:00:00Z"
ONE_IP = pod("shop/front", "front", "n1") | {"status": {"phase": "Running", "podIP": ADDRESSES["front"]}}
CONTAINERS = [
    {"name": "main", "ports": ports("http/TCP/8080", "dns/UDP/53")},
    {"name": "second", "ports": ports("http/UDP/8081", "http2/TCP/8082", "http3/TCP/8083")},
]
INIT = [
    {"name": "sidecar", "restartPolicy": "Always", "ports": [{"name": "metrics", "containerPort": 9090}]},
    {"name": "setup", "ports": ports("setup/TCP/7000")},
]
CLUSTER = [
    *node_documents(),
    document("Namespace", "shop", labels={"team": "red"}),
    document("Namespace", "web", labels={"team": "blue"}),
    pod("web/done", "front", "n1", ADDRESSES["back"], phase="Succeeded"),  # its address is back's now
    pod("shop/failed", "front", "n2", ADDRESSES["old"], phase="Failed"),
    pod("shop/new", "front", ""),
    ONE_IP,
    pod("shop/back", "back", "n1", *(ADDRESSES["back"], "FD00:1:0::2"), containers=CONTAINERS, initContainers=INIT),
    pod("shop/host", "front", "n2", ADDRESSES["node2"], hostNetwork=True, containers=CONTAINERS),
    pod("web/client", "front", "n2", ADDRESSES["client"], ADDRESSES["client6"], containers=[
        {"name": "main", "ports": ports("http/TCP/80")}
    ]),
    pod("shop/far", "far", "n2", ADDRESSES["far"]),
    pod("lost/lost", "front", "n2", ADDRESSES["lost"]),  # its namespace is not known (yet)
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


def peers(*peers: Document, port: int = 0) -> Document:
    """Returns a rule of ingress."""
    return {"from": [*peers]} | ({"ports": [{"port": port}]} if port else {})


def port(number: int | str, **more: Any) -> Document:
    """Returns a rule that allows a port everywhere."""
    return {"ports": [{"port": number, **more}]}


def labelled(key: str, operator: str, *values: str) -> Document:
    """Returns a peer: the pods of the policy's namespace that meet an expression."""
    expression = {"key": key, "operator": operator} | ({"values": [*values]} if values else {})
    return {"podSelector": {"matchExpressions": [expression]}}


def block(cidr: str, *excepts: str) -> Document:
    return {"ipBlock": {"cidr": cidr, "except": [*excepts]}}


EXAMPLES = {
    "a pod that no policy selects is not isolated": Example(
        [ingress(pods=FRONT)], ["client back tcp 80", "remote back icmp 0", "back remote udp 53"], []),
    "a policy selects pods of its namespace only": Example(
        [ingress()], ["front client tcp 80"], ["client front tcp 80", "client6 back6 tcp 80"]),
    "a policy without podSelector selects all pods of its namespace": Example(
        [{"policyTypes": ["Ingress"]}], ["front client tcp 80"], ["client front tcp 80", "client back tcp 80"]),
    "no policyTypes and no egress rules mean Ingress": Example(
        [{"podSelector": EVERYTHING}, {"podSelector": EVERYTHING, "policyTypes": None, "ingress": None, "egress": []}],
        ["front remote tcp 80"], ["remote front tcp 80"]),
    "no policyTypes and egress rules mean Ingress and Egress": Example(
        [{"podSelector": EVERYTHING, "egress": [port(80)]}],
        ["front remote tcp 80"], ["remote front tcp 80", "front remote tcp 81"]),
    "rules of a direction that is not in policyTypes are ignored": Example(
        [{"podSelector": EVERYTHING, "policyTypes": ["Egress"], "ingress": [{}]}],
        ["remote front tcp 80"], ["front remote tcp 80"]),
    "an empty list of rules allows nothing and an empty rule everything": Example(
        [ingress(pods=FRONT), ingress({}, pods=BACK)],
        ["client back tcp 1", "remote6 back6 icmp 0"], ["client front tcp 1", "remote front icmp 0"]),
    "missing, null or empty from means everywhere, missing, null or empty ports every protocol": Example(
        [ingress({"from": [], **port(80)}, {"from": None, **port(82)}, pods=FRONT), ingress({"ports": []}, pods=BACK)],
        ["remote front tcp 80", "remote front tcp 82", "client back sctp 9", "client back icmp 0"],
        ["remote front tcp 81", "remote front icmp 0"]),
    "policies add up": Example(
        [ingress(), ingress(port(80)), ingress(peers({"podSelector": BACK}))],
        ["client front tcp 80", "back front udp 9"], ["client front tcp 81"]),
    "both ends must allow": Example(
        [egress({"to": [{"podSelector": BACK}]}, pods=FRONT), ingress(port(80), pods=BACK)],
        ["front back tcp 80", "client back tcp 80"], ["front back tcp 81", "front client tcp 80"]),
    "a peer matches only with the ports of its rule": Example(
        [ingress(peers({"podSelector": FRONT}, port=1), peers(block("203.0.113.0/24")))],
        ["front back tcp 1", "remote back tcp 2"], ["front back tcp 2"]),
    "podSelector alone means the namespace of the policy": Example(
        [ingress(peers({"podSelector": EVERYTHING}))], ["front back tcp 80"], ["client back tcp 80"]),
    "namespaceSelector alone means all pods of the namespaces": Example(
        [ingress(peers({"namespaceSelector": BLUE}))], ["client back tcp 80"], ["front back tcp 80"]),
    "both selectors in one element must match": Example(
        [ingress(peers({"namespaceSelector": EVERYTHING, "podSelector": BACK})),
         ingress(peers({"namespaceSelector": BLUE, "podSelector": FRONT}), pods=BACK)],
        ["back front tcp 80", "client back tcp 80"], ["front back tcp 80", "client front tcp 80"]),
    "two elements are alternatives": Example(
        [ingress(peers({"namespaceSelector": BLUE}, {"podSelector": FRONT}))],
        ["client back tcp 80", "front back tcp 80"], ["leaving back tcp 80"]),
    "an empty namespaceSelector selects pods of all namespaces, and no other addresses": Example(
        [ingress(peers({"namespaceSelector": EVERYTHING}))],
        ["client back tcp 80", "client6 back6 icmp 0", "lost back tcp 80"],
        ["remote back tcp 80", "node2 back tcp 80"]),
    "no requirement for a namespace's labels is met while its object is unknown": Example(
        [ingress(peers({"namespaceSelector": labelled("team", "NotIn", "blue")["podSelector"]}))],
        ["front back tcp 80"], ["client back tcp 80", "lost back tcp 80"]),
    "In and Exists need the key, NotIn and DoesNotExist match without it": Example(
        [ingress(peers(labelled("app", "In", "front", "x"), port=1), peers(labelled("app", "NotIn", "front"), port=2),
                 peers(labelled("no", "NotIn", "front"), port=3), peers(labelled("app", "Exists"), port=4),
                 peers(labelled("no", "DoesNotExist"), port=5), peers(labelled("no", "In", "front"), port=6),
                 peers(labelled("no", "Exists"), port=6), peers(labelled("app", "DoesNotExist"), port=6))],
        ["front back tcp 1", "leaving back tcp 2", *(f"front back tcp {number}" for number in (3, 4, 5))],
        ["leaving back tcp 1", "front back tcp 2", "front back tcp 6"]),
    "matchLabels and matchExpressions must both match": Example(
        [ingress(peers({"podSelector": FRONT | labelled("app", "NotIn", "front")["podSelector"]}))],
        [], ["front back tcp 80", "back front tcp 80"]),
    "protocol is TCP if missing, and alone means all its ports": Example(
        [ingress({"ports": [{"port": 80}, {"protocol": "UDP"}]}), ingress({"ports": [{}]}, pods=BACK)],
        ["remote front tcp 80", "remote front udp 9", "remote back tcp 9", "remote back tcp 65535"],
        ["remote front sctp 80", "remote front tcp 81", "remote front icmp 0", "remote back sctp 9"]),
    "endPort includes both ends": Example(
        [ingress(port(80, protocol="SCTP", endPort=82))], [f"remote back sctp {number}" for number in (80, 81, 82)],
        ["remote back sctp 79", "remote back sctp 83", "remote back tcp 81"]),
    "a name is a port of the destination with the same protocol": Example(
        [ingress({"ports": [{"port": "http"}, {"port": "dns"}]}, port("http3"), port("none"))],
        ["client back tcp 8080", "client back tcp 8083"],
        ["client back udp 8081", "client back tcp 8082", "client back tcp 53", "client front tcp 8080"]),
    "for egress a name is each destination's port": Example(
        [egress(port("http"))], ["front back tcp 8080", "front client tcp 80"],
        ["front back tcp 80", "front client tcp 8080", "front remote tcp 80", "front node2 tcp 8080"]),
    "names are those of containers and sidecars, not of other init containers": Example(
        [ingress({"ports": [{"port": "metrics"}, {"port": "setup"}]})],
        ["client back tcp 9090"], ["client back tcp 7000"]),
    "a name matches no destination that only an ipBlock allows": Example(
        [egress({"to": [block("0.0.0.0/0"), {"podSelector": BACK}], **port("http")})],
        ["front back tcp 8080"], ["front client tcp 80", "front remote tcp 80"]),
    "for ingress a name is a port of the selected pod also with an ipBlock": Example(
        [ingress({"from": [block("0.0.0.0/0")], **port("http")})], ["remote back tcp 8080"], ["remote back tcp 80"]),
    "an ipBlock contains pods too, without its exceptions, and host bits mean nothing": Example(
        [ingress(peers(block("10.244.1.7/16", "10.244.1.0/24", "fd00::/16"), block("203.0.113.0/24", "203.0.113.7/32"))
                 )], ["client back tcp 80", "old back tcp 80"], ["front back tcp 80", "remote back tcp 80"]),
    "an exception of one block does not restrict another": Example(
        [ingress(peers(block("0.0.0.0/0", "203.0.113.0/24"), block("203.0.113.7/32")))], ["remote back tcp 80"], []),
    "exceptions may lie outside their block, or around it": Example(
        [ingress(peers(block("10.244.2.0/24", "10.0.0.0/24"), block("10.244.1.2/32", "10.244.0.0/16", "10.250.0.0/16"))
                 )],
        ["client leaving tcp 80"], ["front leaving tcp 80", "back leaving tcp 80"]),
    "0.0.0.0/0 contains no IPv6 and ::/0 no IPv4": Example(
        [ingress(peers(block("0.0.0.0/0"), port=4), peers(block("::/0"), port=6))],
        ["remote back tcp 4", "remote6 back6 tcp 6"], ["remote back tcp 6", "remote6 back6 tcp 4"]),
    "a pod reaches itself and its node, and its node reaches it": Example(
        [ingress(), egress()],
        ["back back tcp 80", "back6 back6 icmp 0", "back node1 tcp 80", "node1 back udp 80", "node2 far tcp 80"],
        ["node1 far tcp 80", "far node1 tcp 80", "back node2 tcp 80", "node2 back tcp 80", "front back tcp 80"]),
    "a pod of the host's network is its node: no selector matches it, an ipBlock does": Example(
        [ingress(peers({"podSelector": FRONT}), peers(block("192.0.2.2/32"), port=1)), egress(pods=FRONT)],
        ["node2 back tcp 1", "node2 client tcp 9", "node2 remote tcp 9"], ["node2 back tcp 2"]),
    "a pod that has ended is no subject and no peer": Example(
        [ingress(peers({"namespaceSelector": BLUE})), egress(pods=FRONT)],
        ["client leaving tcp 80", "old remote tcp 80", "remote old tcp 80"],
        ["back leaving tcp 80", "old leaving tcp 80"]),
    "a terminating pod is a subject and a peer until it is deleted": Example(
        [ingress(peers({"podSelector": {"matchLabels": {"app": "leaving"}}}))],
        ["leaving back tcp 80"], ["client leaving tcp 80"]),
}  # fmt: skip


def connection(text: str) -> PodConnection:
    source, destination, protocol, number = text.split()
    return PodConnection(ip_address(ADDRESSES[source]), ip_address(ADDRESSES[destination]), protocol, int(number))


def judge(documents, cluster, world, packet):
    """Returns whether a connection is allowed: by the oracle, the evaluator and, at ends on this node, the filter."""
    allowed = is_allowed(documents, Connection(str(packet.source), str(packet.destination), *packet[2:]))
    decision = decide(cluster, packet)
    assert decision.allowed == allowed, (decision.describe(), json.dumps(documents))
    for end, direction in ((packet.source, EGRESS), (packet.destination, INGRESS)):
        if end in world.known_addresses():
            decision = decide_direction(cluster, packet, direction)
            assert accepts(world.table, world.kernel, packet, direction) == decision.allowed, decision
    return allowed


@pytest.mark.every_case
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_specification(name):
    """The oracle, the evaluator and the filter decide each example as the specification's sentence says."""
    example = EXAMPLES[name]
    policies = [document("NetworkPolicy", f"p-{n}", "shop", spec=spec) for n, spec in enumerate(example.policies)]
    world = World(Random(0))
    for each in CLUSTER + policies:
        world.add(each)
    world.update()
    check_table(world)
    cluster = parsed(CLUSTER + policies)
    desired = dict.fromkeys(example.allowed, True) | dict.fromkeys(example.refused, False)
    assert {text: judge(CLUSTER + policies, cluster, world, connection(text)) for text in desired} == desired


@pytest.mark.every_case
@pytest.mark.parametrize("seed", range(4))
def test_random_clusters(seed, request):
    """After random events oracle, evaluator and filter decide nearly 4,000 connections alike, at night 100,000.

    The sets are those that the differences of the plan produce, as in the kernel, and those of an agent that starts.
    """
    verdicts = {True: 0, False: 0}
    for part in range(25 if request.config.getoption("--nightly") else 1):
        world = World(Random(seed + 4 * part))
        for number in range(100):
            for _ in range(world.random.choice((1, 1, 2, 5, 20))):
                world.change()
            world.update()
            check_table(world)
            assert number % 5 or world.table == world.table_of_new_agent()
            documents = world.documents()
            cluster = parsed(documents)
            owners = {address: one for address, one in world.selection.owners.items() if one.can_have_policies}
            assert identities(cluster.pods) == identities(owners)
            for packet in (world.connection() for _ in range(10)):
                source, destination = (cluster.pods.get(each) for each in packet[:2])
                if source is None or source is not destination:  # no packet leaves a pod with two networks
                    verdicts[judge(documents, cluster, world, packet)] += 1
    assert min(verdicts.values()) > 50 * (part + 1), verdicts


def identities(pods):
    """Returns what pods are except for their addresses, by address."""
    return {address: one._replace(precedence=0, addresses=()) for address, one in pods.items()}


def check_table(world):
    """A table has exactly the sets and chains that are used, under valid names, and intervals that do not touch.

    The selection keeps no other sets.
    """
    table = world.table
    assert world.kernel == {name: set(elements) for name, elements in table.sets.items()}
    assert {name for verdict in table.verdicts.values() for name in verdict if name} == table.chains.keys()
    rules = [rule for chain in table.chains.values() for rule in chain.rules]
    assert {name for rule in rules for name in (rule.peer_set, rule.port_set, rule.pair_set) if name} == set(table.sets)
    assert all(re.fullmatch(r"[a-z0-9-]{1,31}", name) for name in (*table.chains, *table.sets))
    for name, elements in table.sets.items():
        if name[0] in "bt":
            assert all(int(one[1]) + 1 < int(next_one[0]) for one, next_one in pairwise(sorted(elements)))
            assert all(int(first) <= int(last) for first, last in elements)
            assert len(elements) > (name[0] == "t")  # one range of ports is in the rule
    assert len(world.selection.peer_sets) == len([name for name in table.sets if name[0] in "sp"])
