"""A machine outside the node: a network namespace without a name, joined to the node by a veth.

The namespace exists as long as this process has it open. However the process ends, the kernel then deletes the
namespace, the veth, and with it the node's addresses and routes on it: there is nothing to undo.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_interface, ip_network

from cni.address import Address, Cidr
from cni.errors import internal
from cni.result import Route
from kernel import address, link, route, sysctl
from kernel.codec import LinkMessage
from kernel.link import VethEnd, random_mac
from kernel.rtnl import Deadline, Socket
from kernel.unnamed_netns import create_unnamed
from podwire.trace.place import EXTERNAL, Place

# Networks that are reserved for benchmarks and documentation (RFC 2544, RFC 5180, RFC 5737): no host uses them.
_NETWORKS = {
    4: ("198.18.251.248/30", "198.19.251.248/30", "192.0.2.248/30", "203.0.113.248/30"),
    6: ("2001:2:0:fb::/64", "2001:db8:fb::/64"),
}
_CARRIER_S = 3.0
_PREFIX = "vethpwo"  # names that begin with veth are left alone by DHCP clients and network managers


class ExternalHost(Place):
    """The outside: its `local_addresses` by IP version, and the node's at the other end (`gateways`)."""

    local_addresses: dict[int, Address]
    gateways: dict[int, Address]
    host_veth: str


@contextmanager
def joined(node: Place) -> Iterator[ExternalHost]:
    """Yields the outside, with IPv6 if the node has it; raises KernelError, and CniError if all networks are in use."""
    netns = create_unnamed()
    with netns, ExternalHost(EXTERNAL, "outside", netns) as place:
        ends = {version: _free_network(node, version) for version in _versions(node)}
        _connect(node, place, ends)
        place.local_addresses = {version: there.ip for version, (_, there) in ends.items()}
        place.gateways = {version: here.ip for version, (here, _) in ends.items()}
        node.forget()
        try:
            yield place
        finally:
            _delete_veth(node, place.host_veth)
            node.forget()


def _versions(node: Place) -> tuple[int, ...]:
    has_ipv6 = any(item.version == 6 and not (item.is_link_local or item.is_loopback) for item in node.links_by_address)
    return (4, 6) if has_ipv6 else (4,)


def _free_network(node: Place, version: int) -> tuple[Cidr, Cidr]:
    """Returns the addresses of the node and of the outside in the first network that the node has no route to.

    VPNs have halves of IPv4, and 2000::/3, in place of a default route.
    """
    used = [one.destination for one in node.fib.routes if one.destination.prefixlen > 3]
    for text in _NETWORKS[version]:
        network = ip_network(text)
        if not any(network.overlaps(other) for other in used if other.version == version):
            first = network.network_address
            return ip_interface((first + 1, network.prefixlen)), ip_interface((first + 2, network.prefixlen))
    msg = f"the node has routes to all networks that the outside could use: {', '.join(_NETWORKS[version])}"
    raise internal(msg)


def _connect(node: Place, place: ExternalHost, ends: dict[int, tuple[Cidr, Cidr]]) -> None:
    place.host_veth = f"{_PREFIX}{os.getpid() % 100_000_000}"
    netns = place.netns
    request = link.create_veth_request(
        VethEnd(place.host_veth, random_mac()), VethEnd("eth0", random_mac()), netns, mtu=0
    )
    with Socket() as listener:
        listener.subscribe(link.RTNLGRP_LINK)
        node.socket.send(request)
        # While its link-local address is tentative, the node asks for no MAC address of packets that it forwards.
        node.call(lambda: sysctl.try_write(f"ipv6/conf/{place.host_veth}/accept_dad", "0"))
        _configure(node, place, ends)
        _await_carrier(node, place.host_veth, listener)


def _configure(node: Place, place: ExternalHost, ends: dict[int, tuple[Cidr, Cidr]]) -> None:
    here, there, loopback = (
        *link.get(node.socket, link.by_name_request(place.host_veth)),
        *link.get(place.socket, link.by_name_request("eth0"), link.by_name_request("lo")),
    )
    if here is None or there is None or loopback is None:
        raise internal(f'the veth "{place.host_veth}" was deleted by another program')
    node.socket.send(*(address.add_request(here, ours, dad=False) for ours, _ in ends.values()))
    place.socket.send(
        link.set_request(loopback, up=True),
        *(address.add_request(there, theirs, dad=False) for _, theirs in ends.values()),
        link.set_request(there, up=True),
        *(route.add_request(there, _default(version), ours.ip) for version, (ours, _) in ends.items()),
    )


def _await_carrier(node: Place, name: str, listener: Socket) -> None:
    """Waits until the node's end may send: the kernel activates its queue a moment after the other end is up."""
    deadline = Deadline(_CARRIER_S)
    while remaining_s := deadline.remaining_s():
        (veth,) = link.get(node.socket, link.by_name_request(name))
        if veth is None or veth.operstate == link.OPERSTATE_UP:
            return
        listener.wait_notifications(LinkMessage, remaining_s)


def _default(version: int) -> Route:
    return Route(ip_interface("0.0.0.0/0" if version == 4 else "::/0"))


def _delete_veth(node: Place, name: str) -> None:
    (veth,) = link.get(node.socket, link.by_name_request(name))
    if veth:
        node.socket.send(link.delete_request(veth))
