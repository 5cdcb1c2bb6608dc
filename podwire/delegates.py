"""The configuration of flannel's delegate, which no file of net.d contains: flannel's plugin writes it at each ADD.

The delegate is bridge with host-local by default. Its ranges are the node's subnets in the file that flannel's daemon
writes; without that file each ADD fails, and the delegate has no ranges here.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni.address import parse_cidr
from process import files

_SUBNET_FILE = "/run/flannel/subnet.env"
_SUBNETS = ("FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET")
_MOST_BYTES = 64 << 10


def is_flannel(plugin: Mapping[str, object]) -> bool:
    """Returns whether a plugin of a list is flannel, which runs another one and has neither GC nor STATUS."""
    return plugin.get("type") == "flannel"


def subnet_file(plugin: Mapping[str, object]) -> str:
    """Returns the path of the file from which flannel's plugin takes the node's subnets."""
    return str(plugin.get("subnetFile") or _SUBNET_FILE)


def read_delegate(plugin: Mapping[str, object]) -> Mapping[str, object]:
    """Returns the configuration that flannel's plugin passes to its delegate, of any other plugin `plugin` itself."""
    if not is_flannel(plugin):
        return plugin
    subnets, settings = _read_subnet_file(subnet_file(plugin))
    ipam = {"type": "host-local", **_object(plugin, "ipam")}
    if subnets:
        ipam["ranges"] = [[{"subnet": subnet}] for subnet in subnets]
    return {"type": "bridge", "isGateway": True, **settings, **_object(plugin, "delegate"), "ipam": ipam}


def has_ranges(delegate: Mapping[str, object]) -> bool:
    """Returns whether the configuration of flannel's delegate has the node's subnets."""
    return "ranges" in _object(delegate, "ipam")


def _read_subnet_file(path: str) -> tuple[list[str], dict[str, object]]:
    """Returns the node's subnets, and the keys for the delegate; none of a file that cannot be read."""
    try:
        text = files.read(path, _MOST_BYTES).decode()
        variables = dict(line.partition("=")[::2] for line in text.splitlines())
        subnets = [str(parse_cidr(variables[name]).network) for name in _SUBNETS if variables.get(name)]
    except (OSError, ValueError):
        return [], {}
    settings: dict[str, object] = {"ipMasq": variables.get("FLANNEL_IPMASQ") != "true"}
    mtu = variables.get("FLANNEL_MTU", "")
    return subnets, settings | ({"mtu": int(mtu)} if mtu.isascii() and mtu.isdigit() else {})


def _object(plugin: Mapping[str, object], key: str) -> dict[str, object]:
    value = plugin.get(key)
    return dict(value) if isinstance(value, dict) else {}
