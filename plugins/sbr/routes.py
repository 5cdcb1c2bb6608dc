"""The routes of an address's table: copies of the interface's routes in table main, a default route, the subnet.

Pure functions: nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network

from cni.address import Address, Network
from cni.result import IPConfig, Result
from kernel import route_copy
from kernel.link import Link
from kernel.route import TABLE_MAIN
from kernel.route_copy import TableRoute
from plugins.sbr.conf import SbrConf

_IPV6_SUBNET_METRIC = 256  # IP6_RT_PRIO_ADDRCONF, of the kernel's routes to the subnets of addresses
_DEFAULTS: dict[int, Network] = {4: IPv4Network("0.0.0.0/0"), 6: IPv6Network("::/0")}


def expected_gateway(conf: SbrConf, prev_result: Result, ips: Sequence[IPConfig], ip: IPConfig) -> Address | None:
    """Returns the gateway of an address's default route, None if nothing names one.

    In this order: the key "gateways", the address's gateway, a gateway in its subnet of another address, the default
    route of prevResult.
    """
    version = ip.address.version
    if gateway := conf.gateway(version) or ip.gateway:
        return gateway
    for other in ips:
        if other.gateway and other.gateway in ip.address.network:
            return other.gateway
    defaults = (item for item in prev_result.routes if item.dst.version == version and not item.dst.network.prefixlen)
    return next((item.gw for item in defaults if item.gw), None)


def serves(item: TableRoute, ip: IPConfig, ips: Sequence[IPConfig]) -> bool:
    """Returns whether a route belongs into the table of `ip`: its source or a gateway is in the subnet, or in none.

    A gateway outside of all subnets (fe80::1, 169.254.1.1) serves all addresses of the interface.
    """
    ends = [end for end in (item.source, *item.gateways) if end]
    if not ends or any(end in ip.address.network for end in ends):
        return True
    return not any(end in other.address.network for end in ends for other in ips)


def missing_routes(
    link: Link,
    conf: SbrConf,
    prev_result: Result,
    ips: Sequence[IPConfig],
    ip: IPConfig,
    main: Sequence[TableRoute],
    existing: Sequence[TableRoute],
) -> list[TableRoute]:
    """Returns the routes that the table of `ip` lacks; routes without gateway come first, since others need them.

    `main` are the interface's routes in table main, `existing` those of the address's table, of the same IP version.
    """
    configured = conf.gateway(ip.address.version)
    present = {item.dst for item in existing}
    copies = [
        item
        for item in main
        if item.dst not in present and serves(item, ip, ips) and not (configured and item.is_default)
    ]
    added = [*copies, *_subnet(link, ip, [*existing, *copies])]
    present |= {item.dst for item in added}
    added += [item for item in result_routes(link, prev_result, ips, ip) if item.dst not in present]
    defaults = [item for item in (*existing, *copies) if item.is_default]
    if configured:
        defaults = [item for item in defaults if item.gateways == (configured,)]
    gateway = expected_gateway(conf, prev_result, ips, ip)
    if gateway and not defaults:
        added.append(route_copy.build_route(link, _DEFAULTS[ip.address.version], gateway=gateway))
    return sorted(added, key=lambda item: any(item.gateways))


def result_routes(link: Link, prev_result: Result, ips: Sequence[IPConfig], ip: IPConfig) -> list[TableRoute]:
    """Returns the routes of prevResult via a gateway in the subnet of `ip`, except default routes.

    A route without gateway uses that of the first address, as with interface plugins. In ADD these routes are usually
    in table main already; after the interface was down they are not.
    """
    first = next((each for each in ips if each.gateway and each.address.version == ip.address.version), None)
    built = []
    for item in prev_result.routes:
        gateway = item.gw or (first.gateway if ip is first else None)
        is_reachable = gateway == ip.gateway or (gateway and gateway in ip.address.network)
        dst = item.dst.network
        if gateway and is_reachable and dst.prefixlen and item.table in (None, TABLE_MAIN):
            built.append(route_copy.build_route(link, dst, gateway=gateway, metric=item.priority))
    return [item for item in built if item.dst.version == ip.address.version]


def hints(link: Link, ips: Sequence[IPConfig], main: Sequence[TableRoute]) -> list[TableRoute]:
    """Returns the routes to the subnets, with source addresses, that stay in table main ("addSourceHints")."""
    by_subnet: dict[Network, TableRoute] = {}
    for ip in ips:
        subnet, source = ip.address.network, ip.address.ip
        if subnet not in by_subnet:
            existing = [item for item in main if item.dst == subnet and item.source and not any(item.gateways)]
            new = route_copy.build_route(link, subnet, source=source)
            by_subnet[subnet] = existing[0] if existing else new
    return list(by_subnet.values())


def is_link_local(item: TableRoute) -> bool:
    """Returns whether a route's destination is IPv6's link-local prefix, whose addresses have no rule."""
    return isinstance(item.dst, IPv6Network) and item.dst.is_link_local


def _subnet(link: Link, ip: IPConfig, others: Sequence[TableRoute]) -> list[TableRoute]:
    """Returns the route to the address's subnet unless there is one; a host's prefix has none."""
    subnet = ip.address.network
    if subnet.prefixlen == subnet.max_prefixlen or any(item.dst == subnet for item in others):
        return []
    if subnet.version == 6:
        return [route_copy.build_route(link, subnet, metric=_IPV6_SUBNET_METRIC)]
    return [route_copy.build_route(link, subnet, source=ip.address.ip)]
