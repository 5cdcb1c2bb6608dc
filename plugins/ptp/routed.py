"""Addresses and routes of both ends of a routed veth pair.

Each end has a host route to the other, and the pod's subnet is routed via its gateway, the host, so that two pods of
one subnet reach each other through the host. Every host veth has the same gateway address.
"""

from __future__ import annotations

from attachment import auto_mtu, forwarding
from attachment.prev_result import RECREATE_HINT
from attachment.sandbox import Sandbox, add_routes_requests, attachment_ips, explained_gateways
from attachment.veth import refuse_small_mtu
from cni.address import Address, Network, host_cidr, with_prefix
from cni.errors import internal, invalid_conf
from cni.result import IPConfig, Result, Route
from kernel import address, route, sysctl
from kernel.link import Link
from kernel.rtnl import Request, Socket
from plugins.ptp.conf import PtpConf
from process.values import replace


def assign_addresses(ipam_result: Result, conf: PtpConf, interface: int) -> Result:
    """Returns the IPAM result with its addresses assigned to `interface`; raises CniError(7) for unusable addresses.

    `interface` is an index into the result's interfaces.
    """
    refuse_small_mtu(conf.mtu, ipam_result.ips, auto_mtu.HINT if conf.mtu_auto else "")
    for ip in ipam_result.ips:
        _gateway(ip)
    return replace(ipam_result, ips=tuple(replace(ip, interface=interface) for ip in ipam_result.ips))


def configure_host(host: Socket, host_veth: Link, result: Result) -> None:
    """Adds the gateway addresses and routes to the pod's addresses to the host veth, and enables forwarding.

    Raises CniError(999), KernelError.
    """
    for version in sorted({ip.address.version for ip in result.ips}):
        forwarding.enable(version)
        if version == 6:
            # The only peer is the pod, which does not have the gateway address: detection would waste a second.
            sysctl.try_write(f"ipv6/conf/{host_veth.name}/accept_dad", "0")
            sysctl.ensure_or_fail(f"ipv6/conf/{host_veth.name}/disable_ipv6", "0", f'enable IPv6 on "{host_veth.name}"')
    requests: list[Request] = []
    for ip in result.ips:
        requests.append(address.add_request(host_veth, host_cidr(_gateway(ip)), exists_ok=True))
        scope = route.SCOPE_HOST if ip.address.version == 4 else None
        requests.append(
            route.add_request(host_veth, Route(host_cidr(ip.address.ip), scope=scope), None, exists_ok=True)
        )
    host.change(*requests)


def configure_container(sandbox: Sandbox, container_veth: Link, result: Result) -> None:
    """Adds host routes to the gateways and IPAM's routes, and routes the pod's subnets via their gateways.

    IPAM's routes are added before the kernel's subnet routes are deleted: their gateways may be in these subnets.
    Raises KernelError.
    """
    requests: list[Request] = []
    # The first address of a subnet, or with a gateway, is the preferred source.
    subnets: dict[Network, IPConfig] = {}
    sources: dict[Address, Address] = {}
    for ip in result.ips:
        subnets.setdefault(ip.address.network, ip)
        sources.setdefault(_gateway(ip), ip.address.ip)
    for gateway, source in sources.items():
        to_gateway = Route(host_cidr(gateway), scope=route.SCOPE_LINK)
        requests.append(route.add_request(container_veth, to_gateway, None, source=source, exists_ok=True))
    requests += add_routes_requests(container_veth, result)
    requests += [route.delete_connected_request(container_veth, network) for network in subnets]
    for network, ip in subnets.items():
        # Also for a host's prefix (/32, /128): CHECK of the reference plugins requires a route to each subnet.
        to_subnet = Route(with_prefix(network.network_address, network.prefixlen))
        requests.append(route.add_request(container_veth, to_subnet, ip.gateway, source=ip.address.ip, exists_ok=True))
    with explained_gateways(container_veth, result):
        sandbox.socket.change(*requests)


def check(sandbox: Sandbox, container_veth: Link, host_veth: Link, prev_result: Result, host: Socket) -> None:
    """Checks the routes of both ends and the gateways' addresses; raises CniError(999), KernelError."""
    present = address.keys(address.list_on_link(host, host_veth))
    for ip in attachment_ips(prev_result, sandbox.ifname, strict=False):
        address_in_pod, gateway = ip.address.ip, ip.gateway
        if gateway is None:
            continue
        if (gateway.packed, gateway.max_prefixlen) not in present:
            details = f'add it: ip address add {host_cidr(gateway)} dev "{host_veth.name}"'
            raise internal(f"Interface {host_veth.name} has lost the gateway address {gateway}", details)
        if route.get_index_to(host, address_in_pod) != host_veth.index:
            used = route.get_interface_to(host, address_in_pod)
            state = f'it goes through "{used.name}"' if used else "there is none"
            details = f'{state}; set it: ip route replace {address_in_pod} dev "{host_veth.name}"'
            raise internal(f"The host's route to {address_in_pod} does not go through {host_veth.name}", details)
        if not _is_directly_reachable(sandbox, container_veth, gateway):
            raise internal(
                f"Failed to find Gateway {gateway} for interface {container_veth.name}",
                f"the network namespace is {sandbox.path}; {RECREATE_HINT}",
            )


def _is_directly_reachable(sandbox: Sandbox, container_veth: Link, gateway: Address) -> bool:
    """Returns whether a route of this interface, among those of all attachments, reaches the gateway directly."""
    by_destination = sandbox.list_routes(gateway.version).items()
    routes = [hop for destination, hops in by_destination if gateway in destination for hop in hops]
    return any(hop.index == container_veth.index and hop.gw is None for hop in routes)


def _gateway(ip: IPConfig) -> Address:
    """Returns the gateway of an address; raises CniError(7) for a missing or impossible one."""
    if ip.gateway is None:
        details = 'the host veth gets this address: configure the IPAM plugin to return a "gateway" with it'
        raise invalid_conf(f"ptp needs a gateway for {ip.address}", details)
    if ip.gateway.version != ip.address.version or ip.gateway == ip.address.ip:
        problem = "the pod's own" if ip.gateway == ip.address.ip else "of the other address family"
        details = "correct the gateway in the IPAM configuration"
        msg = f"gateway {ip.gateway} of address {ip.address} is {problem}"
        raise invalid_conf(msg, details)
    return ip.gateway
