"""A throw-away copy of the host's network, in which a process can try what it does not mean.

One rule: the copy is network namespaces without a name; the kernel takes them away with the process. It answers as the
host does where plugins ask: which links there are, their addresses and MTU, where the default routes lead, what
the settings for forwarding are. What leads off the host leads nowhere.
"""

from __future__ import annotations

import os
from contextlib import suppress

from _podwire import spawn_bound, unshare

from cni.address import Interface
from cni.errors import CniError, Code
from cni.result import Route
from kernel import address, link, mounts, route, sysctl
from kernel.errors import KernelError, reason
from kernel.link import IFF_LOOPBACK, IFF_POINTOPOINT, Link, VethEnd
from kernel.netns import Netns
from kernel.route import InstalledRoute
from kernel.rtnl import Request, Socket
from kernel.wire import AnswerError
from process.values import dataclass, field

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_MAIN = 254  # RT_TABLE_MAIN, linux/rtnetlink.h
_SETTINGS = ("ipv4/ip_forward", "ipv6/conf/all/forwarding", "bridge/bridge-nf-call-iptables")


@dataclass(frozen=True)
class HostState:
    """What is copied of the host: its links that matter, addresses by ifindex, default routes, settings."""

    links: tuple[Link, ...]
    addresses: dict[int, tuple[Interface, ...]]
    defaults: tuple[InstalledRoute, ...]
    settings: dict[str, str] = field(default_factory=dict)


def read_host_state() -> HostState:
    """Returns the picture of the namespace in which we are; raises KernelError."""
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


def enter(picture: HostState) -> str:
    """Moves this process into a copy of the host, for good; returns the path of a fresh sandbox beside it.

    Raises CniError(8), KernelError. The path is one of this process's, and good for its children, too.
    """
    outside, sandbox = _fresh(), _fresh()
    _fresh(keep=False)
    mounts.enter_readonly()
    for name, value in picture.settings.items():
        sysctl.try_write(name, value)
    with Netns(outside) as beyond, Socket() as socket:
        (loopback,) = link.get(socket, link.by_name_request("lo"))
        if loopback:
            socket.change(link.set_request(loopback, up=True))
        for one in picture.links:
            _stand_in(socket, one, picture, beyond)
        own = {one.name: one for one in link.list_all(socket)}
        names = {one.index: one.name for one in picture.links}
        for found in picture.defaults:
            through = own.get(names.get(found.index, ""))
            if through:
                _try(socket, route.add_request(through, Route(found.dst, found.gw), found.gw))
    return sandbox


def spawn(argv: list[bytes], env: list[bytes], streams: tuple[int, int, int], defaults: tuple[int, ...]) -> int:
    """Starts a program in the copy as process.child.Spawn says; it ends with us, and the copy with it."""
    pid: int = spawn_bound(argv, env, streams, defaults)
    return pid


def _matters(one: Link) -> bool:
    """Tells whether a link is copied: not lo, no veth pair's end that is a bridge's port, or whose other end is here.

    A pod on a bridge has the former, and a node has hundreds of them; the uplink of a node that is a container itself
    is a veth pair's end, too.
    """
    if one.kind == "veth":
        return not one.master and one.lower_nsid is not None
    return not one.flags & IFF_LOOPBACK


def _fresh(*, keep: bool = True) -> str:
    """Moves this process into a fresh network namespace, and returns a path that stays its own."""
    try:
        unshare(_CLONE_NEWNET)
    except OSError as error:
        doing = "cannot make a network namespace"
        hint = "this needs CAP_SYS_ADMIN"
        raise CniError(Code.INVALID_NETNS, f"{doing}: {reason(error.errno or 0)}", hint) from error
    if not keep:
        return ""
    return f"/proc/{os.getpid()}/fd/{os.open('/proc/self/ns/net', os.O_RDONLY | os.O_CLOEXEC)}"


def _stand_in(socket: Socket, one: Link, picture: HostState, beyond: Netns) -> None:
    """Makes a link of the same name, MTU and addresses: a bridge for a bridge, else one end of a veth pair.

    The pair leads out of the copy, as an uplink leads off the host: so it is seen by who looks for the host's MTU.
    A tunnel's end, which is not to be seen by him, is a bridge, too.
    """
    try:
        mac = one.mac_bytes
    except AnswerError:
        mac = link.random_mac()
    if one.kind == "bridge" or one.flags & IFF_POINTOPOINT:
        _try(socket, link.create_bridge_request(one.name, mac, one.mtu))
    else:
        pair = link.create_veth_request(
            VethEnd(one.name, mac), VethEnd(one.name, link.random_mac()), beyond, mtu=one.mtu
        )
        _try(socket, pair)
    (copy,) = link.get(socket, link.by_name_request(one.name))
    if copy is None:
        return
    for item in picture.addresses[one.index]:
        if not item.ip.is_link_local:
            _try(socket, address.add_request(copy, item, exists_ok=True))
    if not one.is_up:
        _try(socket, link.set_request(copy, up=False))


def _try(socket: Socket, request: Request) -> None:
    """Makes what can be made: a copy that lacks something still answers most questions."""
    with suppress(KernelError):
        socket.change(request)
