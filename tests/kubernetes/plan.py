"""The names and addresses of a cluster, and where `make kubernetes-cluster` puts its programs."""

from dataclasses import dataclass

from tests.support.binaries import ROOT

PROGRAMS = ROOT / "build" / "kubernetes-cluster"
TEST_ROOT = ROOT / "build" / "root"
VERSION = "1.20.2"
POD_CIDR, SERVICE_CIDR = "10.244.0.0/16", "10.96.0.0/16"
API, DNS = "10.96.0.1", "10.96.0.10"


@dataclass(frozen=True)
class Link:
    """A link of nodes: a bridge of the control plane's machine, which is their gateway."""

    name: str
    prefix: str

    @property
    def gateway(self) -> str:
        """The address of the control plane's machine."""
        return f"{self.prefix}.1"

    def address(self, number: int) -> str:
        """Returns the InternalIP of a node."""
        return f"{self.prefix}.{10 + number}"


LINKS = (Link("br0", "192.0.2"), Link("br1", "198.51.100"), Link("br2", "203.0.113"))
GATEWAY = LINKS[0].gateway
