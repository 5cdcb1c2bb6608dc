"""Taking a veth pair away without waiting for the kernel's memory.

One rule: the pair is gone when these functions return; only the kernel's acknowledgement may still be outstanding.

Deleting a link, the kernel unlists it and removes its addresses and routes within some 2 ms, but acknowledges the
request only when RCU lets it free the memory, 15 to 25 ms later. A child process waits for that, so that the verb can
go on as soon as the kernel has announced the deletion. The child closes everything it inherits (the caller's pipes,
the sandbox, locks) and asks from the host's side of the pair, so it holds nothing but a socket on the host; when it
outlives the verb it outlives it by that wait only.
"""

from __future__ import annotations

import errno
import os
import struct

from cni.errors import CniError, Code
from kernel import link
from kernel.codec import LinkMessage
from kernel.configure import Sandbox
from kernel.errors import KernelError
from kernel.link import Link
from kernel.rtnl import Deadline, Socket, wait_readable

_GONE_TIMEOUT_S = 60.0  # the kernel's lock for network configuration can be held for seconds on a loaded node
_DESCRIPTORS = 1024  # more than a verb ever has open
_ERRNO = struct.Struct("=i")


def delete_interface(sandbox: Sandbox, own: Link, host: Socket) -> None:
    """Deletes the sandbox's interface, the other end with it, and returns when it is gone.

    A veth whose other end is on the host is deleted as the module says, any other link with the plain request.
    Raises KernelError, and CniError(11) when the deletion is not announced in time.
    """
    peer = _host_end(own, host)
    if peer is None:
        sandbox.socket.change(link.deletion(own))
        return
    with sandbox.listening(link.RTNLGRP_LINK) as news:
        _delete_watched(peer, own, news)


def _host_end(own: Link, host: Socket) -> Link | None:
    """Returns the end on the host of the veth `own`, None for another kind of link or when it is elsewhere."""
    if own.kind != "veth" or not own.lower:
        return None
    (peer,) = link.get(host, link.by_index(own.lower))
    return peer if peer and peer.kind == "veth" and peer.lower == own.index else None


def _delete_watched(peer: Link, own: Link, news: Socket) -> None:
    readable, writable = os.pipe()
    try:
        if os.fork() == 0:
            _child(peer, writable)
        os.close(writable)
        deadline = Deadline(_GONE_TIMEOUT_S)
        while ready := wait_readable([readable, news.fileno()], deadline.left_s()):
            if readable in ready:
                _raise_child_error(peer, os.read(readable, _ERRNO.size))
                return  # acknowledged already
            for kind, message in news.notifications(LinkMessage, 0) or []:
                if kind == link.RTM_DELLINK and message["index"] == own.index:
                    return
    finally:
        os.close(readable)
    raise CniError(Code.TRY_AGAIN_LATER, f'delete "{peer.name}": not gone after {_GONE_TIMEOUT_S:.0f} s')


def _child(peer: Link, report: int) -> None:
    """Runs in the child: asks for the deletion, waits for the acknowledgement, reports an errno, never returns."""
    number = errno.EIO
    try:
        os.dup2(report, 0)
        os.closerange(1, _DESCRIPTORS)
        Socket().change(link.deletion(peer))
        number = 0
    except KernelError as error:
        number = error.errno
    finally:
        if number:
            os.write(0, _ERRNO.pack(number))
        os._exit(0)


def _raise_child_error(peer: Link, report: bytes) -> None:
    if report:
        (number,) = _ERRNO.unpack(report)
        raise KernelError(f'delete "{peer.name}"', number)
