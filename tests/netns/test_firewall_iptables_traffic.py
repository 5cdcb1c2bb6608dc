"""Packets with iptables: pods on two bridges of a node whose chain FORWARD drops by default, and a client outside."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.attaching import Network, address, reaches
from tests.support.firewall_tables import Firewall
from tests.support.namespaces import Namespace
from tests.support.publishing import CLIENT, CLIENT6, GATEWAY, disable_dad


class Pod(NamedTuple):
    """An attached pod with its addresses, its firewall and its network."""

    namespace: Namespace
    ip: str
    ip6: str
    firewall: Firewall
    network: Network
    result: dict[str, Any]


@dataclass(frozen=True)
class Node:
    """A node, and the pods that are attached to its bridges."""

    host: Namespace
    tools: Path
    store: Path
    pods: list[Pod] = field(default_factory=list)

    def attach(self, namespace, bridge, number, **keys):
        """Attaches a pod to a bridge with subnets of this number; `keys` are the firewall's configuration."""
        disable_dad(namespace)
        ranges = [[{"subnet": f"10.{number}.0.0/16"}], [{"subnet": f"fd00:{number}::/64"}]]
        ipam = {"type": "host-local", "ranges": ranges, "dataDir": str(self.store)}
        common = {"cniVersion": "1.0.0", "name": bridge}
        config = {**common, "type": "bridge", "bridge": bridge, "isDefaultGateway": True, "ipam": ipam}
        network = Network(self.host, config)
        result = network.add(namespace)
        keys = {**common, "type": "firewall", "prevResult": result, **keys}
        firewall = Firewall(self.host, keys, tools=self.tools)
        firewall.add(namespace.name)
        self.pods.append(Pod(namespace, address(result), address(result, 1), firewall, network, result))
        return self.pods[-1]

    def detach_all(self):
        for pod in reversed(self.pods):
            pod.firewall.delete(pod.namespace.name)
            pod.network.delete(pod.namespace, pod.result)


@pytest.fixture
def node(bin_dir, host, client, tools, store):
    """A node whose chain FORWARD drops by default, to which the client routes the pods' subnets."""
    for tool in ("iptables", "ip6tables"):
        host.run(f"{tools}/{tool}", "-P", "FORWARD", "DROP")
    disable_dad(host)
    client.ip("route", "add", "10.0.0.0/8", "via", "192.0.2.1")
    client.ip("-6", "route", "add", "fd00::/8", "via", "2001:db8::1")
    node = Node(host, tools, store)
    yield node
    node.detach_all()


def reach(pairs):
    """Returns for each pair (from, to) whether a ping is answered; all run in parallel, and a failure takes 1 s."""
    with ThreadPoolExecutor(len(pairs)) as pool:
        return list(pool.map(lambda pair: reaches(*pair, within_s=1), pairs))


@pytest.mark.parametrize("policy", ["open", "same-bridge", "isolated"])
def test_policy_decides_which_pods_are_reachable(node, client, host, new_sandbox, policy):
    """Pods reach the outside but are not reachable from there, and the policy decides which other pods they reach."""
    keys = {"backend": "iptables", "ingressPolicy": policy}
    is_isolated = policy == "isolated" and _enable_bridge_netfilter(host)
    first = node.attach(new_sandbox(), "foo", 10, **keys)
    second = node.attach(new_sandbox(), "foo", 10, **keys)
    other = node.attach(new_sandbox(), "bar", 11, **keys)
    for pod in (first, second, other):
        assert reaches(pod.namespace, CLIENT)
        assert reaches(pod.namespace, CLIENT6)
    assert reaches(first.namespace, GATEWAY.replace("22", "10"))
    assert reach([(client, first.ip), (client, first.ip6)]) == [False, False]
    across = [(pod.namespace, ip) for pod, to in ((first, other), (other, first)) for ip in (to.ip, to.ip6)]
    assert reach(across) == [policy == "open"] * 4
    within = [(pod.namespace, ip) for pod, to in ((first, second), (second, first)) for ip in (to.ip, to.ip6)]
    assert reach(within) == [not is_isolated] * 4


def _enable_bridge_netfilter(host):
    """Sends bridged frames through iptables; returns False if the kernel has no br_netfilter."""
    try:
        for name in ("iptables", "ip6tables"):
            host.set_sysctl(f"net/bridge/bridge-nf-call-{name}", "1")
    except FileNotFoundError:
        return False
    return True


def test_repeated_add_restores_flushed_rules(node, host, tools, new_sandbox):
    """A repeated ADD restores a pod's connectivity after another program flushed iptables."""
    pod = node.attach(new_sandbox(), "foo", 10, backend="iptables")
    assert reaches(pod.namespace, CLIENT)
    host.run(f"{tools}/iptables", "-F")
    assert reach([(pod.namespace, CLIENT)]) == [False]
    pod.firewall.add(pod.namespace.name)
    assert reaches(pod.namespace, CLIENT)
