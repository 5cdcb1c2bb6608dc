"""The agent's metrics, in Prometheus' text format.

Names and units follow Prometheus' conventions; docs/agent.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest

from agent.pools.supply import PoolUsage


class PolicyMetrics(NamedTuple):
    """The metrics of network policies; `lag` is a function's value."""

    policies: Gauge
    pods: Gauge
    lag: Gauge
    dropped: Counter


class Metrics:
    """The counters and gauges; set in the main thread (`contact`: the watch's), read by the HTTP server's threads."""

    def __init__(self, version: str) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        info = self._gauge("info", "Version of the agent.", ("version",))
        info.labels(version).set(1)
        self.ready = self._gauge("ready", "1 if all conditions of /readyz are met.")
        self.condition = self._gauge("condition", "1 if this condition of /readyz is met.", ("condition",))
        self._nodes = self._gauge("nodes", "Nodes that the API server lists, this one included.")
        self._conflicts = self._gauge("pod_cidr_conflicts", "podCIDRs that overlap another one or contain an address.")
        self._routes = self._gauge("routes", "Routes to pods of other nodes in the kernel.")
        self._unreachable = self._gauge("unreachable_nodes", "Nodes to which the agent can make no route.")
        self.contact = self._gauge(
            "api_last_contact_timestamp_seconds", "When the API server answered last, in seconds since 1970."
        )
        self.api_failures = self._counter("api_failures", "Requests to the API server that failed.")
        self.changes = self._counter("kernel_changes", "Changes of routes, neighbours, FDB entries and the tunnel.")
        self.installs = self._counter("installs", "Runs of `podwire install`.", ("result",))
        self.collections = self._counter("garbage_collections", "Runs of `podwire gc`.", ("result",))

        self._addresses = self._gauge("pool_addresses", "Addresses in this node's blocks.", ("pool", "state"))
        self._blocks = self._gauge("pool_blocks", "Blocks of which this node allocates addresses.", ("pool",))

    def set_nodes(self, nodes: int, conflicts: int, routes: int, unreachable: int) -> None:
        """Sets the numbers of nodes, of conflicts and routes, and of the nodes to which the agent can make no route."""
        self._nodes.set(nodes)
        self._conflicts.set(conflicts)
        self._routes.set(routes)
        self._unreachable.set(unreachable)

    def set_pools(self, usage: Mapping[str, PoolUsage]) -> None:
        """Sets the numbers of each pool on this node."""
        self._blocks.clear()
        self._addresses.clear()
        for pool, numbers in usage.items():
            self._blocks.labels(pool).set(numbers.blocks)
            self._addresses.labels(pool, "used").set(numbers.used)
            self._addresses.labels(pool, "free").set(numbers.free)

    def add_policies(self) -> PolicyMetrics:
        """Adds the metrics of network policies, which only an agent with --network-policy has."""
        return PolicyMetrics(
            self._gauge("policies", "Network policies in the cluster."),
            self._gauge("policy_pods", "Pods of this node that a network policy selects."),
            self._gauge("policy_lag_seconds", "Since when a change of pods, namespaces or policies is not applied."),
            self._counter(
                "policy_dropped_packets",
                "Packets that network policies drop, by the policies that select the pod.",
                ("namespace", "direction", "policies"),
            ),
        )

    def render(self) -> bytes:
        """Returns all metrics as text."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, meaning: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"podwire_agent_{name}", meaning, labels, registry=self._registry)

    def _counter(self, name: str, meaning: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"podwire_agent_{name}", meaning, labels, registry=self._registry)
