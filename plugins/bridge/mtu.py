"""The MTU: taken from the host's interfaces when that is asked for, and a bridge that does not contradict it.

One rule: only the bridge and our own pair get an MTU. The inner end of another's port is that pod's own, and the two
ends of a pair must agree.
"""

from __future__ import annotations

import sys
from ipaddress import IPv6Interface
from socket import AF_INET6

from cni.errors import CniError, Code
from cni.result import Result
from kernel import address, link
from kernel.link import Link
from kernel.rtnl import Socket
from plugins.bridge.conf import BridgeConf
from process.values import replace

_AUTO_MIN, _AUTO_FALLBACK = 576, 1460  # kubenet's: what every IPv4 host takes, what Google's network carries
_IPV6_MIN = 1280  # RFC 8200; below it the kernel takes the IPv6 addresses off an interface


def resolved(host: Socket, conf: BridgeConf) -> BridgeConf:
    """Returns `conf` with the number that "auto" stands for, by one dump of the links; raises KernelError."""
    return replace(conf, mtu=_auto(link.list_all(host))) if conf.mtu_auto else conf


def fitted(host: Socket, bridge: Link, conf: BridgeConf) -> Link:
    """Returns the bridge as it should be once our port, of `conf.mtu`, has joined: with the least MTU of its ports.

    A larger one loses the host's larger packets to the smaller port without a word to the sender, a smaller one holds
    down all. The kernel keeps to this by itself as long as nobody has set the bridge's MTU (an MTU given when the
    bridge is made does not count), so there is mostly nothing to do: only where the bridge has another MTU than ours
    are its ports listed. Not asked for without an MTU, nor in a VLAN, where the host does not send through the bridge's
    own interface. Raises KernelError.
    """
    if not conf.mtu or conf.vlans.access or bridge.mtu == conf.mtu:
        return bridge
    found = {port.mtu for port in link.list_ports(host, bridge.index)} | {conf.mtu}
    least = min(found)
    if least < min(_IPV6_MIN, bridge.mtu) and _has_ipv6(host, bridge):
        _tell(bridge, f"keeps MTU {bridge.mtu}, since it would lose its IPv6 addresses below {_IPV6_MIN}")
        return bridge
    if len(found) > 1:
        others = ", ".join(str(mtu) for mtu in sorted(found - {conf.mtu}))
        _tell(bridge, f"has ports of MTU {others} beside {conf.mtu}: it gets {least}")
    return bridge._replace(mtu=least)


def fit(host: Socket, bridge: Link, wanted: Link) -> None:
    """Gives the bridge the MTU of `wanted`, unless it has it; raises KernelError."""
    if bridge.mtu != wanted.mtu:
        host.change(link.set_request(bridge, mtu=wanted.mtu))


def warn_of_gateway(gateway: Link, conf: BridgeConf) -> None:
    """Tells when `<bridge>.<vlan>` has a larger MTU than our port: the host's larger packets to our pod are lost.

    It is not lowered: a veth drops what is larger than its MTU also when it comes from pods, whose MTU may be right.
    """
    if conf.mtu and gateway.mtu > conf.mtu:
        _tell(gateway, f"has MTU {gateway.mtu}: larger packets than {conf.mtu} from the host to the pod are lost")


def check(conf: BridgeConf, prev_result: Result, gateway: Link, outside: Link, inside: Link) -> None:
    """Checks the MTU that was asked for; raises CniError(999).

    prevResult tells of both ends since CNI 1.1.0; before, a plugin behind us (tuning) may have set another one without
    a word. The bridge may have less, as another's port may; with more it loses packets.
    """
    if not conf.mtu and not conf.mtu_auto:
        return
    told = {(item.name, bool(item.sandbox)): item.mtu for item in prev_result.interfaces}
    for end, in_sandbox in ((inside, True), (outside, False)):
        expected = told.get((end.name, in_sandbox)) or end.mtu
        if end.mtu != expected:
            details = f"it is {end.mtu}; set it back, or remove the container and create it again"
            raise _wrong(f"Interface {end.name} MTU doesn't match: {expected}", details)
    if gateway.mtu > outside.mtu and gateway.kind == "bridge" and not conf.vlans.access:
        details = f'larger packets to the pod are lost; set it with: ip link set "{gateway.name}" mtu {outside.mtu}'
        raise _wrong(f"Bridge interface {gateway.name} MTU {gateway.mtu} exceeds its port's: {outside.mtu}", details)


def _auto(links: list[Link]) -> int:
    """Returns the least MTU of the links that are up and lead off the host, by kubenet's rule.

    Unlike kubenet's it leaves out bridges, their veth ports and veth pairs with both ends on the host: their MTU
    follows from such a rule as this one, and a low value would hold itself up for ever.
    """
    bridges = {item.index for item in links if item.kind == "bridge"}
    least = min((item.mtu for item in links if _leads_out(item, bridges)), default=0)
    return least if least >= _AUTO_MIN else _AUTO_FALLBACK


def _leads_out(item: Link, bridges: set[int]) -> bool:
    if not item.is_up or item.flags & (link.IFF_LOOPBACK | link.IFF_POINTOPOINT) or item.kind == "bridge":
        return False
    return item.kind != "veth" or (item.master not in bridges and item.lower_nsid is not None)


def _has_ipv6(host: Socket, bridge: Link) -> bool:
    found = (assigned.address for assigned in address.list_on_link(host, bridge, family=AF_INET6))
    return any(isinstance(item, IPv6Interface) and not item.is_link_local for item in found)


def _tell(found: Link, what: str) -> None:
    kind = "bridge" if found.kind == "bridge" else "interface"
    print(f'podwire: {kind} "{found.name}" {what}', file=sys.stderr)


def _wrong(msg: str, details: str) -> CniError:
    return CniError(Code.INTERNAL, msg, details)
