"""A node with host ports: bridge and portmap as a runtime chains them, and a machine outside.

One rule: portmap's configuration and directory are values of the network, so that a test runs with any backend, and
with the reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support.attaching import Network, reaches
from tests.support.hostports import HostPorts
from tests.support.invocation import Outcome
from tests.support.namespaces import Namespace

NODE, NODE6, OUTSIDE, OUTSIDE6 = "192.0.2.1", "2001:db8::1", "192.0.2.2", "2001:db8::2"
GATEWAY, GATEWAY6 = "10.22.0.1", "fd00:22::1"  # the bridge's


@dataclass(frozen=True)
class Publishing:
    """A bridge network with portmap behind it; `keys` are portmap's options, `bin_dir` its directory."""

    bridge: Network
    keys: Mapping[str, Any] = field(default_factory=dict)
    bin_dir: Path | None = None

    @property
    def host(self) -> Namespace:
        """The node."""
        return self.bridge.host

    def having(self, **keys: Any) -> Publishing:
        """Returns the same network with other options of portmap."""
        return replace(self, keys={**self.keys, **keys})

    def add(self, pod: Namespace, *mappings: str) -> dict[str, Any]:
        """Attaches `pod`; a failure fails the test."""
        result = self.bridge.add(pod)
        return self.portmap("ADD", pod, mappings, result).result()

    def delete(self, pod: Namespace, *mappings: str, result: object = None) -> None:
        """Detaches `pod`, the last plugin first; a failure fails the test."""
        self.portmap("DEL", pod, mappings, result).assert_silent()
        self.bridge.delete(pod, result)

    def portmap(self, command: str, pod: Namespace, mappings: Sequence[str], prev_result: object = None) -> Outcome:
        """Runs one verb of portmap alone; mappings as `hostports.ports` takes them."""
        config = {key: self.bridge.config[key] for key in ("cniVersion", "name")} | {"type": "portmap"}
        network = HostPorts(self.host, config, self.bin_dir, netns=pod)
        return network.having(*mappings, prevResult=prev_result, **self.keys).run(command, pod.name)


def hasty(namespace: Namespace) -> None:
    """Has interfaces that are made in a namespace from now on use IPv6 addresses without looking for twins first."""
    namespace.set_sysctl("net/ipv6/conf/default/accept_dad", "0")


def connect(host: Namespace, outside: Namespace) -> None:
    """Joins the node and a machine outside, which has no route to the pods' networks."""
    host.ip("link", "add", "uplink", "type", "veth", "peer", "name", "eth0", "netns", outside.name)
    ends = (host, "uplink", NODE, NODE6), (outside, "eth0", OUTSIDE, OUTSIDE6)
    for end, name, *_ in ends:
        end.ip("link", "set", name, "up")
    for end, name, ipv4, ipv6 in ends:
        end.ip("addr", "add", f"{ipv4}/24", "dev", name)
        end.ip("addr", "add", f"{ipv6}/64", "dev", name, "nodad")
    for ip in (NODE, NODE6):
        assert reaches(outside, ip)  # each knows the other from now on
