"""Creates and checks the ipvlan interface of a container, and explains why the kernel refuses it."""

from __future__ import annotations

import errno
from functools import partial

from attachment import child_interface, master
from attachment.child_interface import ChildSpec
from attachment.master import MasterOptions
from attachment.sandbox import Sandbox
from cni.errors import internal
from cni.result import Result
from kernel import child_link, link, sysctl
from kernel.errors import KernelError
from kernel.link import Link
from kernel.rtnl import Socket
from kernel.wire import Attributes
from plugins.ipvlan.conf import MODES, IpvlanConf
from process.undo import Undo

_STRICT, _LOOSE = "1", "2"  # rp_filter, Documentation/networking/ip-sysctl.rst
_MODE_NAMES = {number: name for name, number in MODES.items()}


def get_attributes(conf: IpvlanConf) -> Attributes:
    """Returns the attributes of the interface (IFLA_IPVLAN_*, linux/if_link.h)."""
    return [("IFLA_IPVLAN_MODE", MODES[conf.mode])]


def create(socket: Socket, parent: Link, sandbox: Sandbox, conf: IpvlanConf, undo: Undo) -> Link:
    """Creates the interface on `parent`, in the sandbox; `socket` is in the namespace of `parent`.

    Raises CniError(999) with the kernel's reason and an explanation.
    """
    spec = ChildSpec("ipvlan", get_attributes(conf), partial(_explain, socket, parent))
    return child_interface.create(spec, socket, parent, sandbox, conf.master, undo)


def recreate(socket: Socket, parent: Link, sandbox: Sandbox, conf: IpvlanConf, prev_result: Result, undo: Undo) -> None:
    """Creates the interface again, with the addresses and routes of prevResult; raises CniError(999), KernelError."""
    container_link = create(socket, parent, sandbox, conf, undo)
    sandbox.configure(container_link, prev_result, dad=True)


def find_master(socket: Socket, options: MasterOptions, container_link: Link) -> Link:
    """Returns the master of an existing interface: the configured master, otherwise the parent in the kernel.

    The default route may have changed since ADD, and the prevResult of a chained ipvlan no longer lists the master.
    Raises CniError, KernelError.
    """
    if not options.name:
        (parent,) = link.get(socket, link.by_index_request(container_link.iflink))
        if parent is not None:
            return parent
    return master.find(socket, options)


def refuse_strict_reverse_path(conf: IpvlanConf, parent: Link, result: Result) -> None:
    """Raises CniError(999) if rp_filter makes the node drop the IPv4 packets of its pods.

    In mode l2 they arrive on the master, but the routes to the pods are through the host link.
    """
    if conf.mode != "l2" or not any(ip.address.version == 4 for ip in result.ips):
        return
    name = f"ipv4/conf/{parent.name}/rp_filter"
    values = sysctl.get("ipv4/conf/all/rp_filter"), sysctl.get(name)
    if max(values) == _STRICT:  # the kernel uses the larger one
        msg = f'the node drops packets of pods to it: rp_filter of "{parent.name}" is strict'
        raise internal(msg, f'on the node: {sysctl.command(name, _LOOSE)}; or use mode "l3"')


def check(sandbox: Sandbox, container_link: Link, conf: IpvlanConf) -> None:
    """Checks the mode; raises CniError(999) with the reference plugin's text, KernelError.

    The kernel stores the mode for the master: an interface that is created with another mode changes all others.
    """
    data = child_link.get_data(sandbox.socket, container_link)
    number = data.get_attr("IFLA_IPVLAN_MODE") if data else None
    mode = _MODE_NAMES.get(-1 if number is None else number, "unknown")
    if mode != conf.mode:
        msg = f"Container IPVlan mode {mode} does not match expected value: {conf.mode}"
        details = (
            "all ipvlan interfaces on one master have the mode of the one that was created last: use one mode in all "
            "networks on it, then remove the container and create it again"
        )
        raise internal(msg, details)


def _explain(socket: Socket, parent: Link, error: KernelError) -> str:
    """Returns why the kernel refused to create the interface, and the fix, "" if unknown; raises KernelError."""
    if error.errno == errno.EBUSY:
        return master.explain_busy(socket, parent, "ipvlan")
    return ""
