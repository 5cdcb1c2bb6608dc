"""A temporary copy of the host's network, for dry runs.

The copy consists of unnamed network namespaces, which the kernel deletes with the process. It contains the state that
plugins read: links with addresses and MTU, default routes, forwarding settings. Its uplinks are not connected.
"""

from __future__ import annotations

from contextlib import suppress

from _podwire import spawn_bound

from cni.address import Cidr
from cni.result import Route
from kernel import address, link, mounts, route, sysctl, unnamed_netns
from kernel.errors import KernelError
from kernel.link import IFF_LOOPBACK, IFF_POINTOPOINT, Link, VethEnd
from kernel.netns import Netns
from kernel.route import InstalledRoute
from kernel.rtnl import Request, Socket
from kernel.wire import AnswerError
from process.values import dataclass, field

_MAIN = 254  # RT_TABLE_MAIN, linux/rtnetlink.h
_SETTINGS = ("ipv4/ip_forward", "ipv6/conf/all/forwarding", "bridge/bridge-nf-call-iptables")


@dataclass(frozen=True)
class HostState:
    """The copied state of the host: relevant links, addresses by ifindex, default routes, settings."""

    links: tuple[Link, ...]
    addresses: dict[int, tuple[Cidr, ...]]
    defaults: tuple[InstalledRoute, ...]
    settings: dict[str, str] = field(default_factory=dict)


def read_host_state() -> HostState:
    """Reads the state of the current network namespace; raises KernelError."""
    with Socket() as socket:
        links = tuple(one for one in link.list_all(socket) if _matters(one))
        addresses = {one.index: tuple(item.address for item in address.list_on_link(socket, one)) for one in links}
        routes = [one for version in (4, 6) for one in route.list_unicast(socket, version)]
    settings = {}
    for name in _SETTINGS:
        with suppress(OSError):
            settings[name] = sysctl.get(name)
    defaults = tuple(one for one in routes if not one.dst.network.prefixlen and one.table == _MAIN)
    return HostState(links, addresses, defaults, settings)


def enter(state: HostState) -> str:
    """Moves this process permanently into a copy of the host; returns the path of a new, empty sandbox.

    The path is below /proc/<pid>; child processes can use it, too. Raises CniError(8), KernelError.
    """
    uplinks, sandbox = unnamed_netns.create_unnamed(), unnamed_netns.create_unnamed()
    unnamed_netns.enter_new()
    mounts.enter_readonly()
    for name, value in state.settings.items():
        sysctl.try_write(name, value)
    unnamed_netns.set_loopback_up()
    with Socket() as socket:
        for one in state.links:
            _copy_link(socket, one, state, uplinks)
        copies = {one.name: one for one in link.list_all(socket)}
        names = {one.index: one.name for one in state.links}
        for default in state.defaults:
            copy = copies.get(names.get(default.index, ""))
            if copy:
                _try(socket, route.add_request(copy, Route(default.dst, default.gw), default.gw))
    return sandbox.path  # both stay open as long as this process: the kernel deletes what is in a closed one


def spawn(argv: list[bytes], env: list[bytes], streams: tuple[int, int, int], defaults: tuple[int, ...]) -> int:
    """Starts a program in the copy (a process.child.Spawn); the kernel kills it when this process ends."""
    pid: int = spawn_bound(argv, env, streams, defaults)
    return pid


def _matters(one: Link) -> bool:
    """Returns whether a link is copied: all but lo, veth bridge ports, and veth pairs within this namespace.

    A node has hundreds of host veths. The uplink of a node that is itself a container is a veth, too.
    """
    if one.kind == "veth":
        return not one.master and one.iflink_nsid is not None
    return not one.flags & IFF_LOOPBACK


def _copy_link(socket: Socket, one: Link, state: HostState, uplink_netns: Netns) -> None:
    """Creates a link of the same name, MTU and addresses: a bridge for a bridge, else one end of a veth pair.

    The peer is outside the copy, so that the detection of the host's MTU considers the link an uplink. A point-to-point
    link, which that detection ignores, becomes a bridge, too.
    """
    try:
        mac = one.mac_bytes
    except AnswerError:
        mac = link.random_mac()
    if one.kind == "bridge" or one.flags & IFF_POINTOPOINT:
        _try(socket, link.create_bridge_request(one.name, mac, one.mtu))
    else:
        veth = link.create_veth_request(
            VethEnd(one.name, mac), VethEnd(one.name, link.random_mac()), uplink_netns, mtu=one.mtu
        )
        _try(socket, veth)
    (copy,) = link.get(socket, link.by_name_request(one.name))
    if copy is None:
        return
    for item in state.addresses[one.index]:
        if not item.ip.is_link_local:
            _try(socket, address.add_request(copy, item, exists_ok=True))
    if not one.is_up:
        _try(socket, link.set_request(copy, up=False))


def _try(socket: Socket, request: Request) -> None:
    """Applies a change and ignores failure: an incomplete copy is still useful."""
    with suppress(KernelError):
        socket.change(request)
