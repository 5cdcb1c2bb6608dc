"""Deletes links without waiting until the kernel has freed their memory.

When these functions return, the link no longer exists. Only the kernel's acknowledgement may be outstanding.

The kernel unlists a deleted link and removes its addresses and routes within some 2 ms, but acknowledges the request
only when RCU lets it free the memory, 15 to 25 ms later. A background process waits for that, so that the verb can
continue as soon as the kernel announces the deletion. That process closes every descriptor that it inherits (the
caller's pipes, the sandbox, locks) and deletes the host's end of a veth, so its only open file is a socket on the host,
or for a link without such an end, one in the sandbox.
It ends when the kernel acknowledges the request. It runs no Python and shares the parent's memory: copying the memory,
page by page, would take a tenth of the time of a DEL.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from cni.errors import CniError, Code
from kernel import link, system
from kernel.codec import LinkMessage
from kernel.errors import KernelError
from kernel.link import Link
from kernel.rtnl import Deadline, Request, Socket, wait_readable
from process import record

_DELETION_TIMEOUT_S = 60.0  # the kernel's lock for network configuration can be held for seconds on a loaded node


def delete_on_host(doomed: Link, host: Socket) -> None:
    """Deletes an interface of the host whose peer is in no sandbox; raises as delete_in_background()."""
    if not delete_in_background(doomed, doomed, _open_listener):
        host.change(link.delete_request(doomed))


def delete_in_sandbox(doomed: Link, open_socket: Callable[[], Socket]) -> None:
    """Deletes an interface without an end on the host; `open_socket` returns a socket in its namespace.

    Until the kernel acknowledges the request, the background process's socket keeps that namespace alive. Raises as
    delete_in_background(), and KernelError.
    """

    def open_listener() -> Socket:
        listener = open_socket()
        listener.subscribe(link.RTNLGRP_LINK)
        return listener

    if not delete_in_background(doomed, doomed, open_listener, open_socket):
        with open_socket() as socket:
            socket.change(link.delete_request(doomed))


def delete_in_background(
    deleted: Link, watched: Link, open_listener: Callable[[], Socket], open_socket: Callable[[], Socket] = Socket
) -> bool:
    """Deletes `deleted` in a background process; returns whether the kernel announced that `watched` is deleted.

    `open_listener` returns a socket in the namespace of `watched`, subscribed to link changes; `open_socket` one in the
    namespace of `deleted`, by default this process's. False when the process failed or could not be started. Raises
    CniError(11) when there is no announcement within 60 s.
    """
    peer = f', the other end of "{watched.name}"' if watched is not deleted else ""
    description = link.delete_request(deleted).description + peer
    if record.is_dry_run():
        record.note_change(description)
        return True
    try:
        with record.timed_step(description), open_listener() as listener, open_socket() as socket:
            is_deleted = _delete(deleted, watched, listener, socket)
        if is_deleted:
            record.note_change(description)
        return is_deleted
    except (OSError, KernelError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        print(f"podwire: DEL waits for the kernel, since it cannot start a child process: {why}", file=sys.stderr)
        return False


def _open_listener() -> Socket:
    socket = Socket()
    socket.subscribe(link.RTNLGRP_LINK)
    return socket


def _delete(deleted: Link, watched: Link, listener: Socket, socket: Socket) -> bool:
    request = link.delete_request(deleted)
    readable, writable = os.pipe()
    try:
        try:
            child = system.current.send_in_background(socket.fileno(), request.encode(1), writable)
        finally:
            os.close(writable)
        deadline = Deadline(_DELETION_TIMEOUT_S)
        while ready := wait_readable([readable, listener.fileno()], deadline.remaining_s()):
            if listener.fileno() not in ready:
                return _succeeded(child, request)
            for kind, message in listener.wait_notifications(LinkMessage, 0) or []:
                if kind == link.RTM_DELLINK and message["index"] == watched.index:
                    return True
    finally:
        os.close(readable)
    raise CniError(
        Code.TRY_AGAIN_LATER,
        f'delete "{deleted.name}": the kernel did not announce the deletion within {_DELETION_TIMEOUT_S:.0f} s',
    )


def _succeeded(child: int, request: Request) -> bool:
    """Returns whether the ended child deleted the link; False when its exit status is not available."""
    try:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:  # the parent process set SIGCHLD to SIG_IGN: the kernel discards exit statuses
        return False
    return status in (0, *request.ignore)
