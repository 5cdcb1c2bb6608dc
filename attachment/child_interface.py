"""Creates the interface of a macvlan, ipvlan or vlan attachment on its master, and explains why the kernel refuses it.

The kernel creates the interface in the container's namespace, with its final name.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from attachment import container_interface
from attachment.master import MasterOptions
from attachment.sandbox import Sandbox
from cni.errors import internal
from kernel import child_link, modules
from kernel.errors import KernelError, reason
from kernel.link import Link
from kernel.rtnl import Socket
from kernel.wire import Attributes
from process.undo import Undo

_FAILURES = {  # the reference plugins' texts
    "ipvlan": "failed to create ipvlan",
    "macvlan": "failed to create macvlan",
    "vlan": "failed to create vlan",
}


@contextmanager
def master_socket(options: MasterOptions, sandbox: Sandbox) -> Iterator[Socket]:
    """Yields a socket in the master's namespace: the host's, or the sandbox's with `linkInContainer`."""
    if options.in_container:
        yield sandbox.socket
    else:
        with Socket() as socket:
            yield socket


class ChildSpec(NamedTuple):
    """The kind of a new interface ("macvlan"), its attributes (IFLA_*), and its MAC address, b"" for a random one.

    `explain` returns the cause and the fix of an error of the kernel, "" for an unknown error.
    """

    kind: str
    data: Attributes
    explain: Callable[[KernelError], str]
    mac: bytes = b""


def create(spec: ChildSpec, socket: Socket, parent: Link, sandbox: Sandbox, options: MasterOptions, undo: Undo) -> Link:
    """Creates the interface on `parent`, which is in the namespace of `socket`; pushes its deletion on `undo`.

    Raises CniError(999), text of the reference plugins, if the name is in use or the kernel refuses; KernelError.
    """
    container_interface.refuse_existing(sandbox, spec.kind)
    undo.push(f'delete "{sandbox.ifname}"', partial(container_interface.delete_created, sandbox))
    namespace = None if options.in_container else sandbox.namespace
    try:
        child_link.create(
            socket,
            sandbox.socket,
            spec.kind,
            sandbox.ifname,
            parent,
            namespace,
            spec.data,
            mac=spec.mac,
            mtu=options.mtu,
        )
    except KernelError as error:
        problem = modules.get_links_problem(socket, spec.kind) if error.errno == errno.EOPNOTSUPP else ""
        details = problem or "; ".join(filter(None, (error.explanation, spec.explain(error))))
        raise internal(f"{_FAILURES[spec.kind]}: {reason(error.errno)}", details or error.details) from error
    return sandbox.get_link()
