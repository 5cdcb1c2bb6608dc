"""The configuration that `podwire install --conf` writes: a network with the node's own addresses.

One rule: the addresses are all that is added. Without a file the network is conf/10-podwire.conflist; a test compares
the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address, ip_network

from cni import gojson
from cni.errors import CniError, Code

FILE = "10-podwire.conflist"
_IPAM = "host-local"
_FEWEST = 4  # the first and the last one are nobody's, the next is the gateway
STANDARD: Mapping[str, object] = {
    "cniVersion": "1.0.0",
    "name": "podwire",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isDefaultGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": {"type": _IPAM},
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "bandwidth", "capabilities": {"bandwidth": True}},
    ],
}


class SubnetError(CniError):
    """The subnets cannot be used for a network."""


def render(network: Mapping[str, object], subnets: Sequence[str]) -> bytes:
    """Returns a list's file with a range set for each of these subnets, one of each IP version at most: CniError(7)."""
    ranges = [[{"subnet": _subnet(subnet)}] for subnet in subnets]
    versions = [ip_network(subnet).version for subnet in subnets]
    if not subnets or len({*versions}) != len(versions):
        hint = "--subnet 10.22.0.0/16, the addresses of this node's pods (its podCIDR); for dual stack twice"
        raise SubnetError(Code.INVALID_NETWORK_CONFIG, "--conf needs one --subnet of each IP version to be used", hint)
    given = network.get("plugins")
    plugins = [_with_ranges(plugin, ranges) for plugin in (given if isinstance(given, list) else [])]
    if plugins == given:
        hint = f'it is to be a list, and an "ipam" of type {_IPAM} in it to have neither "ranges" nor "subnet"'
        raise CniError(Code.INVALID_NETWORK_CONFIG, "the file has no place for the node's subnets", hint)
    return (gojson.dumps({**network, "plugins": plugins}, indent=2) + "\n").encode()


def _with_ranges(plugin: object, ranges: object) -> object:
    """Returns a plugin's object with the ranges where its IPAM is host-local and has none, else as it is."""
    if not isinstance(plugin, dict):
        return plugin
    ipam = plugin.get("ipam")
    if not isinstance(ipam, dict) or ipam.get("type") != _IPAM or {"ranges", "subnet"} & ipam.keys():
        return plugin
    return {**plugin, "ipam": {**ipam, "ranges": ranges}}


def _subnet(given: str) -> str:
    """Returns a subnet as host-local takes it, which allocates of four addresses at least."""
    hint = "write it as its first address with the prefix: 10.22.0.0/16"
    try:
        network = ip_network(given)
    except ValueError as error:
        raise SubnetError(Code.INVALID_NETWORK_CONFIG, f"{given} is no network: {error}", hint) from None
    first = network.network_address
    if network.num_addresses < _FEWEST or (isinstance(first, IPv6Address) and (first.ipv4_mapped or first.scope_id)):
        raise SubnetError(Code.INVALID_NETWORK_CONFIG, f"{given} is no network for pods: host-local refuses it", hint)
    return str(network)
