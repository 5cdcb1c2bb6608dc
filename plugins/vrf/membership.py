"""Moves an interface into a VRF device, with its addresses and routes.

The kernel sets the interface down and up again, which removes its routes, and IPv6 addresses without
keep_addr_on_down. They are copied before and added again: routes of the table "main" in the table of the VRF device,
those of other tables where they were. Connected routes are the kernel's, which adds them to the new table itself.

Undo is the same move in the other direction, so that a failed ADD leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from attachment.sandbox import Sandbox
from cni.address import Network
from cni.errors import internal
from kernel import address, address_copy, link, next_hops, route, route_copy, vrf
from kernel.address import IFA_F_DADFAILED
from kernel.address_copy import AddressCopy
from kernel.codec import AddressMessage, LinkMessage
from kernel.link import Link
from kernel.route import TABLE_MAIN
from kernel.route_copy import UNICAST, TableRoute
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, Deadline, Request, Socket
from plugins.vrf.device import failing_as
from process import record
from process.values import dataclass

_WAIT_S = 5.0  # duplicate address detection takes one to two seconds, a carrier milliseconds
_RTPROT_KERNEL, _RTPROT_RA = 2, 9  # linux/rtnetlink.h


@dataclass(frozen=True)
class SavedInterface:
    """Addresses and routes of an interface before the move, without those that the kernel adds again.

    `addresses` are those that the kernel may remove: IPv6, without link-local ones. `routes` have a next hop through
    the interface; those of router advertisements are missing, since the kernel asks for a new one. `unconnected` are
    the networks of addresses whose connected route is missing, since a plugin removed it (ptp).
    """

    addresses: tuple[AddressCopy, ...]
    routes: tuple[TableRoute, ...]
    unconnected: tuple[Network, ...]


@dataclass(frozen=True)
class VrfTarget:
    """A VRF device, or no device: its ifindex (0 for none), name, and routing table."""

    index: int
    name: str
    table: int


MAIN = VrfTarget(0, "", TABLE_MAIN)


def save(interface: Link, addresses: Sequence[AddressCopy], routes: Sequence[TableRoute]) -> SavedInterface:
    """Returns what a move of the interface has to add again. Pure."""
    used = [item for item in routes if item.type == UNICAST and interface.index in item.indexes]
    connected = {item.dst for item in used if item.table == TABLE_MAIN and _protocol(item) == _RTPROT_KERNEL}
    networks = [copy.connected_network for copy in addresses] if interface.is_up else []
    return SavedInterface(
        tuple(copy for copy in addresses if copy.is_lost),
        tuple(item for item in used if _protocol(item) not in (_RTPROT_KERNEL, _RTPROT_RA)),
        tuple(dict.fromkeys(network for network in networks if network and network not in connected)),
    )


def move(sandbox: Sandbox, interface: Link, saved: SavedInterface, to: VrfTarget) -> None:
    """Makes the interface a port of a VRF device, or of none, and adds its addresses and routes again.

    Returns when the IPv6 addresses are usable, which routes with a source address need. Raises KernelError, and
    CniError(999) for a duplicate address and for addresses that do not become usable.
    """
    socket = sandbox.socket
    request = vrf.set_master_request(interface, to.index, to.name)
    with (
        record.timed_step("move the interface"),
        failing_as(request, f"could not set vrf {to.name} as master of {interface.name}"),
    ):
        socket.change(
            request,
            *(address_copy.add_request(interface, copy) for copy in saved.addresses),
        )
    if interface.is_up:
        _wait_carrier(sandbox, interface)
        _wait_usable(sandbox, interface, saved)
        with record.timed_step("add the routes again"):
            if requests := list(_route_requests(interface, saved, to)):
                socket.change(*requests)


def _route_requests(interface: Link, saved: SavedInterface, to: VrfTarget) -> Iterator[Request]:
    """Yields the requests that add routes again, those without gateways first: gateways must be reachable.

    Each request adds its route before others to the same destination, so the order is reversed. Of a route with next
    hops through other interfaces, too, the kernel removes none: those through this interface leave the table "main".
    """
    backwards = saved.routes[::-1]
    for item in sorted(backwards, key=lambda item: any(item.gateways)):
        ours, others = next_hops.through(item, interface.index), next_hops.not_through(item, interface.index)
        if item.table != TABLE_MAIN:
            if not others:
                yield _add_request(item, item.table)
            continue
        if others:
            yield route_copy.add_request(others if to.index else item, TABLE_MAIN, replace=True)
        if ours and (to.index or not others):
            yield _add_request(ours, to.table)
    for network in saved.unconnected:
        yield route.delete_connected_request(interface, network, to.table)


def _add_request(item: TableRoute, table: int) -> Request:
    """Returns a request that adds a route before others to its destination; an equal one is success."""
    return route_copy.add_request(item, table)._replace(flags=NLM_F_ACK | NLM_F_CREATE)


def _protocol(item: TableRoute) -> int:
    return item.values["proto"]


def _wait_carrier(sandbox: Sandbox, interface: Link) -> None:
    """Waits until an interface that had a carrier has it again, at most 5 s: an address without one is unusable.

    A carrier that does not return is not an error: the other end may have been set down meanwhile.
    """
    if interface.operstate != link.OPERSTATE_UP or _operstate(sandbox.socket, interface) == link.OPERSTATE_UP:
        return
    deadline = Deadline(_WAIT_S)
    with record.timed_step("wait for the carrier"), sandbox.open_listener(link.RTNLGRP_LINK) as listener:
        while _operstate(sandbox.socket, interface) != link.OPERSTATE_UP:
            if listener.wait_notifications(LinkMessage, deadline.remaining_s()) is None:
                return


def _operstate(socket: Socket, interface: Link) -> int:
    (current,) = link.get(socket, link.by_index_request(interface.index))
    if current is None:
        raise internal(f"could not get link by name {interface.name}", "something deleted it meanwhile")
    return current.operstate


def _wait_usable(sandbox: Sandbox, interface: Link, saved: SavedInterface) -> None:
    """Waits for notifications until each IPv6 address that was usable before is usable again.

    Link-local addresses do not count: on some devices the kernel adds them much later, and no route needs them.
    """
    awaited = {copy.packed for copy in saved.addresses if copy.is_usable}
    if not awaited or not _unusable(sandbox.socket, interface, awaited):
        return
    deadline = Deadline(_WAIT_S)
    with (
        record.timed_step("wait for the IPv6 addresses"),
        sandbox.open_listener(address.RTNLGRP_IPV6_IFADDR) as listener,
    ):
        while missing := _unusable(sandbox.socket, interface, awaited):
            if listener.wait_notifications(AddressMessage, deadline.remaining_s()) is None:
                listed = ", ".join(sorted(str(ip_address(packed)) for packed in missing))
                raise internal(
                    f"{listed} of {interface.name} is not usable {_WAIT_S:.0f} s after the interface entered the VRF",
                    "IPv6 duplicate address detection did not finish; is the other end of the interface up?",
                )


def _unusable(socket: Socket, interface: Link, awaited: set[bytes]) -> set[bytes]:
    """Returns those of the `awaited` addresses that are missing or tentative; raises CniError(999) for a duplicate."""
    present = [copy for copy in address_copy.list_on_link(socket, interface) if copy.packed in awaited]
    for copy in present:
        if copy.flags & IFA_F_DADFAILED:
            raise internal(
                f"{interface.name} has address {ip_address(copy.packed)} in DADFAILED state",
                "another host on this network uses the address: remove it there, or exclude it from the IPAM range",
            )
    return awaited - {copy.packed for copy in present if copy.is_usable}
