"""The addresses of an attachment: the IPAM result, completed with the gateways and default routes of the network.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import IPv4Interface, IPv6Interface

from attachment import auto_mtu
from attachment.veth import refuse_small_mtu
from cni.address import Address, Cidr, Network, host_cidr
from cni.errors import invalid_conf
from cni.result import IPConfig, Result, Route
from kernel.route import SCOPE_LINK
from plugins.bridge.conf import BridgeConf
from process.values import replace

_DEFAULTS: tuple[Cidr, ...] = (IPv4Interface("0.0.0.0/0"), IPv6Interface("::/0"))


def with_gateways(ipam_result: Result, conf: BridgeConf, interface_index: int) -> Result:
    """Returns the IPAM result with its addresses assigned to an interface, and with gateways and default routes.

    `interface_index` is an index into the result's interfaces. A gateway outside of its address's subnet, as with a
    second block of a pool, gets a route of scope link before the other routes. Raises CniError(7) for an MTU that is
    too small for the addresses, and for a subnet without a usable gateway.
    """
    refuse_small_mtu(conf.mtu, ipam_result.ips, auto_mtu.HINT if conf.mtu_auto else "")
    ips = tuple(
        replace(ip, interface=interface_index, gateway=ip.gateway or _default_gateway(ip, conf))
        for ip in ipam_result.ips
    )
    if conf.is_gateway:
        for ip in ips:
            gateway_and_prefix(ip)  # raises for an unusable gateway before a route uses it
    routes = ipam_result.routes
    if conf.is_gateway and (distant := distant_gateways(ips)):
        to_gateways = {gateway: Route(host_cidr(gateway), scope=SCOPE_LINK) for gateway in distant.values()}
        routes = (*to_gateways.values(), *routes)
    if conf.is_default_gateway:
        for default in _DEFAULTS:
            gateway = next((ip.gateway for ip in ips if ip.gateway and isinstance(ip.address, type(default))), None)
            if gateway:
                routes = _with_default_route(routes, Route(default, gw=gateway))
    return replace(ipam_result, ips=ips, routes=routes)


def distant_gateways(ips: Iterable[IPConfig]) -> dict[Network, Address]:
    """Returns the subnets of addresses with a gateway outside of them, each with its gateway."""
    return {
        ip.address.network: ip.gateway for ip in ips if ip.gateway is not None and ip.gateway not in ip.address.network
    }


def gateway_and_prefix(ip: IPConfig) -> tuple[Address, int] | None:
    """Returns the gateway of `ip` and the prefix length of their subnet; None if `ip` has no gateway.

    Raises CniError(7) for a gateway of the other address family.
    """
    if ip.gateway is None:
        return None
    if ip.gateway.version != ip.address.version:
        raise invalid_conf(
            f"gateway {ip.gateway} of address {ip.address} is of the other address family",
            "correct the gateway in the IPAM configuration",
        )
    return ip.gateway, ip.address.network.prefixlen


def is_assigned(gateway: Address, prefix_length: int, existing: Collection[tuple[bytes, int]]) -> bool:
    """Returns whether a link with the `existing` addresses (address.keys) has a gateway.

    The gateway of a subnet of one address may have the prefix length of any other subnet that it serves.
    """
    if (gateway.packed, prefix_length) in existing:
        return True
    return prefix_length == gateway.max_prefixlen and any(packed == gateway.packed for packed, _ in existing)


def is_conflict(one: Cidr, other: Cidr) -> bool:
    """Returns whether two addresses cannot be on one bridge: both are IPv4, or both IPv6 with overlapping subnets.

    No conflict is the same address with two prefix lengths, as the gateway of a subnet and of single addresses (/32,
    /128). Any number of link-local IPv6 addresses is none, either: the kernel adds one, and a gateway such as fe80::1
    is another.
    """
    if one.version == 6 and one.ip.is_link_local and other.ip.is_link_local:
        return False
    if one.ip == other.ip and one.network.max_prefixlen in (one.network.prefixlen, other.network.prefixlen):
        return False
    if isinstance(one, IPv4Interface):
        return isinstance(other, IPv4Interface)
    return isinstance(other, IPv6Interface) and one.network.overlaps(other.network)


def _default_gateway(ip: IPConfig, conf: BridgeConf) -> Address | None:
    """Returns the gateway for an address to which IPAM assigns none: the subnet's first address.

    Returns None without "isGateway".
    """
    if not conf.is_gateway:
        return None
    try:
        return ip.address.network.network_address + 1
    except ValueError:
        raise invalid_conf(
            f"IPAM allocated {ip.address} without a gateway, and its subnet is too small to derive one",
            "configure IPAM with a larger subnet, or with a gateway",
        ) from None


def _with_default_route(routes: tuple[Route, ...], default: Route) -> tuple[Route, ...]:
    """Adds `default` to the routes, unless they already have a default route with a gateway; returns the routes.

    A route that differs from `default` only in having no gateway is replaced: the kernel would refuse to add both.
    """
    if any(route.gw for route in routes if route.dst == default.dst):
        return routes
    without_gateway = replace(default, gw=None)
    if without_gateway in routes:
        return tuple(default if route == without_gateway else route for route in routes)
    return (*routes, default)
