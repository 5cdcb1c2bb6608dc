"""Kernel parameters under /proc/sys/net of the namespace that is current.

One rule: a value that is already right is not written, so that a read-only /proc/sys is no obstacle.
"""

from __future__ import annotations

import os

_ROOT = "/proc/sys/net/"


def get(name: str) -> str:
    """Returns the value of `name` ("ipv4/ip_forward"); raises OSError."""
    descriptor = os.open(_ROOT + name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 256).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)


def ensure(name: str, value: str) -> None:
    """Makes `name` be `value`; raises OSError."""
    if get(name) != value:
        _put(name, value)


def attempt(name: str, value: str) -> None:
    """Sets `name` where the kernel has it and lets us; without IPv6, say, it is done without."""
    try:
        _put(name, value)
    except OSError:
        return


def _put(name: str, value: str) -> None:
    descriptor = os.open(_ROOT + name, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)
