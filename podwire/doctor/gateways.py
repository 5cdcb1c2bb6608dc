"""The bridges' addresses that pods use as gateways: which are missing, and the commands that add them."""

from __future__ import annotations

from shlex import quote

from cni.address import Cidr, with_prefix
from podwire.doctor.node import CheckedNode, InterfaceConf


def ipv6_of(bridge: str) -> str:
    """Returns the name of a bridge's IPv6 in `Finding.objects`."""
    return f"IPv6 of {bridge}"


def gateways_of(bridge: str) -> str:
    """Returns the name of a bridge's addresses in `Finding.objects`."""
    return f"gateways of {bridge}"


def advertised_at(interface: str) -> str:
    """Returns the name in `Finding.objects` of the default route that a pod advertised at an interface."""
    return f"advertised at {interface}"


def missing_gateways(node: CheckedNode, item: InterfaceConf) -> list[Cidr]:
    """Returns the pods' gateways, with the length of their subnets, that no interface of the host has.

    The gateway of a network that the host does not route is a router on it: the host must not have that address.
    """
    if not item.routed:
        return []
    assigned = {one.address.ip for addresses in node.addresses.values() for one in addresses}
    missing = {
        ip.gateway: with_prefix(ip.gateway, ip.address.network.prefixlen)
        for one in node.list_attached(item)
        for ip in one.typed_result.ips
        if ip.gateway and ip.gateway not in assigned
    }
    return list(missing.values())


def gateway_commands(node: CheckedNode, item: InterfaceConf) -> list[str]:
    """Returns the commands that add them to the bridge."""
    return [
        f"ip address replace {one} dev {quote(item.bridge)}{' nodad' if one.version == 6 else ''}"
        for one in missing_gateways(node, item)
    ]
