"""The inside of a sandbox: addresses and routes on its interface, and checking that they are still there.

One rule: all changes go out in one send, in the reference's order (addresses, up, routes), because the kernel
announces the addresses that an interface has when it comes up.
"""

from __future__ import annotations

import socket as stdlib_socket
from ipaddress import IPv6Interface
from types import TracebackType

from cni.address import Address, Network
from cni.errors import CniError, Code
from cni.result import IPConfig, Result, Route
from kernel import address, link, route, sysctl
from kernel.address import IFA_F_DADFAILED, IFA_F_TENTATIVE
from kernel.codec import AddressMessage
from kernel.link import Link
from kernel.link_deletion import delete_in_background
from kernel.netns import Netns, entered
from kernel.route import InstalledRoute
from kernel.rtnl import Deadline, Request, Socket
from process import record

_DAD_TIMEOUT_S = 5.0  # the reference's; duplicate address detection itself takes one to two seconds


class Sandbox:
    """An attachment's interface seen from inside its namespace: one netlink socket there. A context manager.

    The namespace is entered when that is first needed: what else is to be done inside is done at the same time.
    """

    def __init__(self, namespace: Netns, ifname: str) -> None:
        self.path = namespace.path
        self.ifname = ifname
        self.namespace = namespace
        self._socket: Socket | None = None
        self._routes: dict[int, dict[Network, list[InstalledRoute]]] = {}

    def delete_link(self, own: Link, host: Socket) -> bool:
        """Deletes an interface, the other end of a veth with it; returns whether the other end is on the host.

        A veth whose other end is on the host is deleted there (kernel.link_deletion). Any other link is deleted from
        inside, which takes the whole wait for the kernel, and so is one for which no process or descriptor is left, or
        whose child was killed. Raises KernelError, and CniError(11) when the deletion is not announced in time.
        """
        peer = link.get_local_peer(host, own, self.namespace)
        if peer is None or not delete_in_background(peer, own, lambda: self.open_listener(link.RTNLGRP_LINK)):
            self.socket.change(link.delete_request(own))
        return peer is not None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()

    @property
    def socket(self) -> Socket:
        """The socket in the namespace, opened when it is first asked for; raises CniError(8), KernelError."""
        if self._socket is None:
            with entered(self.namespace):
                self._socket = Socket()
        return self._socket

    def open_listener(self, group: int) -> Socket:
        """Returns a second socket in the namespace, subscribed to a multicast group (RTNLGRP_*); close it."""
        with entered(self.namespace):
            socket = Socket()
        socket.subscribe(group)
        return socket

    def find_link(self) -> Link | None:
        """Returns the interface, None when the sandbox has none of that name; raises KernelError."""
        return link.get(self.socket, link.by_name_request(self.ifname))[0]

    def get_link(self) -> Link:
        """Returns the interface; raises CniError(999) when there is none, KernelError."""
        found = self.find_link()
        if found is None:
            raise CniError(
                Code.INTERNAL,
                f'failed to lookup "{self.ifname}": Link not found',
                f"the network namespace is {self.path}; something else deleted it",
            )
        return found

    def configure(self, own: Link, result: Result, *, dad: bool) -> None:
        """Gives the interface `own` the addresses and routes of `result`, sets it up, waits until they can be used.

        `dad` runs IPv6 duplicate address detection. Addresses without an interface index are somebody else's.
        Raises CniError for a wrong index and for a duplicate address, KernelError.
        """
        ips = attachment_ips(result, self.ifname)
        ipv6 = any(isinstance(ip.address, IPv6Interface) for ip in ips)
        with entered(self.namespace):
            self._socket = self._socket or Socket()
            _prepare(self.ifname, ipv6=ipv6, dad=dad)
        with record.timed_step("give it addresses and routes"):
            self.socket.change(
                link.set_request(own, arp_notify=True),
                *(address.add_request(own, ip.address) for ip in ips),
                link.set_request(own, up=True),
                *add_routes_requests(own, result),
            )
        if ipv6:
            with record.timed_step("wait for the IPv6 addresses"):
                self._wait_usable(own)

    def announce(self, own: Link) -> None:
        """Has the kernel announce the interface's addresses again, by gratuitous ARP and unsolicited advertisement.

        Who knew another owner of an address (a pod that is gone) keeps its dead MAC for up to a minute otherwise: the
        announcement that the kernel made when the interface came up is lost where the other end did not forward yet,
        as with the reference. Writing the interface's own MAC back is the event that repeats it. Raises KernelError.
        """
        self.socket.change(link.set_request(own, mac=own.mac_bytes))

    def _wait_usable(self, own: Link) -> None:
        """Waits until no IPv6 address of the interface is tentative any more, told by the kernel, not by the clock."""
        if not self._tentative(own):  # mostly, as none is without duplicate address detection
            return
        deadline = Deadline(_DAD_TIMEOUT_S)
        with self.open_listener(address.RTNLGRP_IPV6_IFADDR) as news:
            while self._tentative(own):
                if news.wait_notifications(AddressMessage, deadline.remaining_s()) is None:
                    if self.get_link().operstate == link.OPERSTATE_UP:
                        raise CniError(
                            Code.INTERNAL,
                            f"link {own.name} still has tentative addresses after {_DAD_TIMEOUT_S:.0f} s",
                            "IPv6 duplicate address detection did not finish; does the other end forward?",
                        )
                    return  # without carrier it cannot finish; that is no failure (reference since 1.9.0)

    def _tentative(self, own: Link) -> bool:
        """Tells whether an IPv6 address cannot be used yet; raises CniError(999) for one that another host has."""
        found = address.list_on_link(self.socket, own, family=stdlib_socket.AF_INET6)
        for assigned in found:
            if assigned.flags & IFA_F_DADFAILED:
                raise CniError(
                    Code.INTERNAL,
                    f"link {own.name} has address {assigned.address.ip} in DADFAILED state",
                    "another host on this network uses the address: take it off there, or out of the IPAM's range",
                )
        return any(assigned.flags & IFA_F_TENTATIVE for assigned in found)

    def list_routes(self, version: int) -> dict[Network, list[InstalledRoute]]:
        """Returns the unicast routes of IP `version` by destination, as at the first call; raises KernelError."""
        if version not in self._routes:
            by_destination = self._routes[version] = {}
            for installed in route.list_unicast(self.socket, version):
                by_destination.setdefault(installed.dst.network, []).append(installed)
        return self._routes[version]


def check(sandbox: Sandbox, own: Link, prev_result: Result) -> None:
    """Checks that the addresses and routes of `prev_result` are on the interface; raises CniError(999), KernelError.

    Of a default route it is only asked that there be one: later plugins may move it. A route of another interface
    of the sandbox cannot be told from ours and counts when it is anywhere.
    """
    present = address.keys(address.list_on_link(sandbox.socket, own))
    for ip in attachment_ips(prev_result, sandbox.ifname, strict=False):
        if address.key(ip.address) not in present:
            raise _lost(f'address {ip.address} is not on "{own.name}"', sandbox)
    for item in prev_result.routes:
        installed = sandbox.list_routes(item.dst.version).get(item.dst.network, [])
        if not any(_serves(each, item) for each in installed):
            raise _lost(f"route {item.dst.network}{f' via {item.gw}' if item.gw else ''} is missing", sandbox)


def _serves(installed: InstalledRoute, wanted: Route) -> bool:
    """Tells whether a route to the same destination will do: any default route, else one with the same gateway."""
    return not wanted.dst.network.prefixlen or wanted.gw in (None, installed.gw)


def _lost(what: str, sandbox: Sandbox) -> CniError:
    return CniError(
        Code.INTERNAL,
        f"Expected {what}",
        f"the network namespace is {sandbox.path}; remove the container and create it again",
    )


def add_routes_requests(own: Link, result: Result) -> list[Request]:
    """Returns what adds the routes of `result`; one without a gateway leads over its family's first one."""
    ips = attachment_ips(result, own.name, strict=False)
    return [route.add_request(own, item, item.gw or _gateway(ips, item)) for item in result.routes]


def attachment_ips(result: Result, ifname: str, *, strict: bool = True) -> list[IPConfig]:
    """Returns the addresses meant for the interface; `strict` refuses an index that points elsewhere (reference)."""
    own = []
    for ip in result.ips:
        if ip.interface is None:
            if not strict:
                own.append(ip)
            continue
        known = 0 <= ip.interface < len(result.interfaces)
        if known and result.interfaces[ip.interface].name == ifname:
            own.append(ip)
        elif strict:
            raise CniError(
                Code.INTERNAL,
                f'failed to add IP addr {ip.address} to "{ifname}": invalid interface index',
                f"interface {ip.interface} of the result is not that one; correct what the IPAM plugin answers",
            )
    return own


def _gateway(ips: list[IPConfig], item: Route) -> Address | None:
    """Returns the first gateway of the route's address family."""
    family = type(item.dst)
    return next((ip.gateway for ip in ips if ip.gateway and isinstance(ip.address, family)), None)


def _prepare(ifname: str, *, ipv6: bool, dad: bool) -> None:
    """Sets what must be set before addresses come; runs inside the sandbox.

    IPv6 settings are attempted also for an IPv4 attachment, because of the link-local address the interface gets.
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
        sysctl.try_write(conf + "ndisc_notify", "1")  # what arp_notify is to IPv4: announce() needs it
    except FileNotFoundError as error:
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            f"failed to enable IPv6 on interface {ifname}: {error.filename} is missing",
            "the kernel runs without IPv6; remove the IPv6 ranges from the configuration",
        ) from error
    except OSError as error:
        raise CniError(
            Code.INTERNAL,
            f"failed to enable IPv6 on interface {ifname}: {error.filename}: {error.strerror}",
            "IPv6 is switched off in the container, and to switch it on /proc/sys must be writable",
        ) from error
