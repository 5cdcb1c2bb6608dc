"""A container's network namespace: configures and checks addresses and routes of the attachment's interface.

All changes are sent at once, in the order of the reference plugins (addresses, up, routes): the kernel announces the
addresses that an interface has when it comes up.
"""

from __future__ import annotations

import errno
import socket as stdlib_socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Interface

from attachment.prev_result import RECREATE_HINT
from cni.address import Address, Network, host_cidr
from cni.errors import CniError, internal, invalid_conf
from cni.result import IPConfig, Result, Route
from kernel import address, link, route, sysctl
from kernel.address import IFA_F_DADFAILED, IFA_F_TENTATIVE
from kernel.codec import AddressMessage
from kernel.errors import KernelError
from kernel.link import Link
from kernel.link_deletion import delete_in_background
from kernel.netns import Netns, entered
from kernel.route import InstalledRoute
from kernel.rtnl import Deadline, Request, Socket
from process import record

_DAD_TIMEOUT_S = 5.0  # as in the reference plugins; duplicate address detection itself takes one to two seconds


class Sandbox:
    """An attachment's interface in its namespace, with one netlink socket there. A context manager.

    The namespace is entered when the socket is first used.
    """

    def __init__(self, namespace: Netns, ifname: str) -> None:
        self.path = namespace.path
        self.ifname = ifname
        self.namespace = namespace
        self._socket: Socket | None = None
        self._routes: dict[int, dict[Network, list[InstalledRoute]]] = {}

    def delete_link(self, container_link: Link, host: Socket) -> bool:
        """Deletes an interface, and a veth's peer with it; returns whether the peer was on the host.

        A veth with its peer on the host is deleted from the host, in the background (kernel.link_deletion). Other
        links are deleted from inside, and so is a veth if that failed; that waits until the kernel has freed the link.
        Raises KernelError, and CniError(11) when the kernel does not announce the deletion in time.
        """
        peer = link.get_local_peer(host, container_link, self.namespace)
        if peer is None or not delete_in_background(
            peer, container_link, lambda: self.open_listener(link.RTNLGRP_LINK)
        ):
            self.socket.change(link.delete_request(container_link))
        return peer is not None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *error: object) -> None:
        if self._socket is not None:
            self._socket.close()

    @property
    def socket(self) -> Socket:
        """The socket in the namespace, opened on first access; raises CniError(8), KernelError."""
        if self._socket is None:
            self._socket = self.open_socket()
        return self._socket

    def open_socket(self) -> Socket:
        """Opens another socket in the namespace; the caller closes it. Raises CniError(8), KernelError."""
        with entered(self.namespace):
            return Socket()

    def open_listener(self, group: int) -> Socket:
        """Opens a second socket in the namespace, subscribed to a multicast group (RTNLGRP_*); the caller closes it."""
        socket = self.open_socket()
        socket.subscribe(group)
        return socket

    def find_link(self) -> Link | None:
        """Returns the interface, None without one of that name; raises KernelError."""
        return link.get(self.socket, link.by_name_request(self.ifname))[0]

    def get_link(self) -> Link:
        """Returns the interface; raises KernelError, and CniError(999) without one of that name."""
        container_link = self.find_link()
        if container_link is None:
            raise internal(
                f'failed to lookup "{self.ifname}": Link not found',
                f"the network namespace is {self.path}; something else deleted it",
            )
        return container_link

    def configure(
        self, container_link: Link, result: Result, *, dad: bool, await_ipv6: bool = True, redirects: bool = True
    ) -> None:
        """Adds the addresses and routes of `result`, sets the interface up and waits until its addresses are usable.

        `dad` runs IPv6 duplicate address detection, which needs a carrier: without `await_ipv6` nothing waits for it.
        Without `redirects` the interface ignores ICMP redirects.
        Addresses without an interface index belong to other interfaces.
        Raises KernelError, and CniError for a wrong index and for a duplicate address.
        """
        ips = attachment_ips(result, self.ifname)
        ipv6 = any(isinstance(ip.address, IPv6Interface) for ip in ips)
        with entered(self.namespace):
            self._socket = self._socket or Socket()
            _write_parameters(self.ifname, ipv6=ipv6, dad=dad)
            if not redirects:
                _ignore_redirects(self.ifname, ipv6=ipv6)
        with record.timed_step("add addresses and routes"), explained_gateways(container_link, result):
            self.socket.change(
                link.set_request(container_link, arp_notify=True),
                *(address.add_request(container_link, ip.address) for ip in ips),
                link.set_request(container_link, up=True),
                *add_routes_requests(container_link, result),
            )
        if ipv6 and await_ipv6:
            with record.timed_step("wait for the IPv6 addresses"):
                self._wait_usable(container_link)

    def announce(self, container_link: Link) -> None:
        """Makes the kernel announce the interface's addresses again, by gratuitous ARP and unsolicited advertisement.

        The kernel announces them when the interface comes up, but that is lost if the host veth does not forward yet,
        as with the reference plugins. Neighbours of the address's previous owner, a deleted pod, would then keep its
        MAC address for up to a minute. Setting the interface's current MAC address again triggers an announcement.
        Raises KernelError.
        """
        self.socket.change(link.set_request(container_link, mac=container_link.mac_bytes))

    def _wait_usable(self, container_link: Link) -> None:
        """Waits for kernel notifications until no IPv6 address of the interface is tentative."""
        if not self._has_tentative_address(container_link):  # the usual case, without duplicate address detection
            return
        deadline = Deadline(_DAD_TIMEOUT_S)
        with self.open_listener(address.RTNLGRP_IPV6_IFADDR) as listener:
            while self._has_tentative_address(container_link):
                if listener.wait_notifications(AddressMessage, deadline.remaining_s()) is None:
                    if self.get_link().operstate == link.OPERSTATE_UP:
                        raise internal(
                            f"link {container_link.name} still has tentative addresses after {_DAD_TIMEOUT_S:.0f} s",
                            "IPv6 duplicate address detection did not finish; does the other end forward?",
                        )
                    return  # without a carrier it cannot finish; no failure (as in the reference plugins since 1.9.0)

    def _has_tentative_address(self, container_link: Link) -> bool:
        """Returns whether an IPv6 address is tentative; raises CniError(999) for one that another host uses."""
        addresses = address.list_on_link(self.socket, container_link, family=stdlib_socket.AF_INET6)
        for assigned in addresses:
            if assigned.flags & IFA_F_DADFAILED:
                raise internal(
                    f"link {container_link.name} has address {assigned.address.ip} in DADFAILED state",
                    "another host on this network uses the address: remove it there, or exclude it from the IPAM range",
                )
        return any(assigned.flags & IFA_F_TENTATIVE for assigned in addresses)

    def list_routes(self, version: int) -> dict[Network, list[InstalledRoute]]:
        """Returns the unicast routes of IP `version` by destination, cached; raises KernelError."""
        if version not in self._routes:
            by_destination = self._routes[version] = {}
            for installed in route.list_unicast(self.socket, version):
                by_destination.setdefault(installed.dst.network, []).append(installed)
        return self._routes[version]


def check_addresses_and_routes(sandbox: Sandbox, container_link: Link, prev_result: Result) -> None:
    """Checks that the addresses and routes of `prev_result` are on the interface; raises CniError(999), KernelError.

    Any default route passes, since later plugins may replace it. Routes may be on any interface: prevResult does not
    list their interfaces.
    """
    present = address.keys(address.list_on_link(sandbox.socket, container_link))
    for ip in attachment_ips(prev_result, sandbox.ifname, strict=False):
        if address.key(ip.address) not in present:
            raise _missing(f'address {ip.address} is not on "{container_link.name}"', sandbox)
    for item in prev_result.routes:
        installed = sandbox.list_routes(item.dst.version).get(item.dst.network, [])
        if not any(_satisfies(each, item) for each in installed):
            raise _missing(f"route {item.dst.network}{f' via {item.gw}' if item.gw else ''} is missing", sandbox)


def _satisfies(installed: InstalledRoute, expected: Route) -> bool:
    """Returns whether a route to the same destination passes: any default route, else one with the same gateway."""
    return not expected.dst.network.prefixlen or expected.gw in (None, installed.gw)


def _missing(expected: str, sandbox: Sandbox) -> CniError:
    return internal(f"Expected {expected}", f"the network namespace is {sandbox.path}; {RECREATE_HINT}")


def add_routes_requests(container_link: Link, result: Result) -> list[Request]:
    """Returns requests that add the routes of `result`."""
    ips = attachment_ips(result, container_link.name, strict=False)
    return [route.add_request(container_link, item, gateway_of(item, ips)) for item in result.routes]


@contextmanager
def explained_gateways(container_link: Link, result: Result) -> Iterator[None]:
    """Explains a KernelError of the block: names the gateway that is in no subnet of the interface, and the fix."""
    try:
        yield
    except KernelError as error:
        if error.errno not in (errno.ENETUNREACH, errno.EHOSTUNREACH):
            raise
        ips = attachment_ips(result, container_link.name, strict=False)
        gateways = (gateway_of(item, ips) for item in result.routes)
        for gateway in gateways:
            if gateway is not None and not any(gateway in ip.address.network for ip in ips):
                to_gateway = f'{{"dst": "{host_cidr(gateway)}", "scope": {route.SCOPE_LINK}}}'
                details = (
                    f"the gateway {gateway} is in no subnet of the interface: if it is on the link, put a route to it "
                    f'before the others: "routes": [{to_gateway}, ...]'
                )
                raise CniError(error.code, error.msg, details) from error
        raise


def attachment_ips(result: Result, ifname: str, *, strict: bool = True) -> list[IPConfig]:
    """Returns the interface's addresses in a result, without those of other interfaces.

    An address without an interface index, or with one that no interface of the result has, counts only without
    `strict`. With `strict`, such an index and that of another interface raise CniError(999). Both is as with the
    reference plugins.
    """
    ips = []
    for ip in result.ips:
        index = ip.interface
        name = result.interfaces[index].name if index is not None and 0 <= index < len(result.interfaces) else None
        if name == ifname:
            ips.append(ip)
        elif strict and index is not None:
            raise internal(
                f'failed to add IP addr {ip.address} to "{ifname}": invalid interface index',
                f"interface {index} of the result is another one; correct the result of the IPAM plugin",
            )
        elif not strict and name is None:
            ips.append(ip)
    return ips


def gateway_of(item: Route, ips: Iterable[IPConfig]) -> Address | None:
    """Returns a route's gateway, by default the first of its address family; a route of scope link has none."""
    if item.gw or item.scope == route.SCOPE_LINK:
        return item.gw
    family = type(item.dst)
    return next((ip.gateway for ip in ips if ip.gateway and isinstance(ip.address, family)), None)


def _ignore_redirects(ifname: str, *, ipv6: bool) -> None:
    """Sets the kernel parameters; runs inside the namespace. For IPv4, 1 in "all" or the interface's accepts."""
    for conf in (f"ipv4/conf/{ifname}", "ipv4/conf/all", *([f"ipv6/conf/{ifname}"] if ipv6 else [])):
        sysctl.try_write(f"{conf}/accept_redirects", "0")


def _write_parameters(ifname: str, *, ipv6: bool, dad: bool) -> None:
    """Sets the kernel parameters that must precede addresses; runs inside the namespace.

    IPv6 parameters are also written for an IPv4 attachment, for the interface's link-local address.
    """
    conf = f"ipv6/conf/{ifname}/"
    if dad:
        sysctl.try_write(conf + "enhanced_dad", "1")
    sysctl.try_write(conf + "accept_dad", "1" if dad else "0")
    if not ipv6:
        return
    sysctl.try_write(conf + "keep_addr_on_down", "1")
    try:
        for name in ("lo", ifname):
            sysctl.ensure(f"ipv6/conf/{name}/disable_ipv6", "0")
        sysctl.try_write(conf + "ndisc_notify", "1")  # the IPv6 counterpart of arp_notify, for announce()
    except FileNotFoundError as error:
        raise invalid_conf(
            f"failed to enable IPv6 on interface {ifname}: {error.filename} is missing",
            "the kernel runs without IPv6; remove the IPv6 ranges from the configuration",
        ) from error
    except OSError as error:
        raise internal(
            f"failed to enable IPv6 on interface {ifname}: {error.filename}: {error.strerror}",
            "IPv6 is disabled in the container; enabling it needs a writable /proc/sys",
        ) from error
