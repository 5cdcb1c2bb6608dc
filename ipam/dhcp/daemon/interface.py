"""The pod's interface as the daemon sees it: finding it, opening a packet socket on it, configuring it.

One rule: nothing here keeps a namespace open. A descriptor of a namespace, and any socket in it, keeps a deleted pod's
namespace and its interfaces alive, so each function enters the namespace and leaves it again.
"""

from __future__ import annotations

import socket as stdlib_socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from attachment.presence import Presence, get_presence
from cni.address import Address, Cidr
from cni.errors import internal
from cni.result import Route
from ipam.dhcp.address6 import is_link_local
from ipam.dhcp.leases import AnyLease, routes_of
from ipam.dhcp.record import Target
from kernel import address, link, packet_socket, route, sysctl
from kernel.errors import KernelError
from kernel.link import Link
from kernel.netns import Netns, NetnsMissingError, entered
from kernel.packet_socket import PacketFilter, PacketSocket
from kernel.rtnl import Socket

_HERE = "/proc/self/ns/net"
_CLIENT_PORT = 68
# Returns the filters for an interface with this MAC address.
Filters = Callable[[bytes], Iterable[PacketFilter]]
_IPV6_PARAMETERS = (("accept_ra", "0"), ("accept_dad", "0"), ("disable_ipv6", "0"))


class LeasedInterface(NamedTuple):
    """An interface in the namespace at `netns`; `other_namespaces` returns the paths of all leases' namespaces.

    If one of them is seen, a missing path in the same directory is a proof of deletion (attachment/presence.py).
    """

    netns: str
    target: Target
    other_namespaces: Callable[[], Iterable[str]]


class GoneError(Exception):
    """The interface, or its namespace, was deleted."""


def find(netns: str, ifname: str, *, ipv6: bool) -> Target:
    """Returns an interface, and sets it up if it is down; raises CniError, KernelError.

    For `ipv6` the kernel must not configure the interface by router advertisements, as the daemon does that. Duplicate
    address detection of the link-local address would take a second; a new interface's address is random.
    """
    with Netns(_HERE) as host, Socket() as host_socket, Netns(netns) as namespace:
        with entered(namespace):
            socket = Socket()
            for name, value in _IPV6_PARAMETERS if ipv6 else ():
                sysctl.try_write(f"ipv6/conf/{ifname}/{name}", value)
        with socket:
            (existing,) = link.get(socket, link.by_name_request(ifname))
            if existing is None:
                details = f"the plugin that runs dhcp creates it before; the network namespace is {netns}"
                # text of the reference
                raise internal(f'error looking up "{ifname}": Link not found', details)
            if not existing.is_up:
                socket.change(link.set_request(existing, up=True))
            (host_nsid,) = link.get_namespace_ids(socket, [host])
            host_interface = _host_interface(host_socket, host_nsid, existing, namespace)
            cookie = socket.get_namespace_cookie()
    shares_mac = existing.kind == "ipvlan"
    return Target(existing.index, existing.mac, cookie, host_interface, shares_mac, existing.mtu)


def check(place: LeasedInterface) -> None:
    """Raises GoneError if the interface was deleted, CniError or KernelError if it cannot be seen now.

    Another namespace may have the same path, and another interface the same index: the namespace's cookie or the MAC
    address must be the recorded one.
    """
    with _opened(place):
        pass


def is_namespace_gone(place: LeasedInterface) -> bool:
    """Returns whether the interface's namespace was deleted; much cheaper than `check`, as it does not enter it."""
    return get_presence(place.netns, others=place.other_namespaces) is Presence.GONE


def open_packets(place: LeasedInterface, filters: Filters, *, answers_to: IPv4Address | None = None) -> PacketSockets:
    """Opens a packet socket for each filter on an interface; the caller closes them soon.

    `answers_to` is the leased address during a renewal: a UDP socket holds its port meanwhile, since the kernel would
    answer the server with an ICMP error. Raises GoneError, CniError, OSError.
    """
    with _opened(place) as (socket, existing):
        return PacketSockets(existing, filters, _get_link_local(socket, existing), _hold_port(answers_to))


def open_arp(place: LeasedInterface) -> PacketSockets:
    """Opens a packet socket for ARP on an interface; raises GoneError, CniError, OSError.

    The answers for an ipvlan interface without an address arrive on its master: the socket is opened there.
    """
    if not place.target.shares_mac:
        return open_packets(place, _arp_filters)
    on_master = open_host_packets(place.target.host_interface, _arp_filters)
    if on_master is None:
        raise GoneError
    return on_master


def open_host_packets(name: str, filters: Filters) -> PacketSockets | None:
    """Opens packet sockets on an interface of the host; None if it is missing or down. Raises KernelError, OSError."""
    if not name:
        return None
    with Socket() as socket:
        (existing,) = link.get(socket, link.by_name_request(name))
    return PacketSockets(existing, filters, None, None) if existing and existing.is_up else None


class PacketSockets:
    """The packet sockets on an interface, one for each filter, and a UDP socket that holds a port.

    `mac` and `link_local` are the interface's addresses, `is_up` whether it could send when they were opened.
    """

    def __init__(
        self,
        existing: Link,
        filters: Filters,
        link_local: IPv6Address | None,
        port: stdlib_socket.socket | None,
    ) -> None:
        self.mac = existing.mac_bytes
        self.is_up = existing.is_up
        self.link_local = link_local
        self._sockets = [PacketSocket(existing.index, each) for each in filters(existing.mac_bytes)]
        self._port = port

    def filenos(self) -> list[int]:
        """Returns the packet sockets' descriptors, in the order of the filters, for epoll."""
        return [each.fileno() for each in self._sockets]

    def send(self, frame: bytes) -> None:
        """Sends a frame; raises OSError."""
        self._sockets[0].send(frame)

    def receive(self, number: int) -> tuple[bytes, bool] | None:
        """Returns a frame that a filter accepted, and whether its checksum is complete; None without one.

        Raises OSError.
        """
        return self._sockets[number].receive()

    def close(self) -> None:
        """Closes the sockets."""
        for each in self._sockets:
            each.close()
        if self._port is not None:
            self._port.close()


def configure(
    place: LeasedInterface, before: AnyLease | None, after: AnyLease | None, priority: int, mtu: int
) -> dict[Cidr, KernelError]:
    """Changes an interface from the configuration of one lease to that of another; None: no lease.

    `priority` is the metric of the routes, `mtu` 0 leaves the MTU. New parts are added before old ones are deleted, so
    that no connection ends that can continue. Returns the destinations of the routes that the kernel refuses, such as
    one by an unreachable gateway, with its errors: the old routes to them stay.

    Raises GoneError, CniError, KernelError.
    """
    old = routes_of(before, priority) if before else ()
    new = routes_of(after, priority) if after else ()
    is_same_address = before is not None and after is not None and before.address == after.address
    refused: dict[Cidr, KernelError] = {}
    with _opened(place) as (socket, existing):
        if after is not None and not is_same_address:
            socket.change(address.add_request(existing, after.address, exists_ok=True))
        for each in new:
            if each not in old:
                try:
                    socket.change(route.add_request(existing, each, _gateway(each), exists_ok=True))
                except KernelError as error:
                    refused[each.dst] = error
        stale = [each for each in old if each not in new and each.dst not in refused]
        requests = [route.delete_request(existing, each, _gateway(each)) for each in stale]
        if before is not None and not is_same_address:
            requests.append(address.remove_request(existing, before.address))
        if mtu and mtu != existing.mtu:
            requests.append(link.set_request(existing, mtu=mtu))
        if requests:
            socket.change(*requests)
    return refused


@contextmanager
def _opened(place: LeasedInterface) -> Iterator[tuple[Socket, Link]]:
    """Runs a block in the interface's namespace, with a socket and the link; raises GoneError, CniError."""
    try:
        with Netns(place.netns) as namespace, entered(namespace), Socket() as socket:
            yield socket, _same_link(socket, place.target)
    except NetnsMissingError:
        if is_namespace_gone(place):
            raise GoneError from None
        raise


def _arp_filters(_: bytes) -> tuple[PacketFilter, ...]:
    return (packet_socket.arp_filter(),)


def _gateway(each: Route) -> Address | None:
    return each.gw if each.gw and int(each.gw) else None


def _get_link_local(socket: Socket, existing: Link) -> IPv6Address | None:
    assigned = address.list_on_link(socket, existing, family=stdlib_socket.AF_INET6)
    addresses = (IPv6Address(item.packed) for item in assigned if len(item.packed) == 16)
    return next((each for each in addresses if is_link_local(each)), None)


def _same_link(socket: Socket, target: Target) -> Link:
    (existing,) = link.get(socket, link.by_index_request(target.index))
    is_same_namespace = target.namespace_cookie and socket.get_namespace_cookie() == target.namespace_cookie
    if existing is None or not (is_same_namespace or existing.mac == target.mac):
        raise GoneError
    return existing


def _host_interface(host: Socket, host_nsid: int | None, existing: Link, namespace: Netns) -> str:
    """Returns the name of a host interface on the network of a link in `namespace`, "" without one.

    That is the bridge of a veth's peer, or the master of a macvlan or ipvlan interface. `host_nsid` is the ID of the
    host's namespace in `namespace`. A VLAN has none: frames on its master would need the VLAN's tag.
    """
    index = 0
    if existing.kind == "veth":
        peer = link.get_local_peer(host, existing, namespace)
        index = peer.master if peer else 0
    elif existing.kind in ("macvlan", "ipvlan") and existing.iflink_nsid is not None:
        index = existing.iflink if existing.iflink_nsid == host_nsid else 0
    (on_host,) = link.get(host, link.by_index_request(index)) if index else (None,)
    return on_host.name if on_host else ""


def _hold_port(answers_to: IPv4Address | None) -> stdlib_socket.socket | None:
    if answers_to is None:
        return None
    port = stdlib_socket.socket(stdlib_socket.AF_INET, stdlib_socket.SOCK_DGRAM | stdlib_socket.SOCK_CLOEXEC)
    with suppress(OSError):  # a program of the pod has the port
        port.bind((str(answers_to), _CLIENT_PORT))
    return port
