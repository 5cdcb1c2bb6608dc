"""The container's interface and, with "mtuBothEnds", the host end of its veth pair.

The host end is identified by the peer index that the kernel reports, never by a name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from attachment.sandbox import Sandbox
from cni.errors import invalid_conf
from kernel import boot, link
from kernel.link import Link
from kernel.netns import Netns
from kernel.rtnl import Socket
from plugins.tuning.attributes import Attributes
from process.values import dataclass

_VETH_ONLY = '"mtuBothEnds" needs a veth pair with its other end on the host, as bridge and ptp create it'


@dataclass(frozen=True)
class End:
    """An interface, and a socket in its namespace."""

    socket: Socket
    link: Link

    def change(self, configured: Attributes) -> None:
        """Sets all configured attributes, in one message; raises KernelError."""
        self.socket.change(configured.request(self.link))

    def restore(self, saved: Attributes) -> None:
        """Sets each saved attribute, even after one fails; raises KernelError for the first failure."""
        self.socket.change(*saved.requests(self.link))


@dataclass(frozen=True)
class Ends:
    """The container's interface, its host end (None if not needed, or missing), and the life of the container.

    `life` identifies one run of the container, "" if unknown. The numbers of namespaces and interfaces alone do not,
    since they are reused.
    """

    container_end: End
    host_end: End | None
    life: str

    def require_host_end(self, *, both: bool) -> Ends:
        """Returns the ends; with `both`, raises CniError(7) if there is no host end."""
        if both and not self.host_end:
            interface = self.container_end.link
            problem = (
                "its other end is not on this host"
                if interface.kind == "veth"
                else f"it is {interface.kind or 'of no kind'}"
            )
            msg = f"container interface {interface.name} has no veth peer: {problem}"
            raise invalid_conf(msg, _VETH_ONLY)
        return self


@contextmanager
def open_ends(namespace: Netns, ifname: str, *, both: bool) -> Iterator[Ends | None]:
    """Yields the ends, None if the container has no such interface; raises CniError(8), KernelError."""
    with Sandbox(namespace, ifname) as sandbox:
        interface = sandbox.find_link()
        if interface is None:
            yield None
            return
        container_end, life = End(sandbox.socket, interface), _life(namespace, sandbox.socket, interface)
        if not both:
            yield Ends(container_end, None, life)
            return
        with Socket() as host:
            peer = link.get_local_peer(host, interface, namespace)
            yield Ends(container_end, End(host, peer) if peer else None, life)


def _life(namespace: Netns, socket: Socket, interface: Link) -> str:
    """Returns boot ID, namespace and interface index, "" if the boot ID cannot be read.

    The namespace is its cookie, unique in a boot, or (before Linux 5.14) its inode.
    """
    if not (boot_id := boot.get_boot_id()):
        return ""
    namespace_id = socket.get_namespace_cookie() or f"inode {os.fstat(namespace.fileno()).st_ino}"
    return f"{boot_id} {namespace_id} {interface.index}"
