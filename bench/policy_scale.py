"""The agent's part for network policies in a large cluster: memory, the first list, and the cost of an event.

`python -m bench.policy_scale` prints a table; no root is needed. It measures parsing, the selection and the plan of one
node of 110 pods; neither the API server's answers nor the kernel are part of it. One rule: processor time, so that
other processes hardly change the figures; memory is that of the whole process.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from random import Random
from typing import Any

from agent.policy.objects import parse_namespace, parse_pod, parse_policy
from agent.policy.plan import FilterPlan
from agent.policy.selection import PolicySelection
from attachment.policy.records import PodRecord

PODS, POLICIES, NAMESPACES, APPS, LOCAL_PODS = 100_000, 2_000, 500, 20, 110
_PAGE = 500
_EVENTS = 2_000
_FIRST_ADDRESS = int(IPv4Address("10.0.0.0"))

Document = dict[str, Any]


def pod_document(number: int) -> Document:
    """Returns the object of a pod, with what makes real ones large; one of ten has labels of its own."""
    namespace, app = f"team-{number % NAMESPACES}", f"app-{number // NAMESPACES % APPS}"
    labels = {"app": app, "tier": "web" if number % 3 else "db", "pod-template-hash": f"{namespace}-{app}"}
    if not number % 10:
        labels["statefulset.kubernetes.io/pod-name"] = f"{app}-{number}"
    address = str(IPv4Address(_FIRST_ADDRESS + number))
    environment = [{"name": f"VARIABLE_{n}", "value": "value" * 6} for n in range(10)]
    container = {"name": "app", "image": "registry/" + "x" * 60, "env": environment}
    return {
        "metadata": {
            "namespace": namespace,
            "name": f"{app}-5f7d8c9b6d-x{number:06}",
            "uid": f"{number:08x}-5f7d-8c9b-6dab-0123456789ab",
            "labels": labels,
            "creationTimestamp": "2026-11-29T00:00:00Z",
        },
        "spec": {
            "nodeName": f"node-{number % 1000}",
            "containers": [{**container, "ports": [{"name": "http", "containerPort": 8080}]}],
        },
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    }


def policy_document(number: int) -> Document:
    """Returns the object of a policy, with peers of two namespaces; one of a hundred has all pods as peers."""
    namespace, app = f"team-{number % NAMESPACES}", number // NAMESPACES % APPS
    other = {"matchLabels": {"kubernetes.io/metadata.name": f"team-{number * 7 % NAMESPACES}"}}
    peers: list[Document] = [
        {"podSelector": {"matchLabels": {"app": f"app-{(app + 1) % APPS}"}}},
        {"namespaceSelector": other, "podSelector": {"matchLabels": {"tier": "web"}}},
    ]
    if not number % 100:
        peers.append({"namespaceSelector": {}})
    block = {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}
    return {
        "metadata": {"namespace": namespace, "name": f"policy-{number}"},
        "spec": {
            "podSelector": {"matchLabels": {"app": f"app-{app}"}} if number % 4 else {},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": peers, "ports": [{"port": 8080}]}],
            "egress": [{"to": peers, "ports": [{"port": "http"}, {"port": 53, "protocol": "UDP"}]}, {"to": [block]}],
        },
    }


class _Agent:
    """The selection and the plan of a node."""

    def __init__(self) -> None:
        self.selection = PolicySelection()
        self.plan = FilterPlan(self.selection)

    def load(self, pods: int) -> tuple[float, float]:
        """Takes in everything; returns the processor time of the pods' list and, of this, of the JSON parser."""
        for number in range(NAMESPACES):
            name = f"team-{number}"
            metadata = {"name": name, "labels": {"kubernetes.io/metadata.name": name}}
            self.selection.set_namespace(parse_namespace({"metadata": metadata}))
        for number in range(POLICIES):
            self.selection.set_policy(parse_policy(policy_document(number)))
        all_s = json_s = 0.0
        for first in range(0, pods, _PAGE):
            text = json.dumps([pod_document(number) for number in range(first, min(first + _PAGE, pods))])
            start_s = time.process_time()
            items = json.loads(text)
            json_s += time.process_time() - start_s
            for item in items:
                self.selection.set_pod(parse_pod(item))
            all_s += time.process_time() - start_s
        return all_s, json_s

    def add_local(self, number: int) -> None:
        """Takes in the record of a pod that starts on this node."""
        pod = parse_pod(pod_document(number))
        record = PodRecord("b", pod.namespace, pod.name, pod.uid, "n", "c", "eth0", "v", "", pod.addresses, "bridge")
        self.selection.set_local(pod.name, record)
        self.plan.update()

    def change_pod(self, document: Document) -> None:
        """Takes in a pod's event."""
        self.selection.set_pod(parse_pod(document))
        self.plan.update()

    def change_policy(self, number: int) -> None:
        """Takes in a policy without its ingress rules."""
        document = policy_document(number)
        document["spec"]["ingress"] = []
        self.selection.set_policy(parse_policy(document))
        self.plan.update()


def resident_mib() -> float:
    """Returns the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(events: Iterator[Callable[[], None]]) -> str:
    """Returns the processor time of events: median, 99th percentile and maximum."""
    costs = []
    for event in events:
        start_s = time.process_time()
        event()
        costs.append((time.process_time() - start_s) * 1000)
    costs.sort()
    return f"{costs[len(costs) // 2]:.2f} | {costs[len(costs) * 99 // 100]:.2f} | {costs[-1]:.1f}"


def main(pods: int = PODS) -> None:
    """Prints the table."""
    random, agent, before_mib = Random(1), _Agent(), resident_mib()
    list_s, json_s = agent.load(pods)
    print(f"{pods:,} pods, {POLICIES:,} policies: {list_s:.1f} s for the list of pods, of which JSON {json_s:.1f} s;")
    print(f"{resident_mib():.0f} MiB, of which Python and modules {before_mib:.0f} MiB")
    local, sample = random.sample(range(pods), LOCAL_PODS), random.sample(range(pods), _EVENTS)

    def changed(numbers: list[int], **labels: str) -> Iterator[Callable[[], None]]:
        for number in numbers:
            document = pod_document(number)
            document["metadata"]["labels"].update(labels)
            document["metadata"]["deletionTimestamp"] = "2026-11-29T00:00:00Z"
            yield partial(agent.change_pod, document)

    print("| event | median ms | p99 ms | max ms |\n|---|---|---|---|")
    print("| pod starts on this node |", measure(partial(agent.add_local, number) for number in local), "|")
    print("| pod elsewhere, status only |", measure(changed(sample)), "|")
    print("| pod elsewhere, other labels |", measure(changed(sample, app="app-1", tier="web")), "|")
    print("| pod of this node, status only |", measure(changed(local)), "|")
    print("| pod of this node, other labels |", measure(changed(local, app="app-1")), "|")
    policies = random.sample(range(POLICIES), 500)
    print("| policy |", measure(partial(agent.change_policy, number) for number in policies), "|")
    elements = sum(map(len, agent.plan.update()[0].sets.values()))
    print(f"{resident_mib():.0f} MiB at the end, with {elements:,} elements of sets")


if __name__ == "__main__":
    main()
