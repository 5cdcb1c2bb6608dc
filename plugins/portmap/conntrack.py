"""UDP flows that began before a change of the host ports: they are forgotten, so that the new rules decide.

Without that a client that goes on sending from one port (a resolver, a telephone, a syslog daemon) is led to a pod that
is gone, or past the new one, for as long as it sends. TCP needs none of this: its connections end with the pod.

One rule: only what went to a mapped port of this very host is forgotten. Flows that pass through keep their entries:
with a host port 53, those of the pods' queries to servers elsewhere.
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


def delete_flows(wanted: HostPorts) -> None:
    """Deletes the kernel's entries of flows to the UDP host ports; a failure is told on stderr (reference).

    Costs a message for each IP version, which takes the kernel a while (conntrack.udp); nothing without UDP.
    """
    if not _mappings(wanted):
        return
    try:
        with nft.open_socket() as socket:
            delete_flows_with(socket, wanted)
    except KernelError as error:
        _tell(error)


def delete_stray_flows(wanted: HostPorts) -> None:
    """Deletes of them those that are not led to the pod: they began while there were no rules.

    The others go on: without its entry a pod's next datagram would come from another port, or collide.
    """
    if not _mappings(wanted):
        return
    try:
        with nft.open_socket() as socket:
            delete_flows_with(socket, wanted, strayed=True)
    except KernelError as error:
        _tell(error)


def delete_flows_with(socket: NftSocket, wanted: HostPorts, *, strayed: bool = False) -> None:
    """Does so with the socket by which rules were deleted: closing another one would wait for those (netfilter.nft)."""
    try:
        # DEL may know no address of the pod: then the mappings alone say which versions.
        for version in wanted.families or (4, 6):
            mappings = _mappings(wanted, version)
            if mappings:
                entries = conntrack.list_udp_flows(socket, version, {mapping.host_port for mapping in mappings})
                right = _targets(wanted, version) if strayed else set()
                concerned = [entry for entry in entries if entry.reply_source not in right]
                conntrack.delete_flows(socket, _concerned(version, mappings, concerned))
    except KernelError as error:
        _tell(error)


def _mappings(wanted: HostPorts, *versions: int) -> list[PortMapping]:
    """Returns the UDP mappings that are for one of these IP versions, for any unless given."""
    return [
        mapping
        for mapping in wanted.mappings
        if mapping.protocol == "udp" and any(map(mapping.serves, versions or (4, 6)))
    ]


def _targets(wanted: HostPorts, version: int) -> set[tuple[Address, int]]:
    """Returns where the mappings lead to."""
    own = wanted.addresses.get(version)
    return {(own.ip, mapping.container_port) for mapping in _mappings(wanted, version)} if own else set()


def _concerned(version: int, mappings: list[PortMapping], entries: list[Flow]) -> list[Flow]:
    """Returns the entries that went to a mapping's address, or to any of this host's where it has none.

    Those are asked for only when there is an entry to judge.
    """
    if not entries:
        return []
    with Socket() as socket:
        local = route.list_local_networks(socket, version)

    def went_to(mapping: PortMapping, entry: Flow) -> bool:
        if mapping.host_port != entry.port:
            return False
        only_to = mapping.only_to
        return only_to == entry.destination if only_to else any(entry.destination in network for network in local)

    return [entry for entry in entries if any(went_to(mapping, entry) for mapping in mappings)]


def _tell(error: KernelError) -> None:
    print(f"podwire: UDP flows may go on to where they went before: {error}", file=sys.stderr)
