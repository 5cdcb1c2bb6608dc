"""The two ends of a routed pair: how the pod finds the host, the host the pod, and nobody a neighbour.

One rule: both ends know each other by host routes, and the pod's subnet leads over its gateway, which is the host; so
two pods of one subnet reach each other through the host. Every pod's host end has the same gateway address.
"""

from __future__ import annotations

from attachment import forwarding
from attachment.sandbox import Sandbox, add_routes_requests, attachment_ips
from attachment.veth import refuse_small_mtu
from cni.address import Address, Network, host_cidr, with_prefix
from cni.errors import CniError, Code
from cni.result import IPConfig, Result, Route
from kernel import address, route, sysctl
from kernel.link import Link
from kernel.rtnl import Request, Socket
from process.values import replace

_AGAIN = "remove the container and create it again"


def completed(given: Result, mtu: int, interface: int) -> Result:
    """Binds IPAM's addresses to the result's `interface`; raises CniError(7) for what cannot be served with them."""
    refuse_small_mtu(mtu, given.ips)
    for ip in given.ips:
        _gateway(ip)
    return replace(given, ips=tuple(replace(ip, interface=interface) for ip in given.ips))


def lead_in(host: Socket, outside: Link, result: Result) -> None:
    """Gives the host's end the gateways' addresses and routes to the pod's, and switches forwarding on.

    Raises CniError(999), KernelError.
    """
    for version in sorted({ip.address.version for ip in result.ips}):
        forwarding.enable(version)
        if version == 6:
            # The other end is one pod: nobody there has the gateway's address, and waiting for that takes a second.
            sysctl.try_write(f"ipv6/conf/{outside.name}/accept_dad", "0")
            sysctl.ensure_or_fail(f"ipv6/conf/{outside.name}/disable_ipv6", "0", f'enable IPv6 on "{outside.name}"')
    requests: list[Request] = []
    for ip in result.ips:
        requests.append(address.add_request(outside, host_cidr(_gateway(ip)), exists_ok=True))
        scope = route.SCOPE_HOST if ip.address.version == 4 else None
        requests.append(route.add_request(outside, Route(host_cidr(ip.address.ip), scope=scope), None, exists_ok=True))
    host.change(*requests)


def lead_out(sandbox: Sandbox, inside: Link, result: Result) -> None:
    """Leads the pod's subnets over their gateways, to each gateway directly, and the rest as IPAM says.

    IPAM's routes come before the subnets' own go, since they may lead over another address there. Raises KernelError.
    """
    requests: list[Request] = []
    # Of two addresses of one subnet, or with one gateway, the first is the source.
    subnets: dict[Network, IPConfig] = {}
    sources: dict[Address, Address] = {}
    for ip in result.ips:
        subnets.setdefault(ip.address.network, ip)
        sources.setdefault(_gateway(ip), ip.address.ip)
    for gateway, own in sources.items():
        near = Route(host_cidr(gateway), scope=route.SCOPE_LINK)
        requests.append(route.add_request(inside, near, None, source=own, exists_ok=True))
    requests += add_routes_requests(inside, result)
    requests += [route.delete_connected_request(inside, network) for network in subnets]
    for network, ip in subnets.items():
        # Also to a host's prefix, where nothing is behind the gateway: the reference's CHECK wants a route to each.
        far = Route(with_prefix(network.network_address, network.prefixlen))
        requests.append(route.add_request(inside, far, ip.gateway, source=ip.address.ip, exists_ok=True))
    sandbox.socket.change(*requests)


def check(sandbox: Sandbox, inside: Link, outside: Link, prev_result: Result, host: Socket) -> None:
    """Checks the routes of both ends and the gateways' addresses; raises CniError(999), KernelError."""
    present = address.keys(address.list_on_link(host, outside))
    for ip in attachment_ips(prev_result, sandbox.ifname, strict=False):
        own, gateway = ip.address.ip, ip.gateway
        if gateway is None:
            continue
        if (gateway.packed, gateway.max_prefixlen) not in present:
            details = f'put it back: ip address add {host_cidr(gateway)} dev "{outside.name}"'
            raise _wrong(f"Interface {outside.name} has lost the gateway address {gateway}", details)
        if route.get_index_to(host, own) != outside.index:
            by = route.get_interface_to(host, own)
            wrong = f'it leads to "{by.name}"' if by else "there is none"
            details = f'{wrong}; set it: ip route replace {own} dev "{outside.name}"'
            raise _wrong(f"The host's route to {own} does not lead to {outside.name}", details)
        if not _is_near(sandbox, inside, gateway):
            raise _wrong(
                f"Failed to find Gateway {gateway} for interface {inside.name}",
                f"the network namespace is {sandbox.path}; {_AGAIN}",
            )


def _is_near(sandbox: Sandbox, inside: Link, gateway: Address) -> bool:
    """Tells whether a route leads to the gateway directly: ours, wherever another attachment has a gateway like it."""
    near = (ways for destination, ways in sandbox.list_routes(gateway.version).items() if gateway in destination)
    return any(way.index == inside.index and way.gw is None for ways in near for way in ways)


def _gateway(ip: IPConfig) -> Address:
    """Returns the gateway of an address; raises CniError(7) when it has none that can be."""
    if ip.gateway is None:
        details = 'the host\'s end of the pair gets it: have IPAM name a "gateway" beside the address'
        raise CniError(Code.INVALID_NETWORK_CONFIG, f"ptp needs a gateway for {ip.address}", details)
    if ip.gateway.version != ip.address.version or ip.gateway == ip.address.ip:
        problem = "the pod's own" if ip.gateway == ip.address.ip else "of the other address family"
        details = "correct the gateway in the IPAM configuration"
        msg = f"gateway {ip.gateway} of address {ip.address} is {problem}"
        raise CniError(Code.INVALID_NETWORK_CONFIG, msg, details)
    return ip.gateway


def _wrong(msg: str, details: str) -> CniError:
    return CniError(Code.INTERNAL, msg, details)
