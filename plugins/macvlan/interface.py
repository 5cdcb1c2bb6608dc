"""Creates and checks the macvlan interface of a container, and explains why the kernel refuses it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from attachment import child_interface, master
from attachment.child_interface import ChildSpec
from attachment.prev_result import RECREATE_HINT
from attachment.sandbox import Sandbox
from cni.errors import CniError, internal
from cni.result import Result
from kernel import child_link
from kernel.errors import KernelError
from kernel.link import Link
from kernel.rtnl import Socket
from kernel.wire import Attributes
from plugins.macvlan.conf import MODES, MacvlanConf
from process.undo import Undo

_MODE_NAMES = {number: name for name, number in MODES.items()}


def create(socket: Socket, parent: Link, sandbox: Sandbox, conf: MacvlanConf, undo: Undo) -> Link:
    """Creates the interface on `parent`, in the sandbox; `socket` is in the namespace of `parent`.

    Raises CniError(999) with the kernel's reason and an explanation.
    """
    data: Attributes = [("IFLA_MACVLAN_MODE", MODES[conf.mode])]
    if conf.bcqueuelen:
        data.append(("IFLA_MACVLAN_BC_QUEUE_LEN", conf.bcqueuelen))
    spec = ChildSpec("macvlan", data, partial(_explain, socket, parent, conf.mode), mac=conf.mac)
    return child_interface.create(spec, socket, parent, sandbox, conf.master, undo)


def recreate(
    socket: Socket, parent: Link, sandbox: Sandbox, conf: MacvlanConf, prev_result: Result, undo: Undo
) -> None:
    """Creates the interface again, with the addresses and routes of prevResult; raises CniError(999), KernelError."""
    container_link = create(socket, parent, sandbox, conf, undo)
    with explained_failures(container_link, parent):
        sandbox.configure(container_link, prev_result, dad=True)


@contextmanager
def explained_failures(container_link: Link, parent: Link) -> Iterator[None]:
    """Adds to a KernelError of the block why the kernel refuses to set the interface up: its MAC address is in use."""
    try:
        yield
    except KernelError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EBUSY):
            raise
        details = (
            f'"{parent.name}" or another interface on it has the MAC address {container_link.mac}: request another one'
        )
        raise CniError(error.code, error.msg, details) from error


def check(sandbox: Sandbox, container_link: Link, parent: Link, conf: MacvlanConf) -> None:
    """Checks the interface's master and mode; raises CniError(999), for the mode with the reference plugin's text."""
    master.check(sandbox, container_link, parent, in_container=conf.master.in_container)
    data = child_link.get_data(sandbox.socket, container_link)
    number = data and data.get_attr("IFLA_MACVLAN_MODE")
    mode = _MODE_NAMES.get(number or 0, "unknown")
    if mode != conf.mode:
        msg = f"container macvlan mode {mode} does not match expected value: {conf.mode}"
        raise internal(msg, f"the network namespace is {sandbox.path}; {RECREATE_HINT}")


def _explain(socket: Socket, parent: Link, mode: str, error: KernelError) -> str:
    """Returns why the kernel refused to create the interface, and the fix, "" if unknown; raises KernelError."""
    number = error.errno
    if number == errno.EBUSY:
        return master.explain_busy(socket, parent, "macvlan")
    if number == errno.EINVAL and error.explanation:
        return ""
    if number == errno.EINVAL and mode == "passthru":
        return (
            f'an interface of mode passthru needs "{parent.name}" for itself: another macvlan interface is on it, or '
            "it is not an Ethernet interface"
        )
    if number == errno.EINVAL:
        return (
            f'"{parent.name}" cannot have further macvlan interfaces: one of mode passthru is on it, or it is not an '
            'Ethernet interface; set "master" to another interface'
        )
    return ""
