"""The host veth of an attachment, as a result lists it.

A result does not say which interface on the host belongs to the container, so the order decides: podwire, the reference
plugins and most others list a bridge, if there is one, then the host veth, then the container's interface. All
functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cni.result import Interface


class HostVeth(NamedTuple):
    """The name of the host veth, and name and MAC address of the bridge listed before it; "" if not listed."""

    name: str = ""
    bridge: str = ""
    bridge_mac: str = ""


def host_veth(interfaces: Iterable[Interface], ifname: str, netns: str = "") -> HostVeth:
    """Returns the host veth of the container's interface `ifname`: the interface on the host listed right before it.

    If `netns` is not empty, the interface's "sandbox" must be that path; otherwise the result is another container's.
    """
    on_host = [Interface(""), Interface("")]
    for item in interfaces:
        if not item.sandbox:
            on_host.append(item)
            continue
        if item.name == ifname and netns in ("", item.sandbox) and len(on_host) > 2:
            bridge, veth = on_host[-2:]
            return HostVeth(veth.name, bridge.name, bridge.mac)
        on_host = on_host[:2]
    return HostVeth()
