"""UDP flows that began before a change of the host ports: they are forgotten, so that the new rules decide.

Without that a client that goes on sending from one port (a resolver, a telephone, a syslog daemon) is led to a pod that
is gone, or past the new one, for as long as it sends. TCP needs none of this: its connections end with the pod.

One rule: only what went to a mapped port of this very host is forgotten. Flows that pass through keep their entries:
with a host port 53, those of the pods' queries to servers elsewhere.
"""

from __future__ import annotations

import sys

from kernel import conntrack, nft, route
from kernel.conntrack import Entry
from kernel.errors import KernelError
from kernel.nft import NftSocket
from kernel.rtnl import Socket
from plugins.portmap.wanted import HostPorts

_VERSIONS = (4, 6)


def forget(wanted: HostPorts) -> None:
    """Deletes the kernel's entries of flows to the UDP host ports; a failure is told on stderr (reference).

    Costs a message for each IP version with UDP mappings, nothing without.
    """
    if not _ports(wanted):
        return
    try:
        with nft.opened() as socket:
            _forget(socket, wanted)
    except KernelError as error:
        _tell(error)


def forget_with(socket: NftSocket, wanted: HostPorts) -> None:
    """Does the same with a netfilter socket that is there."""
    try:
        _forget(socket, wanted)
    except KernelError as error:
        _tell(error)


def _forget(socket: NftSocket, wanted: HostPorts) -> None:
    # DEL may know no address of the pod: then the mappings alone say which versions.
    for version in wanted.families or _VERSIONS:
        ports = _ports(wanted, version)
        if ports:
            conntrack.delete(socket, _concerned(wanted, version, conntrack.udp(socket, version, ports)))


def _ports(wanted: HostPorts, *versions: int) -> set[int]:
    """Returns the UDP host ports of these IP versions, of all unless given."""
    mappings = [mapping for version in versions or _VERSIONS for mapping in wanted.of(version)]
    return {mapping.host_port for mapping in mappings if mapping.protocol == "udp"}


def _concerned(wanted: HostPorts, version: int, entries: list[Entry]) -> list[Entry]:
    """Returns the entries that went to a mapping's address, or to any of this host's where it has none.

    Those are asked for only when there is an entry to judge.
    """
    if not entries:
        return []
    with Socket() as socket:
        local = route.local(socket, version)
    mappings = [mapping for mapping in wanted.of(version) if mapping.protocol == "udp"]
    return [
        entry
        for entry in entries
        if any(
            mapping.host_port == entry.port
            and (
                mapping.only_to == entry.destination
                if mapping.only_to
                else any(entry.destination in network for network in local)
            )
            for mapping in mappings
        )
    ]


def _tell(error: KernelError) -> None:
    print(f"podwire: UDP flows may go on to where they went before: {error}", file=sys.stderr)
