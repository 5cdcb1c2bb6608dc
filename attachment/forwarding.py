"""Forwarding: without it a host hands on no packet of a pod's.

One rule: it is switched on for the families that are used, and never off again, since others may use it by then.
"""

from __future__ import annotations

from contextlib import suppress

from cni.errors import CniError, Code
from kernel import sysctl

_NAMES = {4: "ipv4/ip_forward", 6: "ipv6/conf/all/forwarding"}


def enable(version: int) -> None:
    """Switches forwarding on for an IP version (4, 6), unless it is; raises CniError(999) with the cure."""
    sysctl.ensure_or_fail(_NAMES[version], "1", "enable forwarding")


def check(version: int) -> None:
    """Raises CniError(999) where an IP version is not forwarded."""
    name = _NAMES[version]
    try:
        if sysctl.get(name) == "1":
            return
    except OSError as error:
        raise CniError(Code.INTERNAL, f"cannot read net/{name}: {error.strerror}") from error
    raise CniError(Code.INTERNAL, f"net/{name} is off", f"set it on the node: {sysctl.command(name, '1')}")


def refuse_unavailable() -> None:
    """Raises CniError(999) where neither family is forwarded or could be; which of them is needed, IPAM decides."""
    for name in _NAMES.values():
        with suppress(FileNotFoundError):
            if sysctl.get(name) == "1" or sysctl.is_writable(name):
                return
    name = _NAMES[4]
    raise CniError(
        Code.INTERNAL,
        f"forwarding is off, and net/{name} cannot be written here",
        f"set it on the node: {sysctl.command(name, '1')}",
    )
