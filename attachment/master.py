"""The master of an attachment: the link of the host, or of the container, on which macvlan, ipvlan and vlan build.

The key is called `master`, as in the reference plugins. It is the link's parent (IFLA_LINK), not a bridge.
"""

from __future__ import annotations

import sys

from attachment.prev_result import RECREATE_HINT
from attachment.sandbox import Sandbox
from cni import link_name
from cni.errors import CniError, internal, invalid_conf
from cni.fields import Fields
from cni.keys import BOOLEAN, INTEGER, STRING, Key
from kernel import link, route
from kernel.link import Link
from kernel.rtnl import Socket
from process.stderr import one_line
from process.values import dataclass

KEYS = (Key("master", (STRING,)), Key("mtu", (INTEGER,)), Key("linkInContainer", (BOOLEAN,)))


@dataclass(frozen=True)
class MasterOptions:
    """The keys that choose the master, and the MTU of the interface on it.

    `name` "" stands for the interface of the default route, `mtu` 0 for the MTU of the master. With `in_container` the
    master is an interface of the container.
    """

    name: str
    mtu: int
    in_container: bool


def parse(fields: Fields) -> MasterOptions:
    """Reads `master`, `mtu` (bytes) and `linkInContainer`; raises CniError(7)."""
    name = link_name.read(fields, "master")
    return MasterOptions(name, fields.integer("mtu") or 0, fields.boolean("linkInContainer"))


def find(socket: Socket, options: MasterOptions) -> Link:
    """Returns the configured master, by default the interface of the default route, in the socket's namespace.

    Raises CniError(999) for a missing master, CniError(7) if `mtu` exceeds the master's; KernelError.
    """
    master = _get_named(socket, options.name) if options.name else _find_with_default_route(socket)
    if not 0 <= options.mtu <= master.mtu:
        details = f'set "mtu" to 0 for that of "{master.name}", or to a smaller one'
        raise invalid_conf(f"invalid MTU {options.mtu}, must be [0, master MTU({master.mtu})]", details)
    return master


def find_usable(socket: Socket, options: MasterOptions, *, must_be_up: bool = False) -> Link:
    """Returns the master of a new interface, as find(); raises CniError(7) for loopback, or a down one that must be up.

    Otherwise it may be down or without carrier, as with the reference plugins: it may come up later. A master that is
    down is reported on stderr.
    """
    master = find(socket, options)
    _refuse_loopback(master)
    if not master.is_up:
        if must_be_up:
            raise down_error(master, in_container=options.in_container)
        error = down_error(master, in_container=options.in_container)
        print(one_line(f"{error.msg}, and the pod has no connection until it is up: {error.details}"), file=sys.stderr)
    return master


def down_error(master: Link, *, in_container: bool) -> CniError:
    """Returns the error of a master that is down, with the command that brings it up."""
    where = "in the container: " if in_container else ""
    return invalid_conf(f'master "{master.name}" is down', f'{where}ip link set "{master.name}" up')


def refuse_unusable(options: MasterOptions) -> None:
    """Raises CniError for a missing master, and for one that is loopback, down or without carrier; for STATUS.

    With `linkInContainer` it checks nothing: STATUS has no container.
    """
    if options.in_container:
        return
    with Socket() as socket:
        master = find(socket, options)
    _refuse_loopback(master)
    if not master.is_up:
        raise down_error(master, in_container=False)
    if not master.flags & link.IFF_LOWER_UP:
        raise invalid_conf(f'master "{master.name}" has no carrier', "connect it, or bring up its other end")


def explain_busy(socket: Socket, master: Link, kind: str) -> str:
    """Returns why the kernel refuses an interface of `kind` on `master` (EBUSY), and the fix; raises KernelError.

    Packets of a link are passed to one receiver only (rx_handler): to its bridge or bond, or to the macvlan or the
    ipvlan interfaces on it. Those of pods are in other namespaces, and cannot be listed here.
    """
    if master.master:
        (owner,) = link.get(socket, link.by_index_request(master.master))
        if owner is not None:
            details = f'"{master.name}" is a port of {owner.kind} "{owner.name}", which receives its packets; '
            return details + f'set "master" to "{owner.name}"'
    other = "ipvlan" if kind == "macvlan" else "macvlan"
    return (
        f'"{master.name}" has interfaces of another kind, probably {other} interfaces of pods: {kind} and {other} '
        f'cannot share a master; set "master" to a VLAN on it or to another interface, or use {other}'
    )


def check(sandbox: Sandbox, container_link: Link, master: Link, *, in_container: bool) -> None:
    """Checks that the interface is built on `master`; raises CniError(999).

    Namespaces number their links independently, so the index counts only in the master's namespace. On a master of
    its own kind the kernel builds the interface on the master's parent.
    """
    is_in_sandbox = container_link.iflink_nsid is None
    if master.kind == container_link.kind:
        is_on_master = container_link.iflink == master.iflink
    else:
        is_on_master = container_link.iflink == master.index and is_in_sandbox == in_container
    if not is_on_master:
        msg = f'Container interface {container_link.name} is not on master "{master.name}"'
        raise internal(msg, f"the network namespace is {sandbox.path}; {RECREATE_HINT}")


def _get_named(socket: Socket, name: str) -> Link:
    (master,) = link.get(socket, link.by_name_request(name))
    if master is None:
        details = 'set "master" to an existing interface: ip link'
        raise internal(f'failed to lookup master "{name}": Link not found', details)
    return master


def _find_with_default_route(socket: Socket) -> Link:
    index = route.get_default_interface(socket)
    (master,) = link.get(socket, link.by_index_request(index)) if index else [None]
    if master is None:
        raise internal("no default route interface found", 'set "master" to the interface to use: ip link')
    return master


def _refuse_loopback(master: Link) -> None:
    """Raises CniError(7) for the loopback interface, on which nothing can be built."""
    if master.flags & link.IFF_LOOPBACK:
        raise invalid_conf(f'master "{master.name}" is the loopback interface', 'set "master" to a network interface')
