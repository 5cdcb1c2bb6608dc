"""Deletes conntrack entries of UDP flows to host ports that have changed, so that the new rules apply to them.

Otherwise a client that keeps sending from one port (a resolver, a telephone, a syslog daemon) would reach a deleted
pod, or bypass the new one, as long as it keeps sending. TCP connections end with the pod.

One rule: only entries of flows to a mapped port of this host are deleted. Forwarded flows keep their entries: with host
port 53, those of the pods' queries to other servers.
"""

from __future__ import annotations

import sys

from cni.address import Address
from kernel import route
from kernel.errors import KernelError
from kernel.netfilter import conntrack, nft
from kernel.netfilter.conntrack import Flow
from kernel.netfilter.nft import NftSocket
from kernel.rtnl import Socket
from plugins.portmap.spec import HostPorts, PortMapping


def delete_flows(host_ports: HostPorts) -> None:
    """Deletes the entries of flows to the UDP host ports; prints a failure to stderr (reference).

    Costs one slow netlink message per IP version (conntrack.list_udp_flows); nothing without UDP mappings.
    """
    if not _mappings(host_ports):
        return
    try:
        with nft.open_socket() as socket:
            delete_flows_with(socket, host_ports)
    except KernelError as error:
        _warn(error)


def delete_stray_flows(host_ports: HostPorts) -> None:
    """Deletes the entries of flows that do not reach the pod: they began while rules were missing.

    Flows to the pod continue: without its entry, the pod's next answer would come from another port, or collide.
    """
    if not _mappings(host_ports):
        return
    try:
        with nft.open_socket() as socket:
            delete_flows_with(socket, host_ports, only_stray=True)
    except KernelError as error:
        _warn(error)


def delete_flows_with(socket: NftSocket, host_ports: HostPorts, *, only_stray: bool = False) -> None:
    """Deletes these entries on the socket that deleted the rules: closing a second one would wait for the kernel."""
    try:
        # DEL may not know the pod's addresses: then the mappings decide about IP versions.
        for version in host_ports.families or (4, 6):
            mappings = _mappings(host_ports, version)
            if mappings:
                entries = conntrack.list_udp_flows(socket, version, {mapping.host_port for mapping in mappings})
                targets = _targets(host_ports, version) if only_stray else set()
                entries = [entry for entry in entries if entry.reply_source not in targets]
                conntrack.delete_flows(socket, _select_entries(version, mappings, entries))
    except KernelError as error:
        _warn(error)


def _mappings(host_ports: HostPorts, *versions: int) -> list[PortMapping]:
    """Returns the UDP mappings that apply to one of these IP versions, by default to any."""
    return [
        mapping
        for mapping in host_ports.mappings
        if mapping.protocol == "udp" and any(map(mapping.applies_to, versions or (4, 6)))
    ]


def _targets(host_ports: HostPorts, version: int) -> set[tuple[Address, int]]:
    """Returns the pod's address and port of each mapping."""
    pod = host_ports.addresses.get(version)
    return {(pod.ip, mapping.container_port) for mapping in _mappings(host_ports, version)} if pod else set()


def _select_entries(version: int, mappings: list[PortMapping], entries: list[Flow]) -> list[Flow]:
    """Returns the entries of flows to a mapping's host address, or to any address of this host if it has none.

    Reads the host's addresses only if there are entries.
    """
    if not entries:
        return []
    with Socket() as socket:
        local = route.list_local_networks(socket, version)

    def went_to(mapping: PortMapping, entry: Flow) -> bool:
        if mapping.host_port != entry.port:
            return False
        bound_ip = mapping.bound_ip
        return bound_ip == entry.destination if bound_ip else any(entry.destination in network for network in local)

    return [entry for entry in entries if any(went_to(mapping, entry) for mapping in mappings)]


def _warn(error: KernelError) -> None:
    print(f"podwire: UDP flows may continue to their previous destination: {error}", file=sys.stderr)
