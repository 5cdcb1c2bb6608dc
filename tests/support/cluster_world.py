"""A running cluster for tests: five nodes with agents and plugins, an API server, and a pod on each node."""

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.support import certificates
from tests.support.agent_nodes import SERVER, ClusterNode, Pod, cluster
from tests.support.attaching import reaches
from tests.support.cluster_agent import Agent, agents
from tests.support.kubernetes_double import NODES, KubernetesDouble
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.sockets import Reached, call, service


@dataclass
class World:
    """The cluster: its network, its nodes and agents, the API server, and a pod on each node, by node."""

    fabric: Namespace
    nodes: list[ClusterNode]
    server: Any  # a KubernetesDouble, or a KubeApiServer
    options: tuple[str, ...]
    is_routed: bool = False
    agents: list[Agent] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)

    def node_document(self, node: ClusterNode, number: int | None = None, **spec: Any) -> dict[str, Any]:
        """Returns a Node object, with the podCIDRs of `number`."""
        cidrs = pod_cidrs(number or node.number)
        addresses = [{"type": "InternalIP", "address": address} for address in node.addresses]
        return {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {"name": node.name},
            "spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs, **spec},
            "status": {"addresses": addresses},
        }

    def register(self, node: ClusterNode, number: int | None = None, **spec: Any) -> None:
        """Creates or replaces a Node object."""
        self.server.store.put(f"{NODES}/{node.name}", self.node_document(node, number, **spec))

    def remove(self, node: ClusterNode) -> None:
        """Deletes a Node object."""
        self.server.store.remove(f"{NODES}/{node.name}")

    def restart(self, number: int, *options: str) -> Agent:
        """Starts the agent of a node (from 0) in place of the former one; options replace those of the same name."""
        self.agents[number].stop()
        replaced = tuple(option.partition("=")[0] for option in options)
        kept = [option for option in self.options if not option.startswith(replaced)]
        self.agents[number] = Agent(self.nodes[number], *kept, *options)
        return self.agents[number]

    def call(self, source: int, target: int, protocol: str = "tcp", version: int = 4) -> Reached | None:
        """Calls a service in the pod of node `target` from the pod of node `source` (from 0)."""
        ip = self.pods[target].addresses[version]
        with service(self.pods[target].namespace, protocol, ip) as server:
            return call([server], self.pods[source].namespace, protocol, ip, 80)


def pod_cidrs(number: int) -> list[str]:
    """Returns the podCIDRs of a node."""
    return [f"10.244.{number}.0/24", f"fd00:244:{number}::/64"]


def assert_reach(*pods: Pod) -> None:
    """Asserts that pods reach each other, IPv4 and IPv6, with their addresses."""
    for one, other in itertools.permutations(pods, 2):
        for address in other.addresses.values():
            assert eventually(partial(reaches, one.namespace, address, within_s=1)), (one.addresses, other.addresses)


def options_of(directory: Path, server: KubernetesDouble) -> tuple[str, ...]:
    """Returns the agent's options for an API server."""
    token = directory / "token"
    token.write_text("admin\n")
    return f"--server={server.url}", f"--ca-file={directory / 'ca.crt'}", f"--token-file={token}"


@contextlib.contextmanager
def served(directory: Path, *options: str, count: int, routed: bool = False) -> Iterator[World]:
    """Yields nodes and an API server that runs, without Node objects and agents."""
    certificates.create(directory, SERVER)
    with cluster(directory, count, routed=routed) as (fabric, nodes):
        with fabric.entered():
            server = KubernetesDouble(directory, SERVER)
        with server.running():
            yield World(fabric, nodes, server, (*options_of(directory, server), *options), routed)


@contextlib.contextmanager
def world(directory: Path, *options: str, count: int = 5, routed: bool = False, pods: bool = True) -> Iterator[World]:
    """Yields a running cluster whose agents are ready."""
    with served(directory, *options, count=count, routed=routed) as created:
        for node in created.nodes:
            created.register(node)
        with agents(created.nodes, *created.options) as created.agents:
            created.pods = [node.add() for node in created.nodes] if pods else []
            # Duplicate address detection of the new links ends first.
            for pod in created.pods[1:]:
                assert eventually(partial(reaches, created.pods[0].namespace, pod.addresses[6], within_s=1))
            yield created
