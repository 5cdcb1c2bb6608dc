"""Two bridge networks with the firewall behind them, and a machine outside: who reaches whom.

One rule: pods are attached as a runtime does it, bridge first; the firewall's options are values, so that a test runs
with any backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support.attaching import Network, address, reaches
from tests.support.firewall_sets import Firewall
from tests.support.namespaces import Namespace


@dataclass(frozen=True)
class Pod:
    """An attached pod: its namespace, its addresses, and what ADD returned."""

    namespace: Namespace
    result: Mapping[str, Any]

    @property
    def ip(self) -> str:
        """Its first address."""
        return address(self.result)

    def reaches(self, other: Pod | str, *, within_s: int = 5) -> bool:
        """Tells whether another pod, or an address, answers a ping."""
        return reaches(self.namespace, other if isinstance(other, str) else other.ip, within_s=within_s)

    def misses(self, other: Pod | str) -> bool:
        """Tells that there is no answer to several pings."""
        return not self.reaches(other, within_s=1)


@dataclass(frozen=True)
class FirewallNetwork:
    """A bridge network with the firewall behind it; `keys` are the firewall's options, `bin_dir` its directory."""

    bridge: Network
    keys: Mapping[str, Any] = field(default_factory=dict)
    bin_dir: Path | None = None

    def having(self, **keys: Any) -> FirewallNetwork:
        """Returns the same network with other options of the firewall; None leaves one out."""
        return replace(self, keys={**self.keys, **keys})

    def beside(self, name: str, bridge: str, subnet: str) -> FirewallNetwork:
        """Returns another network with the same firewall, on a bridge and with a subnet of its own."""
        ipam = {**self.bridge.config["ipam"], "ranges": [[{"subnet": subnet}]]}
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
        """Returns the firewall alone for what ADD of `bridge` returned."""
        own = {key: self.bridge.config[key] for key in ("cniVersion", "name")} | {"type": "firewall"}
        return Firewall(self.bridge.host, own, self.bin_dir).having(prevResult=result, **self.keys)
