"""The pod's interface and, where both are to have the MTU, the host's end of its pair.

One rule: the host's end is found by the kernel's own link between the two, never by a name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from attachment.sandbox import Sandbox
from cni.errors import CniError, Code
from kernel import boot, link
from kernel.link import Link
from kernel.netns import Netns
from kernel.rtnl import Socket
from plugins.tuning.attributes import Attributes
from process.values import dataclass

_VETH_ONLY = '"mtuBothEnds" needs a veth pair with its other end on the host, as bridge and ptp make'


@dataclass(frozen=True)
class End:
    """An interface, and a socket in its namespace."""

    socket: Socket
    link: Link

    def change(self, asked: Attributes) -> None:
        """Sets all that is asked for, in one message; raises KernelError."""
        self.socket.change(asked.request(self.link))

    def restore(self, saved: Attributes) -> None:
        """Sets each of what is saved, whatever becomes of the others; raises KernelError for the first failure."""
        self.socket.change(*saved.requests(self.link))


@dataclass(frozen=True)
class Ends:
    """The pod's interface, the host's end (None when not asked for, or not there), and the pod's life ("" unknown).

    Neither namespaces' numbers nor interfaces' tell two lives of a container apart, as they are used again.
    """

    inside: End
    outside: End | None
    life: str

    def required(self, *, both: bool) -> Ends:
        """Returns the ends; with `both` raises CniError(7) unless the host's is there."""
        if both and not self.outside:
            own = self.inside.link
            what = "its other end is not on this host" if own.kind == "veth" else f"it is {own.kind or 'of no kind'}"
            msg = f"container interface {own.name} has no veth peer: {what}"
            raise CniError(Code.INVALID_NETWORK_CONFIG, msg, _VETH_ONLY)
        return self


@contextmanager
def opened(namespace: Netns, ifname: str, *, both: bool) -> Iterator[Ends | None]:
    """Finds the ends, None when the pod has no such interface; raises CniError(8), KernelError."""
    with Sandbox(namespace, ifname) as sandbox:
        own = sandbox.find_link()
        if own is None:
            yield None
            return
        inside, life = End(sandbox.socket, own), _life(namespace, sandbox.socket, own)
        if not both:
            yield Ends(inside, None, life)
            return
        with Socket() as host:
            peer = link.get_local_peer(host, own, namespace)
            yield Ends(inside, End(host, peer) if peer else None, life)


def _life(namespace: Netns, socket: Socket, own: Link) -> str:
    """Returns boot, namespace and interface; of the namespace its number in the boot, or (before 5.14) its inode.

    Where the boot cannot be told, "".
    """
    if not (own_boot := boot.get_boot_id().decode("ascii", "replace").strip()):
        return ""
    where = socket.get_namespace_cookie() or f"inode {os.fstat(namespace.fileno()).st_ino}"
    return f"{own_boot} {where} {own.index}"
