"""Network namespaces without a name: one exists as long as a process is in it or has it open."""

from __future__ import annotations

import os

from _podwire import setns, unshare

from cni.errors import CniError, Code
from kernel import link
from kernel.errors import reason
from kernel.netns import Netns
from kernel.rtnl import Socket

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_CURRENT = "/proc/self/ns/net"
_NEEDS = "this needs root with CAP_SYS_ADMIN: in a container, run it on the node itself"


def create_unnamed() -> Netns:
    """Returns a new network namespace, which the kernel deletes when it is closed; raises CniError(8).

    Its `path` can be used as CNI_NETNS, also by child processes.
    """
    home = os.open(_CURRENT, os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter_new()
        try:
            created = Netns(_CURRENT)
        finally:
            setns(home, _CLONE_NEWNET)
    except OSError as error:
        raise refusal_error("return from a new network namespace", error) from error
    finally:
        os.close(home)
    created.path = f"/proc/{os.getpid()}/fd/{created.fileno()}"
    return created


def enter_new() -> None:
    """Moves this process into a new network namespace; raises CniError(8)."""
    try:
        unshare(_CLONE_NEWNET)
    except OSError as error:
        raise refusal_error("create a network namespace", error) from error


def set_loopback_up() -> None:
    """Brings `lo` up in the current network namespace; raises KernelError."""
    with Socket() as socket:
        (loopback,) = link.get(socket, link.by_name_request("lo"))
        if loopback:
            socket.change(link.set_request(loopback, up=True))


def refusal_error(action: str, error: OSError) -> CniError:
    """Returns the error of a namespace that this process may not create or enter."""
    return CniError(Code.INVALID_NETNS, f"cannot {action}: {reason(error.errno or 0)}", _NEEDS)
