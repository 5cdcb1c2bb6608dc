"""The MTU of the veth and of the bridge.

ADD sets the MTU of this attachment's veth and of the bridge, never that of another attachment's veth: its container
end belongs to that pod, and the two ends must have the same MTU.
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

_IPV6_MIN = 1280  # RFC 8200; below it the kernel removes the IPv6 addresses of an interface


def choose_bridge_mtu(host: Socket, bridge: Link, conf: BridgeConf) -> int:
    """Returns the MTU that the bridge should have with this attachment's port: the lowest MTU of its ports.

    If the bridge's MTU is higher, packets from the host that are too large for a port are dropped without notice. If it
    is lower, it limits all ports.

    The kernel sets the lowest MTU by itself, until someone sets the bridge's MTU explicitly (setting it at creation
    does not count). So the ports are listed only if the bridge's MTU differs from the configured one. The bridge's MTU
    does not change if no MTU is configured, nor in a VLAN, where the host sends through the gateway interface. Raises
    KernelError.
    """
    if not conf.mtu or conf.vlans.access or bridge.mtu == conf.mtu:
        return bridge.mtu
    port_mtus = {port.mtu for port in link.list_ports(host, bridge.index)} | {conf.mtu}
    lowest = min(port_mtus)
    if lowest < min(_IPV6_MIN, bridge.mtu) and _has_ipv6(host, bridge):
        _warn(bridge, f"keeps MTU {bridge.mtu}: below {_IPV6_MIN} it would lose its IPv6 addresses")
        return bridge.mtu
    if len(port_mtus) > 1:
        others = ", ".join(str(mtu) for mtu in sorted(port_mtus - {conf.mtu}))
        _warn(bridge, f"has ports with MTU {others} and {conf.mtu}: its MTU is set to {lowest}")
    return lowest


def ensure_bridge_mtu(host: Socket, bridge: Link, mtu: int) -> None:
    """Sets the MTU of the bridge if it differs; raises KernelError."""
    if bridge.mtu != mtu:
        host.change(link.set_request(bridge, mtu=mtu))


def warn_of_larger_gateway_mtu(gateway_link: Link, conf: BridgeConf) -> None:
    """Warns when the gateway interface of a VLAN has a larger MTU than the pod: larger packets to the pod are dropped.

    The MTU is not lowered: the gateway interface is a veth, and would drop larger packets from other pods of the VLAN.
    """
    if conf.mtu and gateway_link.mtu > conf.mtu:
        problem = f"packets from the host to the pod that are larger than {conf.mtu} bytes are lost"
        _warn(gateway_link, f"has MTU {gateway_link.mtu}: {problem}")


def check(conf: BridgeConf, prev_result: Result, gateway_link: Link, host_veth: Link, container_veth: Link) -> None:
    """Checks the MTU of both veth ends and of the bridge, if an MTU is configured; raises CniError(999).

    The ends are compared with prevResult. Before CNI 1.1.0 it does not contain the MTU, so a change by a later plugin
    (tuning) cannot be distinguished from another program's, and any MTU passes. The bridge's MTU may be lower than the
    veth's, because of other ports. A higher one is an error: the bridge drops packets that are too large for the veth.
    """
    if not conf.mtu and not conf.mtu_auto:
        return
    listed = {(item.name, bool(item.sandbox)): item.mtu for item in prev_result.interfaces}
    for veth, is_in_sandbox in ((container_veth, True), (host_veth, False)):
        expected = listed.get((veth.name, is_in_sandbox)) or veth.mtu
        if veth.mtu != expected:
            details = f"it is {veth.mtu}; set it back, or remove the container and create it again"
            raise internal(f"Interface {veth.name} MTU doesn't match: {expected}", details)
    if gateway_link.mtu > host_veth.mtu and gateway_link.kind == "bridge" and not conf.vlans.access:
        name = gateway_link.name
        details = f'larger packets to the pod are lost; set it with: ip link set "{name}" mtu {host_veth.mtu}'
        raise internal(f"Bridge interface {name} MTU {gateway_link.mtu} exceeds its port's: {host_veth.mtu}", details)


def _has_ipv6(host: Socket, bridge: Link) -> bool:
    addresses = (assigned.address for assigned in address.list_on_link(host, bridge, family=AF_INET6))
    return any(isinstance(item, IPv6Interface) and not item.is_link_local for item in addresses)


def _warn(device: Link, text: str) -> None:
    kind = "bridge" if device.kind == "bridge" else "interface"
    print(f'bridge: {kind} "{device.name}" {text}', file=sys.stderr)
