"""The MTU: its value for "auto", and the MTU of the bridge.

One rule: only the bridge and this attachment's veth pair get an MTU. The container's end of another port belongs to
that pod, and the two ends of a veth pair must agree.
"""

from __future__ import annotations

import sys
from ipaddress import IPv6Interface
from socket import AF_INET6

from cni.errors import internal
from cni.result import Result
from kernel import address, link
from kernel.link import Link
from kernel.rtnl import Socket
from plugins.bridge.conf import BridgeConf
from process.values import replace

_AUTO_MIN, _AUTO_FALLBACK = 576, 1460  # kubenet's: what every IPv4 host accepts, and the MTU of Google's network
_IPV6_MIN = 1280  # RFC 8200; below it the kernel removes the IPv6 addresses of an interface


def resolve_auto(host: Socket, conf: BridgeConf) -> BridgeConf:
    """Returns `conf` with the number for "auto", read from one dump of the host's links; raises KernelError."""
    return replace(conf, mtu=_auto_mtu(link.list_all(host))) if conf.mtu_auto else conf


def get_bridge_mtu(host: Socket, bridge: Link, conf: BridgeConf) -> int:
    """Returns the MTU that the bridge should have once this attachment's port is added: the lowest of its ports'.

    A higher MTU silently drops the host's larger packets to the smaller port, a lower one restricts all ports. The
    kernel follows this rule itself unless the bridge's MTU was set explicitly (an MTU set on creation does not count),
    so the ports are listed only if the bridge's MTU differs from the configured one. The bridge keeps its MTU without a
    configured one, and in a VLAN, where the host does not send through the bridge's own interface. Raises KernelError.
    """
    if not conf.mtu or conf.vlans.access or bridge.mtu == conf.mtu:
        return bridge.mtu
    port_mtus = {port.mtu for port in link.list_ports(host, bridge.index)} | {conf.mtu}
    lowest = min(port_mtus)
    if lowest < min(_IPV6_MIN, bridge.mtu) and _has_ipv6(host, bridge):
        _warn(bridge, f"keeps MTU {bridge.mtu}, since it would lose its IPv6 addresses below {_IPV6_MIN}")
        return bridge.mtu
    if len(port_mtus) > 1:
        others = ", ".join(str(mtu) for mtu in sorted(port_mtus - {conf.mtu}))
        _warn(bridge, f"has ports of MTU {others} beside {conf.mtu}: it gets {lowest}")
    return lowest


def ensure_bridge_mtu(host: Socket, bridge: Link, mtu: int) -> None:
    """Sets the MTU of the bridge unless it has it already; raises KernelError."""
    if bridge.mtu != mtu:
        host.change(link.set_request(bridge, mtu=mtu))


def warn_of_larger_gateway(gateway: Link, conf: BridgeConf) -> None:
    """Warns when `<bridge>.<vlan>` has a larger MTU than the port: the host's larger packets to the pod are dropped.

    Its MTU is not lowered: a veth also drops larger packets that come from pods, whose own MTU may be right.
    """
    if conf.mtu and gateway.mtu > conf.mtu:
        _warn(gateway, f"has MTU {gateway.mtu}: larger packets than {conf.mtu} from the host to the pod are lost")


def check(conf: BridgeConf, prev_result: Result, gateway: Link, host_veth: Link, container_veth: Link) -> None:
    """Checks the MTU of both veth ends and the bridge if an MTU is configured; raises CniError(999).

    prevResult contains the MTU since CNI 1.1.0. With older versions a later plugin (tuning) may have changed it without
    a trace. The bridge's MTU may be lower, because of other ports; with a higher one it drops packets.
    """
    if not conf.mtu and not conf.mtu_auto:
        return
    listed = {(item.name, bool(item.sandbox)): item.mtu for item in prev_result.interfaces}
    for veth, is_in_sandbox in ((container_veth, True), (host_veth, False)):
        expected = listed.get((veth.name, is_in_sandbox)) or veth.mtu
        if veth.mtu != expected:
            details = f"it is {veth.mtu}; set it back, or remove the container and create it again"
            raise internal(f"Interface {veth.name} MTU doesn't match: {expected}", details)
    if gateway.mtu > host_veth.mtu and gateway.kind == "bridge" and not conf.vlans.access:
        details = f'larger packets to the pod are lost; set it with: ip link set "{gateway.name}" mtu {host_veth.mtu}'
        raise internal(
            f"Bridge interface {gateway.name} MTU {gateway.mtu} exceeds its port's: {host_veth.mtu}", details
        )


def _auto_mtu(links: list[Link]) -> int:
    """Returns the lowest MTU of the up links that connect the host to a network, by kubenet's rule.

    Unlike kubenet, it ignores bridges, their veth ports and veth pairs with both ends on the host: their MTU results
    from a rule like this one, so a low value would never rise again.
    """
    bridges = {item.index for item in links if item.kind == "bridge"}
    lowest = min((item.mtu for item in links if _is_uplink(item, bridges)), default=0)
    return lowest if lowest >= _AUTO_MIN else _AUTO_FALLBACK


def _is_uplink(item: Link, bridges: set[int]) -> bool:
    if not item.is_up or item.flags & (link.IFF_LOOPBACK | link.IFF_POINTOPOINT) or item.kind == "bridge":
        return False
    return item.kind != "veth" or (item.master not in bridges and item.iflink_nsid is not None)


def _has_ipv6(host: Socket, bridge: Link) -> bool:
    addresses = (assigned.address for assigned in address.list_on_link(host, bridge, family=AF_INET6))
    return any(isinstance(item, IPv6Interface) and not item.is_link_local for item in addresses)


def _warn(device: Link, text: str) -> None:
    kind = "bridge" if device.kind == "bridge" else "interface"
    print(f'podwire: {kind} "{device.name}" {text}', file=sys.stderr)
