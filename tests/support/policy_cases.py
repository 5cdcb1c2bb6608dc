"""Random clusters with network policies, as the API server returns their objects, and connections inside them.

One rule: every object is one that an API server accepts, and one seed makes one cluster.
"""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network
from random import Random

from tests.support.policy_oracle import Connection, Document

NODES = ("node-1", "node-2", "node-3")
NAMESPACES = ("shop", "web", "data", "jobs", "infra", "test")
POD_LABELS = {"app": ("front", "back", "cache"), "tier": ("a", "b"), "canary": ("yes", "")}
NAMESPACE_LABELS = {"team": ("red", "blue"), "stage": ("prod", "dev")}
PORT_NAMES = ("http", "dns")
PORTS = (1, 53, 80, 443, 8080, 8443, 65535)
PROTOCOLS = ("TCP", "TCP", "TCP", "UDP", "SCTP")
REMOTE = {
    4: ("203.0.113.7", "203.0.113.200", "8.8.8.8", "10.244.9.9"),
    6: ("2001:db8::7", "2001:db8:1::1", "fd00:9::9"),
}


class ClusterMaker:
    """Makes one cluster from a seed."""

    def __init__(self, seed: object) -> None:
        self.random = Random(f"policies {seed}")
        self.versions = self.random.choice([(4,), (6,), (4, 6)])
        self.focus = self.random.choice(
            ("peers", "ports", "")
        )  # else ports and peers together hide each other's faults
        self.documents: list[Document] = []
        self.uids = 0

    def documents_of_cluster(self) -> list[Document]:
        """Returns the documents of nodes, namespaces, pods and policies, in a random order."""
        random = self.random
        self.documents += [self._node(number) for number in range(len(NODES))]
        self.names = random.sample(NAMESPACES, random.randint(3, 6))
        self.documents += [self._namespace(name) for name in self.names]
        pods = [self._pod(number) for number in range(random.randint(8, 20))]
        self.documents += pods
        self._reuse_addresses(pods)
        self.addresses = addresses_of(self.documents)
        self.documents += [self._policy(number) for number in range(random.choice((1, 1, 2, 2, 3, 5, 7)))]
        random.shuffle(self.documents)
        return self.documents

    def _maybe(self, probability: float) -> bool:
        return self.random.random() < probability

    def _metadata(self, name: str, labels: dict[str, str], namespace: str = "") -> Document:
        self.uids += 1
        metadata: Document = {"name": name, "uid": f"uid-{self.uids}", "creationTimestamp": "2026-11-29T06:00:00Z"}
        if namespace:
            metadata["namespace"] = namespace
        return metadata | ({"labels": labels} if labels else {})

    def _labels(self, of: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
        return {key: self.random.choice(values) for key, values in of.items() if self._maybe(0.7)}

    def _node(self, number: int) -> Document:
        addresses = [{"type": "Hostname", "address": NODES[number]}]
        addresses += [{"type": "InternalIP", "address": node_address(number, version)} for version in self.versions]
        metadata = self._metadata(NODES[number], {})
        return {"kind": "Node", "metadata": metadata, "spec": {}, "status": {"addresses": addresses}}

    def _namespace(self, name: str) -> Document:
        labels = {"kubernetes.io/metadata.name": name, **self._labels(NAMESPACE_LABELS)}
        return {"kind": "Namespace", "metadata": self._metadata(name, labels), "status": {"phase": "Active"}}

    def _pod(self, number: int) -> Document:
        """Returns a pod: most run; others have no address, have ended, are terminating, or use their node's network."""
        random, node = self.random, self.random.randrange(len(NODES))
        metadata = self._metadata(f"pod-{number}", self._labels(POD_LABELS), random.choice(self.names))
        phase = random.choices(("Running", "Pending", "Succeeded", "Failed", "Unknown"), (80, 10, 5, 5, 2))[0]
        if self._maybe(0.1):
            metadata |= {"deletionTimestamp": "2026-11-29T07:00:00Z", "deletionGracePeriodSeconds": 30}
        spec: Document = {"containers": [self._container() for _ in range(random.randint(1, 2))]}
        if self._maybe(0.6):
            spec["initContainers"] = [
                self._container() | random.choice([{}, {"restartPolicy": "Always"}])
                for _ in range(random.randint(1, 2))
            ]
        status: Document = {"phase": phase}
        if phase == "Pending" and self._maybe(0.5):
            return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": status}
        spec["nodeName"] = NODES[node]
        versions = [random.choice(self.versions)] if self._maybe(0.3) else self.versions
        addresses = [str(ip_network(pod_network(node, version))[number + 5]) for version in versions]
        if self._maybe(0.12):
            spec["hostNetwork"] = True
            addresses = [node_address(node, version) for version in versions]
        if self._maybe(0.94):
            status |= pod_ips(addresses)
        return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": status}

    def _container(self) -> Document:
        self.uids += 1
        container: Document = {"name": f"container-{self.uids}", "image": "example.org/main:1"}
        ports = []
        for name in self.random.sample(PORT_NAMES, self.random.choice((0, 1, 2, 2))):
            port = {"name": name, "containerPort": self.random.choice(PORTS), "protocol": self.random.choice(PROTOCOLS)}
            if self._maybe(0.15):
                del port["name"]
            if port["protocol"] == "TCP" and self._maybe(0.2):
                del port["protocol"]
            ports.append(port)
        return container | ({"ports": ports} if ports else {})

    def _reuse_addresses(self, pods: Sequence[Document]) -> None:
        """Gives the addresses of running pods to pods that have ended, which the API server still shows with them."""
        running = [pod for pod in pods if pod["status"]["phase"] == "Running" and "podIPs" in pod["status"]]
        for pod in pods:
            if pod["status"]["phase"] in ("Succeeded", "Failed") and running and self._maybe(0.7):
                pod["status"] |= pod_ips([each["ip"] for each in self.random.choice(running)["status"]["podIPs"]])

    def _policy(self, number: int) -> Document:
        spec: Document = {"podSelector": self._selector(POD_LABELS, empty=0.8 if self.focus else 0.3)}
        for direction, field in (("ingress", "from"), ("egress", "to")):
            if self._maybe(0.65):
                spec[direction] = [self._rule(field) for _ in range(self.random.choice((0, 1, 1, 1, 2, 3)))]
        types = self.random.choice([None, ["Ingress"], ["Egress"], ["Ingress", "Egress"]])
        if types:
            spec["policyTypes"] = types
        if spec.get("egress") == [] and not types:
            del spec["egress"]  # no API server returns it: it is empty there, and the policy has policyTypes
        metadata = self._metadata(f"policy-{number}", {}, self.random.choice(self.names))
        return {"kind": "NetworkPolicy", "metadata": metadata, "spec": spec}

    def _rule(self, field: str) -> Document:
        if self._maybe(0.06):
            return {}
        rule = {}
        if self._maybe(0.5 if self.focus == "ports" else 0.9):
            rule[field] = [self._peer() for _ in range(self.random.choice((0, 1, 1, 1, 2)))]
        if self._maybe(0.3 if self.focus == "peers" else 0.9):
            rule["ports"] = [self._port() for _ in range(self.random.choice((0, 1, 1, 2, 3)))]
        return rule

    def _peer(self) -> Document:
        shape = self.random.randrange(5)
        if shape < 2:
            return {"ipBlock": self._block()}
        peer = {}
        if shape != 2:
            peer["podSelector"] = self._selector(POD_LABELS, empty=0.25)
        if shape != 3:
            names = {"kubernetes.io/metadata.name": tuple(self.names)}
            peer["namespaceSelector"] = self._selector(NAMESPACE_LABELS | names, empty=0.2)
        return peer

    def _selector(self, labels: Mapping[str, tuple[str, ...]], empty: float) -> Document:
        if self._maybe(empty):
            return {}
        selector: Document = {}
        shape = self.random.randrange(4)
        if shape in (0, 1):
            keys = self.random.sample(list(labels), self.random.choice((1, 1, 1, 2)))
            selector["matchLabels"] = {key: self.random.choice(labels[key]) for key in keys}
        if shape in (1, 2, 3):
            selector["matchExpressions"] = [self._expression(labels) for _ in range(self.random.choice((1, 1, 2)))]
        return selector

    def _expression(self, labels: Mapping[str, tuple[str, ...]]) -> Document:
        key = self.random.choice([*labels, "absent"])
        operator = self.random.choice(("In", "NotIn", "Exists", "DoesNotExist"))
        if operator not in ("In", "NotIn"):
            return {"key": key, "operator": operator}
        values = labels.get(key, ("x",))
        values = tuple(self.random.sample(values, self.random.randint(1, len(values))))
        return {"key": key, "operator": operator, "values": [*values]}

    def _block(self) -> Document:
        """Returns a block around an address of the cluster or of a remote host, and smaller ones inside it."""
        random = self.random
        address = random.choice(self.addresses)
        size = ip_address(address).max_prefixlen
        length = random.choice((0, size // 4, size // 2, size * 3 // 4, size))
        network = ip_network((address, length), strict=False)
        nearby = [each for each in self.addresses if ip_address(each) in network]
        excepts = []
        for _ in range(random.choice((0, 0, 1, 2)) if length < size else 0):
            longer = min(size, length + random.choice((1, size // 4, size // 2, size)))
            excepts.append(str(ip_network((random.choice(nearby), longer), strict=False)))
        text = f"{address}/{length}" if self._maybe(0.1) else str(network)  # host bits: accepted by older servers
        if self._maybe(0.1) and size == 128:
            text = f"{network.network_address.exploded.upper()}/{length}"
        return {"cidr": text} | ({"except": excepts} if excepts else {})

    def _port(self) -> Document:
        port: Document = {}
        if self._maybe(0.6):
            port["protocol"] = self.random.choice(PROTOCOLS)
        match self.random.randrange(8):
            case 0 | 1:
                port["port"] = self.random.choice(PORTS)
            case 2 | 3 | 4:
                port["port"] = self.random.choice(PORT_NAMES)
            case 5 | 6:
                port["port"], port["endPort"] = sorted((self.random.choice(PORTS), self.random.choice(PORTS)))
        return port


def node_address(node: int, version: int) -> str:
    """Returns a node's address."""
    return f"192.168.0.{node + 1}" if version == 4 else f"fd01::{node + 1}"


def pod_network(node: int, version: int) -> str:
    """Returns the network of a node's pods."""
    return f"10.244.{node}.0/24" if version == 4 else f"fd00:{node}::/64"


def pod_ips(addresses: Sequence[str]) -> Document:
    """Returns the fields of a pod's status with its addresses."""
    return {"podIP": addresses[0], "podIPs": [{"ip": address} for address in addresses]}


def addresses_of(documents: Sequence[Document]) -> list[str]:
    """Returns the addresses of pods and nodes and of a few remote hosts, in the cluster's versions of IP."""
    texts = [each["ip"] for document in documents for each in _pod_ips(document)]
    nodes = [
        each["address"]
        for document in documents
        for each in document.get("status", {}).get("addresses", ())
        if each["type"] == "InternalIP"
    ]
    versions = {ip_address(text).version for text in nodes}
    return texts + nodes + [text for version in sorted(versions) for text in REMOTE[version]]


def make_cluster(seed: object) -> list[Document]:
    """Returns the documents of a random cluster."""
    return ClusterMaker(seed).documents_of_cluster()


def make_connections(seed: object, documents: Sequence[Document], count: int) -> list[Connection]:
    """Returns random connections in a cluster: an end in a policy's namespace, mostly at a port that it names."""
    random = Random(f"connections {seed}")
    addresses = addresses_of(documents)
    policies = [document for document in documents if document["kind"] == "NetworkPolicy"]
    return [_connection(random, documents, addresses, random.choice(policies)) for _ in range(count)]


def _connection(random: Random, documents: Sequence[Document], addresses: list[str], policy: Document) -> Connection:
    namespace, direction = policy["metadata"]["namespace"], random.choice(("ingress", "egress"))
    pods = [document for document in documents if document["metadata"].get("namespace") == namespace]
    near = [each["ip"] for pod in pods for each in _pod_ips(pod)]
    subject = random.choice(near or addresses)
    rule = random.choice(policy["spec"].get(direction) or [{}])
    peer = random.choice(rule.get("from") or rule.get("to") or [{}])
    aims = near if peer.keys() == {"podSelector"} else addresses
    if "ipBlock" in peer:
        aims = [each for each in addresses if ip_address(each) in ip_network(peer["ipBlock"]["cidr"], strict=False)]
    same = [
        [each for each in some if ip_address(each).version == ip_address(subject).version] for some in (aims, addresses)
    ]
    other = random.choice(same[0] if same[0] and random.random() < 0.7 else same[1])
    source, destination = (other, subject) if direction == "ingress" else (subject, other)
    return Connection(source, destination, *_destination_port(random, documents, destination, rule))


def _destination_port(random: Random, documents: Sequence[Document], address: str, rule: Document) -> tuple[str, int]:
    """Returns a protocol and a port: mostly those of a rule, or a neighbour."""
    port = random.choice(rule.get("ports") or [{}])
    protocol = str(port.get("protocol", "TCP")).lower()
    if random.random() < 0.2:
        protocol = random.choice(("tcp", "udp", "sctp", "icmp"))
    number = random.choice([port.get("port"), port.get("endPort", port.get("port"))])
    if isinstance(number, str):
        number = random.choice(_numbers(documents, address, number) or PORTS)
    number = (number or random.choice(PORTS)) + random.choice((-1, 0, 0, 0, 0, 1))
    return protocol, 0 if protocol == "icmp" else min(max(number, 1), 65535)


def _pod_ips(pod: Document) -> list[Document]:
    return pod.get("status", {}).get("podIPs") or []


def _numbers(documents: Sequence[Document], address: str, name: str) -> list[int]:
    """Returns the numbers of the ports with a name in pods that show an address, also of those that match nothing."""
    return [
        port["containerPort"]
        for pod in documents
        if any(each["ip"] == address for each in _pod_ips(pod))
        for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
        for port in container.get("ports", ())
        if port.get("name") == name
    ]
