"""The value "auto" of the key `mtu`: the lowest MTU of the host's uplinks, so that a pod's packets fit each of them.

A tunnel of the node is an uplink, too: the device of podwire-agent has the MTU of the network less the tunnel's header.
"""

from __future__ import annotations

from attachment.veth import parse_mtu
from cni.fields import Fields
from cni.keys import INTEGER, STRING, Key
from kernel import link
from kernel.link import Link
from kernel.rtnl import Socket

AUTO = "auto"
KEY = Key("mtu", (INTEGER, STRING), choices=(AUTO,))
HINT = f'; "{AUTO}" is the lowest MTU of the host\'s interfaces: set a number instead'

_MIN, _FALLBACK = 576, 1460  # as in kubenet: every IPv4 host accepts 576; Google's network has MTU 1460


def parse(fields: Fields) -> tuple[int, bool]:
    """Reads the key `mtu`: bytes, 0 for the kernel's default, and whether it is "auto"; raises CniError(7)."""
    raw = fields.raw("mtu")
    if isinstance(raw, str) and raw != AUTO:
        hint = "write the number without quotes"
        raise fields.error("mtu", f'must be an integer or "{AUTO}", not "{raw}"', hint)
    hint = f'leave it out for the kernel\'s default, or set "{AUTO}"'
    return (0, True) if raw == AUTO else (parse_mtu(fields, hint), False)


def read(host: Socket) -> int:
    """Returns the lowest MTU of the host's uplinks that are up, in bytes, as kubenet does; raises KernelError.

    Unlike kubenet, it ignores bridges and the host's ends of pods' veths: they have the MTU of an earlier "auto", so a
    low value would never rise again.
    """
    links = link.list_all(host)
    bridges = {item.index for item in links if item.kind == "bridge"}
    lowest = min((item.mtu for item in links if _is_uplink(item, bridges)), default=0)
    return lowest if lowest >= _MIN else _FALLBACK


def _is_uplink(item: Link, bridges: set[int]) -> bool:
    """Returns whether a link is up and connects the host to a network.

    If the host is itself a container, its uplink may be a veth. A veth of a pod is a port of a bridge, has both ends on
    the host, or is called veth..., as all container runtimes and ptp name it.
    """
    if not item.is_up or item.flags & (link.IFF_LOOPBACK | link.IFF_POINTOPOINT) or item.kind == "bridge":
        return False
    is_of_pod = item.master in bridges or item.iflink_nsid is None or item.name.startswith("veth")
    return item.kind != "veth" or not is_of_pod
