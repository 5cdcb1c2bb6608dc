"""A random cluster as the API's documents, the events of one of its nodes, and an interpreter of the node's filter.

The world computes by itself what the cluster is after each event, so that the evaluator's answer does not depend on the
selection. Names, labels and addresses are few: selectors match, and pods get each other's addresses.
"""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from agent.policy.evaluator import ClusterState, Decision, PodConnection, decide_direction
from agent.policy.filter_table import EMPTY
from agent.policy.objects import EGRESS, INGRESS, parse_namespace, parse_pod, parse_policy
from agent.policy.plan import FilterPlan
from agent.policy.selection import PolicySelection
from attachment.policy.records import PodRecord
from tests.support.policy_oracle import Document, of_kind

NODE = "n1"
NODES = {"n1": frozenset(map(ip_address, ("192.0.2.1", "fd00::1"))), "n2": frozenset({ip_address("192.0.2.2")})}
FOREIGN = tuple(map(ip_address, ("198.51.100.7", "203.0.113.1", "2001:db8::1", "192.0.2.1", "192.0.2.2", "fd00::1")))
NAMESPACES = ("shop", "web", "db")
LOCAL_NAMES = ("p-0", "p-1", "p-2")
POD_NAMES = (*LOCAL_NAMES, "p-3", "p-4")
PROTOCOLS = ("TCP", "UDP", "SCTP")
PORT_NAMES = ("http", "dns")
PORTS = (53, 80, 81, 443)
LABELS = {"app": ("a", "b", "c"), "tier": ("x", "y"), "env": ("",)}
ADDRESSES = [(f"10.0.0.{n}", f"fd00:1::{n}") for n in range(1, 13)]
BLOCKS = ("10.0.0.5/28", "10.0.0.4/30", "10.0.0.6/32", "0.0.0.0/0", "198.51.100.0/24", "FD00:1:0::/125", "::/0")
_CHANGES = (("metadata", "labels"), ("metadata", "creationTimestamp"), ("metadata", "deletionTimestamp"),
            ("spec", "containers"), ("status", ""))  # fmt: skip


def record_of(namespace, name, uid, addresses, container="c"):
    """Returns the record of a pod on this node."""
    return PodRecord("boot", namespace, name, uid, "net", container, "eth0", "veth0", "", tuple(addresses), "bridge")


def node_documents() -> list[Document]:
    """Returns the documents of the nodes."""
    return [
        {"kind": "Node", "metadata": {"name": name},
         "status": {"addresses": [{"type": "InternalIP", "address": str(each)} for each in addresses]}}
        for name, addresses in NODES.items()
    ]  # fmt: skip


def parsed(documents: Sequence[Document]) -> ClusterState:
    """Returns a cluster as the agent reads it."""
    return ClusterState(
        pods_by_address(map(parse_pod, of_kind(documents, "Pod"))),
        {each["metadata"]["name"]: parse_namespace(each) for each in of_kind(documents, "Namespace")},
        [parse_policy(policy) for policy in of_kind(documents, "NetworkPolicy")],
        NODES,
    )


def decide(cluster: ClusterState, connection: PodConnection) -> Decision:
    """Returns whether both ends allow a connection: the decision of one end.

    That is the end that denies it, else the one that policies isolate, else one with an exemption, else one that is a
    pod; the source if both ends are alike.
    """
    ends = [decide_direction(cluster, connection, direction) for direction in (EGRESS, INGRESS)]
    return max(ends, key=lambda end: (not end.allowed, bool(end.policies), bool(end.exemption), bool(end.pod)))


def pods_by_address(pods):
    """Returns the pod that has each address: of several the one with the highest precedence, then the highest UID."""
    ordered = sorted(pods, key=lambda pod: (pod.precedence, pod.uid))
    return {address: pod for pod in ordered if pod.can_have_policies for address in pod.addresses}


class Documents:
    """Creates random documents of the API."""

    def __init__(self, random):
        self.random = random

    def is_one_of(self, number):
        return not self.random.randrange(number)

    def labels(self):
        return {key: self.random.choice(values) for key, values in LABELS.items() if not self.is_one_of(3)}

    def namespace(self, name):
        return {"kind": "Namespace", "metadata": {"name": name, "labels": self.labels()}}

    def pod(self, namespace, name, uid):
        random = self.random
        addresses = random.choice(ADDRESSES)[: random.choice((1, 2, 2))]
        listed = len(addresses) > 1 or self.is_one_of(2)
        main, second, init = ([self.container_port()] if self.is_one_of(2) else [] for _ in range(3))
        return {
            "kind": "Pod",
            "metadata": {"namespace": namespace, "name": name, "uid": uid, "labels": self.labels()}
            | {"creationTimestamp": f"2026-11-29T00:00:{random.randrange(60):02}Z"}
            | ({"deletionTimestamp": "2026-11-29T01:00:00Z"} if self.is_one_of(8) else {}),
            "spec": {"nodeName": NODE if name in LOCAL_NAMES else "n2", "hostNetwork": self.is_one_of(9)}
            | {"containers": [{"ports": main}, {"ports": second}]}
            | {"initContainers": [{"ports": init, **random.choice(({}, {"restartPolicy": "Always"}))}]},
            "status": {"podIP": addresses[0], "podIPs": [{"ip": each} for each in addresses] if listed else None}
            | {"phase": random.choice(("Pending", *["Running"] * 6, "Succeeded", "Failed"))},
        }

    def container_port(self):
        random = self.random
        port = {"name": random.choice(PORT_NAMES), "containerPort": random.choice(PORTS)}
        return port | random.choice([{}, *({"protocol": protocol} for protocol in PROTOCOLS)])

    def selector(self):
        random = self.random
        expressions: list[Any] = []
        for _ in range(random.choice((0, 0, 0, 1, 1, 2))):
            key = random.choice(tuple(LABELS))
            operator = random.choice(("In", "NotIn", "Exists", "DoesNotExist"))
            expressions.append({"key": key, "operator": operator})
            if operator in ("In", "NotIn"):
                expressions[-1]["values"] = random.sample(LABELS[key], random.randint(1, len(LABELS[key])))
        labels = sorted(self.labels().items())[: random.choice((0, 1))]
        return {"matchLabels": dict(labels), "matchExpressions": expressions}

    def port(self):
        random = self.random
        port = {"protocol": random.choice(PROTOCOLS), "port": random.choice((*PORTS, *PORT_NAMES, None))}
        if isinstance(port["port"], int) and self.is_one_of(3):
            port["endPort"] = port["port"] + random.choice((0, 1, 400))
        if self.is_one_of(6):
            del port["protocol"]
        return port

    def peer(self):
        random = self.random
        if self.is_one_of(3):
            block = {"cidr": random.choice(BLOCKS), "except": random.sample(BLOCKS, random.choice((0, 0, 1, 2)))}
            return {"ipBlock": block}
        peer = {key: self.selector() for key in ("podSelector", "namespaceSelector") if self.is_one_of(2)}
        return peer or {"podSelector": {}}

    def rules(self, peers_key):
        number = self.random.choice((0, 1, 1, 2, 3))
        rules = [
            {
                peers_key: [self.peer() for _ in range(self.random.choice((0, 1, 1, 2)))],
                "ports": [self.port() for _ in range(self.random.choice((0, 0, 0, 1, 3)))],
            }
            for _ in range(number)
        ]
        return [{key: value or None for key, value in rule.items() if value or self.is_one_of(2)} for rule in rules]

    def policy(self, namespace, name):
        types = self.random.choice((["Ingress"], ["Egress"], ["Ingress", "Egress"], [], None))
        spec: dict[str, Any] = {"podSelector": self.selector(), "policyTypes": types}
        for key, peers_key in (("ingress", "from"), ("egress", "to")):
            if not self.is_one_of(5):
                spec[key] = self.rules(peers_key)
        return {"kind": "NetworkPolicy", "metadata": {"namespace": namespace, "name": name}, "spec": spec}


class World:
    """A cluster that changes at random, with the selection and the plan of one node, which get its events."""

    def __init__(self, random):
        self.random, self.new = random, Documents(random)
        self.selection = PolicySelection()
        self.plan = FilterPlan(self.selection)
        self.table = EMPTY
        self.kernel: dict[str, set[Any]] = {}  # the sets, only by the differences that the plan reports
        self.pods, self.namespaces, self.policies, self.records = {}, {}, {}, {}
        self.last_pods = {}  # by record: the document that the pod has or had
        self.released = {}
        self.uids = 0

    def add(self, document, selection=None):
        """Adds an object; a running pod of this node also gets its record."""
        selection = selection or self.selection
        if document["kind"] == "Namespace":
            selection.set_namespace(parse_namespace(document))
        elif document["kind"] == "NetworkPolicy":
            selection.set_policy(parse_policy(document))
        elif document["kind"] == "Pod":
            pod = parse_pod(document)
            selection.set_pod(pod)
            if pod.node == NODE and pod.can_have_policies:
                record = record_of(pod.namespace, pod.name, pod.uid, pod.addresses, pod.uid)
                self.records[record.file_name], self.last_pods[record.file_name] = record, document
                selection.set_local(record.file_name, record)

    def change(self):
        """Makes a random event."""
        random = self.random
        kinds = (self.change_pod, self.change_pod, self.change_record, self.change_policy, self.change_namespace)
        random.choice(kinds)(random.choice(NAMESPACES))

    def change_namespace(self, name):
        if name in self.namespaces and self.new.is_one_of(4):
            del self.namespaces[name]
            self.selection.remove_namespace(name)
        else:
            self.namespaces[name] = self.new.namespace(name)
            self.selection.set_namespace(parse_namespace(self.namespaces[name]))

    def change_policy(self, namespace):
        name = self.random.choice(("one", "two", "three"))
        if (namespace, name) in self.policies and self.new.is_one_of(3):
            del self.policies[namespace, name]
            self.selection.remove_policy(namespace, name)
        else:
            self.policies[namespace, name] = self.new.policy(namespace, name)
            self.selection.set_policy(parse_policy(self.policies[namespace, name]))

    def change_pod(self, namespace):
        key = (namespace, self.random.choice(POD_NAMES))
        old = self.pods.get(key)
        old_uid = old["metadata"]["uid"] if old else ""
        if old and self.new.is_one_of(4):
            del self.pods[key]
            self.released.pop(old_uid, None)
            self.selection.remove_pod(*key)
            return
        uid = old_uid if old and not self.new.is_one_of(4) else f"u{self.uids + 1}"
        self.uids += 1
        pod = self.new.pod(*key, uid)
        if old and old_uid == uid:  # one field changes
            section, field = self.random.choice(_CHANGES)
            pod = old | {section: old[section] | {field: pod[section].get(field)} if field else pod[section]}
        self.pods[key] = pod
        if old_uid != uid:
            self.released.pop(old_uid, None)
        self.selection.set_pod(parse_pod(pod))
        for name, record in self.records.items():
            if (record.namespace, record.pod) == key and record.uid in ("", uid):
                self.last_pods[name] = pod

    def change_record(self, namespace):
        random = self.random
        free = sorted({*ADDRESSES} - {tuple(map(str, record.addresses)) for record in self.records.values()})
        if self.records and (self.new.is_one_of(3) or not free):
            self.remove_record(random.choice(sorted(self.records)))
            return
        name = random.choice(LOCAL_NAMES)
        pod = self.pods.get((namespace, name))
        known_uid = pod["metadata"]["uid"] if pod else "later"
        uid = random.choice((known_uid, known_uid, known_uid, "", "later"))
        record = record_of(namespace, name, uid, map(ip_address, random.choice(free)), f"c{self.uids}")
        self.uids += 1
        same_name = {each.uid for each in self.records.values() if (each.namespace, each.pod) == (namespace, name)}
        if "" in same_name or (same_name and not uid):  # no runtime passes the UID to some ADDs only
            return
        self.records[record.file_name] = record
        self.last_pods[record.file_name] = pod if pod and uid in ("", known_uid) else None
        self.selection.set_local(record.file_name, record)

    def remove_record(self, name):
        record = self.records.pop(name)
        self.last_pods.pop(name)
        pod = self.pods.get((record.namespace, record.pod))
        if pod is not None and record.uid in ("", pod["metadata"]["uid"]):
            self.released.setdefault(pod["metadata"]["uid"], set()).update(map(str, record.addresses))
        self.selection.remove_local(name)

    def update(self):
        """Computes the table, and the kernel's sets by its differences."""
        before = self.table
        self.table, changes = self.plan.update()
        assert all(before.sets.get(name) is self.table.sets[name] for name in changes)
        for name, elements in self.table.sets.items():
            if before.sets.get(name) is not elements:
                self.kernel[name] = set(elements)
            elif name in changes:
                self.kernel[name] = (self.kernel[name] - set(changes[name].removed)) | set(changes[name].added)
        for name in self.kernel.keys() - self.table.sets.keys():
            del self.kernel[name]

    def table_of_new_agent(self):
        """Returns the table of an agent that starts now, but knows the objects that pods with records had."""
        selection = PolicySelection()
        for document in (*self.namespaces.values(), *self.policies.values()):
            self.add(document, selection)
        for name, record in self.records.items():
            last = self.last_pods[name]
            if last:
                selection.set_pod(parse_pod(self.without_released(last)))
            selection.set_local(name, record)
            if (record.namespace, record.pod) not in self.pods:
                selection.remove_pod(record.namespace, record.pod)
        for pod in self.pods.values():
            selection.set_pod(parse_pod(self.without_released(pod)))
        return FilterPlan(selection).update()[0]

    def documents(self) -> list[Document]:
        """Returns the cluster as the API would have it: the addresses of records are in their pods' status only."""
        recorded = {str(address) for record in self.records.values() for address in record.addresses}
        known: dict[str, list[Any]] = {}  # by UID: the document, and the addresses of the pod's records
        for name, pod in self.last_pods.items():
            if pod is not None:
                known.setdefault(pod["metadata"]["uid"], [pod]).extend(map(str, self.records[name].addresses))
        for pod in map(self.without_released, self.pods.values()):
            addresses = [each for each in _addresses(pod) if each not in recorded]
            known.setdefault(pod["metadata"]["uid"], [pod]).extend(addresses)
        pods = [_with_addresses(pod, addresses) for pod, *addresses in known.values()]
        return [*node_documents(), *self.namespaces.values(), *pods, *self.policies.values()]

    def without_released(self, pod):
        """Returns a pod's object without the addresses of its deleted records."""
        released = self.released.get(pod["metadata"]["uid"], ())
        return _with_addresses(pod, [each for each in _addresses(pod) if each not in released])

    def cluster(self):
        """Returns the cluster for the evaluator."""
        return parsed(self.documents())

    def known_addresses(self):
        """Returns the addresses of this node's pods whose objects are known."""
        return {each for name, one in self.records.items() if self.last_pods[name] for each in one.addresses}

    def decisions(self, cluster, connection):
        """Returns the evaluator's decisions at the ends on this node.

        None for a pod that reaches itself, which no packet leaves, and while an end's object is not known.
        """
        local = {address for record in self.records.values() for address in record.addresses}
        ends = [(end, way) for end, way in zip(connection, (EGRESS, INGRESS), strict=False) if end in local]
        if connection.source == connection.destination or not {end for end, _ in ends} <= self.known_addresses():
            return []
        return [decide_direction(cluster, connection, way) for _, way in ends]

    def connection(self):
        """Returns a random connection, one end of which is often a pod of this node."""
        random = self.random
        version = random.choice((4, 4, 6))
        local = [address for record in self.records.values() for address in record.addresses]
        others = [ip_address(pair[version == 6]) for pair in ADDRESSES] + [*FOREIGN]
        ends = [
            random.choice([address for address in each if address.version == version])
            for each in (local + others[:1], others)
        ]
        random.shuffle(ends)
        protocol = random.choice(("tcp", "tcp", "udp", "sctp", "icmp"))
        return PodConnection(
            ends[0], ends[1], protocol, 0 if protocol == "icmp" else random.choice((*PORTS, 444, 8080))
        )


class KernelWorld(World):
    """A random cluster whose node's filter is the kernel's."""

    def __init__(self, random, node_filter):
        super().__init__(random)
        self.node_filter = node_filter
        node_filter.repair(EMPTY)

    def update(self):
        """Applies the changes of the plan."""
        self.table, changes = self.plan.update()
        assert self.node_filter.apply(self.table, changes)


def _addresses(pod):
    status = pod["status"]
    return [each["ip"] for each in status["podIPs"]] if status["podIPs"] else [status["podIP"]]


def _with_addresses(pod, addresses):
    return pod | {"status": pod["status"] | {"podIP": "", "podIPs": [{"ip": each} for each in addresses]}}


def accepts(table, sets, connection, direction):
    """Returns whether the filter passes a packet in one direction, as the kernel evaluates its chains."""
    source, destination, protocol, port = connection
    subject, peer = (source, destination) if direction == "egress" else (destination, source)
    if source == destination or peer in NODES[NODE]:  # self4; output from a local source, or the hook input
        return True
    chain = getattr(table.verdicts[subject], direction) if subject in table.verdicts else ""
    return not chain or any(matches(rule, sets, peer, protocol, port) for rule in table.chains[chain].rules)


def matches(rule, sets, peer, protocol, port):
    """Returns whether a rule matches a packet."""

    def is_in(name, value):
        elements = sets[name]
        return any(first <= value <= last for first, last in elements) if name[0] in "bt" else value in elements

    return (
        rule.version in (0, peer.version)
        and (not rule.peer_set or is_in(rule.peer_set, peer))
        and rule.protocol in ("", protocol)
        and (rule.ports is None or rule.ports[0] <= port <= rule.ports[1])
        and (not rule.port_set or is_in(rule.port_set, port))
        and (not rule.pair_set or is_in(rule.pair_set, (peer, port)))
    )
