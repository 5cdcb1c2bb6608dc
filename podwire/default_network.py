"""The configuration that `podwire install --conf` writes: conf/10-podwire.conflist with the node's own addresses.

One rule: but for the addresses it is that sample; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network

from cni import gojson
from cni.errors import CniError, Code

FILE = "10-podwire.conflist"


def text(subnets: Sequence[str]) -> bytes:
    """Returns the file for ranges of these subnets, one of each IP version at most; raises CniError(7)."""
    ranges = [[{"subnet": _subnet(subnet)}] for subnet in subnets]
    versions = [ip_network(subnet).version for subnet in subnets]
    if not subnets or len({*versions}) != len(versions):
        hint = "--subnet 10.22.0.0/16, the addresses of this node's pods (its podCIDR); for dual stack twice"
        raise CniError(Code.INVALID_NETWORK_CONFIG, "--conf needs one --subnet of each IP version to be used", hint)
    first = {
        "type": "bridge",
        "bridge": "cni0",
        "isDefaultGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": ranges},
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    limits = {"type": "bandwidth", "capabilities": {"bandwidth": True}}
    network = {"cniVersion": "1.0.0", "name": "podwire", "plugins": [first, ports, limits]}
    return (gojson.dumps(network, indent=2) + "\n").encode()


def _subnet(given: str) -> str:
    try:
        return str(ip_network(given))
    except ValueError as error:
        hint = "write it as its first address with the prefix: 10.22.0.0/16"
        raise CniError(Code.INVALID_NETWORK_CONFIG, f"--subnet {given} is no network: {error}", hint) from None
