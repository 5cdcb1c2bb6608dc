"""Creates network namespaces without a name: one exists as long as a process has it open."""

from __future__ import annotations

import os

from _podwire import setns, unshare

from kernel.errors import KernelError
from kernel.netns import Netns

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_CURRENT = "/proc/self/ns/net"


def create_unnamed() -> Netns:
    """Returns a new network namespace, which the kernel deletes when it is closed; raises KernelError, CniError(8)."""
    home = os.open(_CURRENT, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            unshare(_CLONE_NEWNET)
        except OSError as error:
            raise KernelError("create a network namespace", error.errno or 0) from error
        try:
            return Netns(_CURRENT)
        finally:
            setns(home, _CLONE_NEWNET)
    finally:
        os.close(home)
