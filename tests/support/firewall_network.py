"""Bridge networks with the firewall plugin, for tests of which pods can reach each other.

One rule: pods are attached as a runtime attaches them, bridge first; the firewall's options are parameters, so that a
test runs with any backend.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tests.support.attaching import ChainedNetwork, address, reaches
from tests.support.firewall_tables import Firewall
from tests.support.namespaces import Namespace


@dataclass(frozen=True)
class Pod:
    """An attached pod: its namespace and the result of ADD."""

    namespace: Namespace
    result: Mapping[str, Any]

    @property
    def ip(self) -> str:
        """The pod's first address."""
        return address(self.result)

    def reaches(self, other: Self | str, *, within_s: int = 20) -> bool:
        """Returns whether another pod, or an address, answers a ping."""
        return reaches(self.namespace, other if isinstance(other, str) else other.ip, within_s=within_s)

    def cannot_reach(self, other: Self | str) -> bool:
        """Returns whether several pings have no answer."""
        return not self.reaches(other, within_s=1)


@dataclass(frozen=True)
class FirewallNetwork(ChainedNetwork):
    """A bridge network with the firewall plugin; `tools` has the programs of iptables, by default the machine's."""

    TYPE = "firewall"

    tools: Path | None = None

    def sibling(self, name: str, bridge: str, *subnets: str) -> Self:
        """Returns another network with the same firewall, but with another bridge and other subnets."""
        ipam = {**self.bridge.config["ipam"], "ranges": [[{"subnet": subnet}] for subnet in subnets]}
        return replace(self, bridge=self.bridge.having(name=name, bridge=bridge, ipam=ipam))

    def add(self, namespace: Namespace) -> Pod:
        """Attaches a pod; a failure fails the test."""
        result = self.bridge.add(namespace)
        self.firewall(result).run("ADD", namespace.name).result()
        return Pod(namespace, result)

    def delete(self, pod: Pod) -> None:
        """Detaches a pod, the last plugin first; a failure fails the test."""
        self.firewall(pod.result).run("DEL", pod.namespace.name).assert_silent()
        self.bridge.delete(pod.namespace, pod.result)

    def firewall(self, result: Mapping[str, Any]) -> Firewall:
        """Returns the firewall plugin with bridge's result as prevResult."""
        return Firewall(self.host, self.config, self.bin_dir, self.tools).having(prevResult=result)
