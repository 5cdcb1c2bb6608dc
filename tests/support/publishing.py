"""A node with host ports: bridge and portmap as a runtime chains them, and a client machine on the node's uplink.

portmap's configuration and directory are values of the network, so that a test can run with each backend, and with the
reference plugin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.attaching import ChainedNetwork, reaches
from tests.support.hostports import PortmapNetwork
from tests.support.invocation import Outcome
from tests.support.namespaces import Namespace

NODE, NODE6, CLIENT, CLIENT6 = "192.0.2.1", "2001:db8::1", "192.0.2.2", "2001:db8::2"
GATEWAY, GATEWAY6 = "10.22.0.1", "fd00:22::1"  # addresses of the bridge


@dataclass(frozen=True)
class PublishingNetwork(ChainedNetwork):
    """A bridge network with portmap."""

    TYPE = "portmap"

    def add(self, pod: Namespace, *mappings: str) -> dict[str, Any]:
        """Attaches `pod`; a failure fails the test."""
        result = self.bridge.add(pod)
        return self.portmap("ADD", pod, mappings, result).result()

    def delete(self, pod: Namespace, *mappings: str, result: object = None) -> None:
        """Detaches `pod`, the last plugin first; a failure fails the test."""
        self.portmap("DEL", pod, mappings, result).assert_silent()
        self.bridge.delete(pod, result)

    def portmap(self, command: str, pod: Namespace, mappings: Sequence[str], prev_result: object = None) -> Outcome:
        """Runs one verb of portmap only; mappings as in `hostports.ports`."""
        network = PortmapNetwork(self.host, self.config, self.bin_dir, netns=pod)
        return network.having(*mappings, prevResult=prev_result).run(command, pod.name)


def disable_dad(namespace: Namespace) -> None:
    """Disables IPv6 duplicate address detection for interfaces that are created in a namespace from now on."""
    namespace.set_sysctl("net/ipv6/conf/default/accept_dad", "0")


def connect(host: Namespace, client: Namespace) -> None:
    """Connects the node with a client machine, which has no route to the pods' networks."""
    host.ip("link", "add", "uplink", "type", "veth", "peer", "name", "eth0", "netns", client.name)
    ends = (host, "uplink", NODE, NODE6), (client, "eth0", CLIENT, CLIENT6)
    for end, name, *_ in ends:
        end.ip("link", "set", name, "up")
    for end, name, ipv4, ipv6 in ends:
        end.ip("addr", "add", f"{ipv4}/24", "dev", name)
        end.ip("addr", "add", f"{ipv6}/64", "dev", name, "nodad")
    for ip in (NODE, NODE6):
        assert reaches(client, ip)  # fills both neighbour tables
