"""The names and addresses of a cluster, and where `make kubernetes-cluster` puts its programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_network

from tests.support.binaries import ROOT

PROGRAMS = ROOT / "build" / "kubernetes-cluster"
TEST_ROOT = ROOT / "build" / "root"
VERSION = "1.20.2"
_API, _DNS, _GATEWAY, _FIRST_NODE = 1, 10, 1, 10


@dataclass(frozen=True)
class Family:
    """The networks of an IP version; the control plane's machine is the gateway of all links of nodes.

    `name` is Kubernetes'; `filter` is the program of the packet filter, `forwarding` the sysctl of a router.
    """

    name: str
    pods: str
    services: str
    links: tuple[str, ...]
    filter: str
    forwarding: str

    @property
    def api(self) -> str:
        """The address of the Service of the API server."""
        return _host(self.services, _API)

    @property
    def dns(self) -> str:
        """The address of the Service of the cluster's DNS."""
        return _host(self.services, _DNS)

    def gateway(self, link: int = 0) -> str:
        """Returns the address of the control plane's machine on a link."""
        return _host(self.links[link], _GATEWAY)

    def node(self, link: int, number: int) -> str:
        """Returns the InternalIP of a node."""
        return _host(self.links[link], _FIRST_NODE + number)

    def on_link(self, link: int, address: str) -> str:
        """Returns an address with the prefix length of a link."""
        return f"{address}/{ip_network(self.links[link]).prefixlen}"


def _host(network: str, number: int) -> str:
    return str(ip_network(network)[number])


IPV4 = Family(
    name="IPv4",
    pods="10.244.0.0/16",
    services="10.96.0.0/16",
    links=("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"),
    filter="iptables",
    forwarding="ipv4/ip_forward",
)
IPV6 = Family(
    name="IPv6",
    pods="fd00:244::/48",
    services="fd00:96::/112",
    links=("2001:db8:a::/64", "2001:db8:b::/64", "2001:db8:c::/64"),
    filter="ip6tables",
    forwarding="ipv6/conf/all/forwarding",
)
BRIDGES = ("br0", "br1", "br2")  # the links, in the namespace of the control plane


def pod_cidrs(families: Sequence[Family]) -> str:
    """Returns the networks of pods as the programs of Kubernetes expect them."""
    return ",".join(family.pods for family in families)


def service_cidrs(families: Sequence[Family]) -> str:
    """Returns the networks of Services as the programs of Kubernetes expect them."""
    return ",".join(family.services for family in families)


def gates(families: Sequence[Family]) -> tuple[str, ...]:
    """Returns the option of a program of Kubernetes for two IP versions, which its version has as an alpha feature."""
    return ("--feature-gates=IPv6DualStack=true",) if len(families) > 1 else ()
