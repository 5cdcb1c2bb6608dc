"""The configuration that `podwire install --conf` writes: a network with the node's own addresses.

Only addresses are added. Without a file the network equals conf/10-podwire.conflist; a test compares both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address, ip_network

from cni import gojson
from cni.errors import CniError, Code, invalid_conf

FILE = "10-podwire.conflist"
_IPAM = "host-local"
_FEWEST = 4  # network, gateway, one pod, broadcast
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
    """Returns a network's file with a range set for each subnet, at most one per IP version; raises CniError(7)."""
    ranges = [[{"subnet": _subnet(subnet)}] for subnet in subnets]
    versions = [ip_network(subnet).version for subnet in subnets]
    if not subnets or len({*versions}) != len(versions):
        hint = "--subnet 10.22.0.0/16, the addresses of this node's pods (its podCIDR); for dual stack twice"
        raise SubnetError(Code.INVALID_NETWORK_CONFIG, "--conf needs one --subnet of each IP version to be used", hint)
    existing = network.get("plugins")
    plugins = [_with_ranges(plugin, ranges) for plugin in (existing if isinstance(existing, list) else [])]
    if plugins == existing:
        hint = f'it must be a list with an "ipam" of type {_IPAM} that has neither "ranges" nor "subnet"'
        raise invalid_conf("the file has no place for the node's subnets", hint)
    return (gojson.dumps({**network, "plugins": plugins}, indent=2) + "\n").encode()


def _with_ranges(plugin: object, ranges: object) -> object:
    """Returns a plugin's configuration, with `ranges` if its IPAM plugin is host-local and has none."""
    if not isinstance(plugin, dict):
        return plugin
    ipam = plugin.get("ipam")
    if not isinstance(ipam, dict) or ipam.get("type") != _IPAM or {"ranges", "subnet"} & ipam.keys():
        return plugin
    return {**plugin, "ipam": {**ipam, "ranges": ranges}}


def _subnet(text: str) -> str:
    """Returns a subnet that host-local accepts: a network of at least four addresses."""
    hint = "write it as its first address with the prefix: 10.22.0.0/16"
    try:
        network = ip_network(text)
    except ValueError as error:
        raise SubnetError(Code.INVALID_NETWORK_CONFIG, f"{text} is not a network: {error}", hint) from None
    first = network.network_address
    if network.num_addresses < _FEWEST or (isinstance(first, IPv6Address) and (first.ipv4_mapped or first.scope_id)):
        raise SubnetError(
            Code.INVALID_NETWORK_CONFIG, f"{text} cannot be a network for pods: host-local refuses it", hint
        )
    return str(network)
