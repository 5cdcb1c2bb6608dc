"""The addresses of an attachment: IPAM's, with the gateways and default routes that the network asks for.

One rule: nothing here touches the kernel.
"""

from __future__ import annotations

from ipaddress import IPv4Interface, IPv6Interface

from attachment.veth import refuse_small_mtu
from cni.address import Address
from cni.address import Interface as Cidr
from cni.errors import CniError, Code
from cni.result import IPConfig, Result, Route
from plugins.bridge import bridge_device
from plugins.bridge.conf import BridgeConf
from process.values import replace

_DEFAULTS: tuple[Cidr, ...] = (IPv4Interface("0.0.0.0/0"), IPv6Interface("::/0"))


def completed(ipam: Result, own: BridgeConf, interface: int) -> Result:
    """Binds IPAM's addresses to the result's `interface`, and adds the gateways and default routes asked for.

    Raises CniError(7) for what cannot be served with them.
    """
    auto = '; "auto" takes the least of the host\'s interfaces: set a number' if own.mtu_auto else ""
    refuse_small_mtu(own.mtu, ipam.ips, auto)
    ips = tuple(replace(ip, interface=interface, gateway=ip.gateway or _first(ip, own)) for ip in ipam.ips)
    if own.is_gateway:
        for ip in ips:
            bridge_device.gateway_on_bridge(ip)  # one that cannot be is refused before it is used for routes
    routes = ipam.routes
    if own.is_default_gateway:
        for default in _DEFAULTS:
            gateway = next((ip.gateway for ip in ips if ip.gateway and isinstance(ip.address, type(default))), None)
            if gateway:
                routes = _with_default(routes, Route(default, gw=gateway))
    return replace(ipam, ips=ips, routes=routes)


def _first(ip: IPConfig, own: BridgeConf) -> Address | None:
    """Returns the first address of the subnet, the gateway when IPAM names none and there is to be one."""
    if not own.is_gateway:
        return None
    try:
        return ip.address.network.network_address + 1
    except ValueError:
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            f"{ip.address} has no gateway and there is no next address to be it",
            "give IPAM a larger subnet, or a gateway",
        ) from None


def _with_default(routes: tuple[Route, ...], default: Route) -> tuple[Route, ...]:
    """Adds a default route unless there is one with a gateway; one without would become the same route twice."""
    same = [route for route in routes if route.dst == default.dst]
    if any(route.gw for route in same):
        return routes
    plain = replace(default, gw=None)
    if plain in routes:
        return tuple(default if route == plain else route for route in routes)
    return (*routes, default)
