"""The ipvlan interface of a container: its mode in the kernel, and why the kernel refuses to create it."""

from __future__ import annotations

import errno

from attachment import master
from attachment.child_interface import module_hint
from attachment.sandbox import Sandbox
from cni.errors import internal
from kernel import child_link
from kernel.errors import KernelError
from kernel.link import Link
from kernel.rtnl import Socket
from kernel.wire import Attributes
from plugins.ipvlan.conf import MODES, IpvlanConf

_MODE_NAMES = {number: name for name, number in MODES.items()}


def get_attributes(conf: IpvlanConf) -> Attributes:
    """Returns the attributes of the interface (IFLA_IPVLAN_*, linux/if_link.h)."""
    return [("IFLA_IPVLAN_MODE", MODES[conf.mode])]


def explain(error: KernelError, socket: Socket, parent: Link) -> str:
    """Returns why the kernel refused to create the interface, and the fix, "" if unknown; raises KernelError."""
    if error.errno == errno.EBUSY:
        return master.explain_busy(socket, parent, "ipvlan")
    if error.errno == errno.EOPNOTSUPP and not error.explanation:
        return module_hint("ipvlan")
    return ""


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
