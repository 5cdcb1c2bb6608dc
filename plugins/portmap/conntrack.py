"""Deletes from conntrack the UDP flows to changed host ports, so that the new rules apply to these flows.

conntrack keeps the NAT decision of a flow's first packet. Without the deletion, a client that keeps sending from one
port (a resolver, a phone, a syslog daemon) would reach a deleted pod, or bypass a new one. TCP connections end with the
pod.

Only flows to a published port of the host's own addresses are deleted. Forwarded flows are kept, for example pods' DNS
queries to other servers if 53 is a host port.
"""

from __future__ import annotations

import sys

from cni.address import Address
from kernel import route
from kernel.errors import KernelError
from kernel.netfilter import conntrack, nft
from kernel.netfilter.conntrack import TrackedFlow
from kernel.netfilter.nft import NftSocket
from kernel.rtnl import Socket
from plugins.portmap.conf import HostPorts, PortMapping


def delete_flows(host_ports: HostPorts) -> None:
    """Deletes the flows to the UDP host ports; prints a failure to stderr, as the reference plugin does.

    Costs one slow netlink message for each IP version (conntrack.list_udp_flows), none without UDP mappings.
    """
    if not _udp_mappings(host_ports):
        return
    try:
        with nft.open_socket() as socket:
            delete_flows_with_socket(socket, host_ports)
    except KernelError as error:
        _warn(error)


def delete_stray_flows(host_ports: HostPorts) -> None:
    """Deletes the flows that do not reach the pod, since they began while rules were missing.

    Flows to the pod are kept: after a deletion the pod's next reply would have another source port.
    """
    if not _udp_mappings(host_ports):
        return
    try:
        with nft.open_socket() as socket:
            delete_flows_with_socket(socket, host_ports, only_stray=True)
    except KernelError as error:
        _warn(error)


def delete_flows_with_socket(socket: NftSocket, host_ports: HostPorts, *, only_stray: bool = False) -> None:
    """Deletes the flows, with the socket that deleted the rules: closing a second socket would wait for the kernel."""
    try:
        # DEL may not know the pod's addresses: then it deletes the flows of both IP versions.
        for version in host_ports.ip_versions or (4, 6):
            mappings = _udp_mappings(host_ports, version)
            if mappings:
                flows = conntrack.list_udp_flows(socket, version, {mapping.host_port for mapping in mappings})
                pod_endpoints = _pod_endpoints(host_ports, version) if only_stray else set()
                flows = [flow for flow in flows if flow.reply_source not in pod_endpoints]
                conntrack.delete_flows(socket, _select_flows(version, mappings, flows))
    except KernelError as error:
        _warn(error)


def _udp_mappings(host_ports: HostPorts, *versions: int) -> list[PortMapping]:
    """Returns the UDP mappings that apply to one of `versions`; without arguments, all UDP mappings."""
    return [
        mapping
        for mapping in host_ports.mappings
        if mapping.protocol == "udp" and any(map(mapping.applies_to, versions or (4, 6)))
    ]


def _pod_endpoints(host_ports: HostPorts, version: int) -> set[tuple[Address, int]]:
    """Returns the pod's address and port of each mapping."""
    pod = host_ports.addresses.get(version)
    return {(pod.ip, mapping.container_port) for mapping in _udp_mappings(host_ports, version)} if pod else set()


def _select_flows(version: int, mappings: list[PortMapping], flows: list[TrackedFlow]) -> list[TrackedFlow]:
    """Returns the flows to a mapping's host address; if it has none, to any address of this host.

    Reads the host's addresses only if there are flows.
    """
    if not flows:
        return []
    with Socket() as socket:
        local = route.list_local_networks(socket, version)

    def is_to(mapping: PortMapping, flow: TrackedFlow) -> bool:
        if mapping.host_port != flow.port:
            return False
        bound_ip = mapping.bound_ip
        return bound_ip == flow.destination if bound_ip else any(flow.destination in network for network in local)

    return [flow for flow in flows if any(is_to(mapping, flow) for mapping in mappings)]


def _warn(error: KernelError) -> None:
    print(f"portmap: UDP flows may continue to their previous destination: {error}", file=sys.stderr)
