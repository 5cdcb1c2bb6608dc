"""Taking links away without waiting for the kernel's memory.

One rule: the link is gone when these functions return; only the kernel's acknowledgement may still be outstanding.

Deleting a link, the kernel unlists it and removes its addresses and routes within some 2 ms, but acknowledges the
request only when RCU lets it free the memory, 15 to 25 ms later. A child process waits for that, so that the verb can
go on as soon as the kernel has announced the deletion. The child closes everything it inherits (the caller's pipes,
the sandbox, locks) and asks from the host's side of a pair, so it holds nothing but a socket on the host; when it
outlives the verb it outlives it by that wait only. It runs no Python, and in our memory: a copy, page by page, would
cost a tenth of a DEL.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from _podwire import ask_apart

from cni.errors import CniError, Code
from kernel import link
from kernel.codec import LinkMessage
from kernel.errors import KernelError
from kernel.link import Link
from kernel.rtnl import Deadline, Request, Socket, wait_readable
from process import record

_GONE_TIMEOUT_S = 60.0  # the kernel's lock for network configuration can be held for seconds on a loaded node


def delete_on_host(own: Link, host: Socket) -> None:
    """Deletes an interface of the host that leads into no sandbox, and returns when it is gone; raises as above."""
    if not delete_in_background(own, own, _listening):
        host.change(link.delete_request(own))


def delete_in_background(doomed: Link, seen: Link, listening: Callable[[], Socket]) -> bool:
    """Has a child delete `doomed` on the host and tells whether `seen` is gone, as the news of its namespace say.

    False when the child ended without success, or there could be none.
    """
    words = link.delete_request(doomed).description + (
        f', the other end of "{seen.name}"' if seen is not doomed else ""
    )
    if record.is_dry_run():
        record.change(words)
        return True
    try:
        with record.timed_step(words), listening() as news:
            gone = _watched(doomed, seen, news)
        if gone:
            record.change(words)
        return gone
    except (OSError, KernelError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        print(f"podwire: DEL waits for the kernel, since it cannot leave that to a child: {why}", file=sys.stderr)
        return False


def _listening() -> Socket:
    socket = Socket()
    socket.subscribe(link.RTNLGRP_LINK)
    return socket


def _watched(doomed: Link, seen: Link, news: Socket) -> bool:
    request = link.delete_request(doomed)
    readable, writable = os.pipe()
    try:
        try:
            with Socket() as asking:
                child = ask_apart(asking.fileno(), request.encode(1), writable)
        finally:
            os.close(writable)
        deadline = Deadline(_GONE_TIMEOUT_S)
        while ready := wait_readable([readable, news.fileno()], deadline.remaining_s()):
            if news.fileno() not in ready:
                return _succeeded(child, request)
            for kind, message in news.wait_notifications(LinkMessage, 0) or []:
                if kind == link.RTM_DELLINK and message["index"] == seen.index:
                    return True
    finally:
        os.close(readable)
    raise CniError(Code.TRY_AGAIN_LATER, f'delete "{doomed.name}": not gone after {_GONE_TIMEOUT_S:.0f} s')


def _succeeded(child: int, request: Request) -> bool:
    """Tells whether the child, which has ended, got what it asked for; not where nobody may know how children end."""
    try:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:  # whoever started us has the kernel forget them (SIGCHLD ignored)
        return False
    return status in (0, *request.ignore)
