"""The configuration of flannel's delegate: flannel's plugin generates it at each ADD, so no file of net.d contains it.

The delegate is bridge with host-local by default. Its ranges are the node's subnets, which flannel's daemon writes into
a file. If that file cannot be read, each ADD fails, and the configuration returned here has no ranges.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni.address import parse_cidr
from process import files

_SUBNET_FILE = "/run/flannel/subnet.env"
_SUBNETS = ("FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET")
_MOST_BYTES = 64 << 10


def is_flannel(plugin: Mapping[str, object]) -> bool:
    """Returns whether a plugin is flannel, which runs another plugin and has neither GC nor STATUS."""
    return plugin.get("type") == "flannel"


def subnet_file(plugin: Mapping[str, object]) -> str:
    """Returns the path of the file that has the node's subnets for flannel's plugin."""
    return str(plugin.get("subnetFile") or _SUBNET_FILE)


def resolve_delegate(plugin: Mapping[str, object]) -> Mapping[str, object]:
    """Returns the configuration that flannel's plugin passes to its delegate; returns any other plugin unchanged."""
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
    """Returns the node's subnets, and keys for the delegate's configuration; none if the file cannot be read."""
    try:
        text = files.read(path, _MOST_BYTES).decode()
        variables = dict(line.partition("=")[::2] for line in text.splitlines())
        subnets = [str(parse_cidr(variables[name]).network) for name in _SUBNETS if variables.get(name)]
        mtu = variables.get("FLANNEL_MTU", "")
        settings: dict[str, object] = {"mtu": int(mtu)} if mtu.isascii() and mtu.isdigit() else {}
    except (OSError, ValueError):  # also of more digits than int reads
        return [], {}
    return subnets, {"ipMasq": variables.get("FLANNEL_IPMASQ") != "true", **settings}


def _object(plugin: Mapping[str, object], key: str) -> dict[str, object]:
    value = plugin.get(key)
    return dict(value) if isinstance(value, dict) else {}
