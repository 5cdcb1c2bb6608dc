"""The names and addresses of a cluster, and where `make kubernetes-cluster` puts its programs."""

from tests.support.binaries import ROOT

PROGRAMS = ROOT / "build" / "kubernetes-cluster"
TEST_ROOT = ROOT / "build" / "root"
VERSION = "1.20.2"
LINK, GATEWAY = "br0", "192.0.2.1"  # the control plane's machine is the gateway
POD_CIDR, SERVICE_CIDR = "10.244.0.0/16", "10.96.0.0/16"
API, DNS = "10.96.0.1", "10.96.0.10"


def node_address(number: int) -> str:
    """Returns the InternalIP of a node."""
    return f"192.0.2.{10 + number}"
