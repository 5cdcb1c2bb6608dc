"""IP forwarding, without which a host forwards no packets of pods.

It is enabled for the address families in use, and never disabled, since other programs may rely on it.

With IPv6 forwarding the kernel deletes the default routes that it learned by router advertisement, and ignores further
ones, unless accept_ra is 2. So that is set where there is such a route, and reported on stderr: the node would lose
IPv6 with its first pod.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from cni.errors import internal
from kernel import advertised_route, sysctl
from process.stderr import one_line

_NAMES = {4: "ipv4/ip_forward", 6: "ipv6/conf/all/forwarding"}


def enable(version: int) -> None:
    """Enables forwarding for an IP version (4, 6) if it is off; raises CniError(999) with a hint."""
    with suppress(OSError):  # ensure_or_fail() reports it
        if sysctl.get(_NAMES[version]) == "1":
            return
        if version == 6:
            _keep_advertised_routes()
    sysctl.ensure_or_fail(_NAMES[version], "1", "enable forwarding")


def check(version: int) -> None:
    """Raises CniError(999) when forwarding of an IP version is off or cannot be read."""
    name = _NAMES[version]
    try:
        if sysctl.get(name) == "1":
            return
    except OSError as error:
        raise internal(f"cannot read net/{name}: {error.strerror}") from error
    raise internal(f"net/{name} is off", f"set it on the node: {sysctl.command(name, '1')}")


def refuse_unavailable() -> None:
    """Raises CniError(999) when forwarding is off, and can be enabled neither for IPv4 nor for IPv6.

    STATUS does not know which families IPAM will allocate, so one of them is enough.
    """
    for name in _NAMES.values():
        with suppress(FileNotFoundError):
            if sysctl.get(name) == "1" or sysctl.is_writable(name):
                return
    name = _NAMES[4]
    raise internal(
        f"forwarding is off, and net/{name} cannot be written here", f"set it on the node: {sysctl.command(name, '1')}"
    )


def _keep_advertised_routes() -> None:
    """Has the kernel accept router advertisements also with forwarding, on the interfaces with such a default route.

    Raises OSError.
    """
    for interface in advertised_route.list_endangered():
        name = advertised_route.setting_of(interface)
        text = (
            f'the IPv6 default route through "{interface}" came by router advertisement, and forwarding is enabled now'
        )
        try:
            sysctl.write(name, "2")
            text += f": so that it stays, podwire sets accept_ra as {sysctl.command(name, '2')} does"
        except OSError as error:
            text += f": it will be lost ({error.strerror}); fix: {sysctl.command(name, '2')}"
        print(one_line(f"podwire: {text}"), file=sys.stderr)
