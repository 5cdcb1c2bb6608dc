"""VXLAN devices without learning: each MAC address has a permanent forwarding entry (kernel.tunnel_entries).

*_request functions return a Request and do no I/O; functions that take a Socket send requests through it.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address
from typing import NamedTuple

from cni.address import Address
from kernel import link as links
from kernel.codec_vxlan import VxlanMessage
from kernel.link import IFF_UP, RTM_GETLINK, RTM_NEWLINK, Link, by_index_request
from kernel.route import address_of
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, Request, Socket
from kernel.wire import Attributes, DecodedMessage

KIND = "vxlan"
OVERHEAD = {4: 50, 6: 70}  # bytes that VXLAN adds to a packet: Ethernet 14, VXLAN 8, UDP 8, IPv4 20 or IPv6 40
_NO_ADDRESS = 1  # IN6_ADDR_GEN_MODE_NONE (linux/if_link.h)
_LOOSE = 2  # rp_filter: a packet's source must have a route, through whatever interface
_CONF_RP_FILTER = 8  # IPV4_DEVCONF_RP_FILTER (linux/ip.h)
_CONF = struct.Struct("=I")
_SET_CONF = struct.Struct("=HHI")  # struct nlattr, and the number


class Tunnel(NamedTuple):
    """The settings of a VXLAN device: VNI, UDP port and this node's underlay address, which packets have as source.

    With `learning` the device learns from received packets. With `link_local` the kernel assigns it an IPv6
    link-local address. `rp_filter` is its reverse path filter; the kernel uses that of "all" if it is greater.
    """

    vni: int
    port: int
    local: Address | None
    learning: bool = False
    link_local: bool = False
    rp_filter: int = _LOOSE


def create_requests(name: str, tunnel: Tunnel, mac: bytes, mtu: int, alias: str) -> list[Request]:
    """Returns the requests that create a device and bring it up.

    The first fails with EEXIST if the name is used, or if another device has VNI and port. The device is bound to no
    other link, so that the routing table decides how its packets leave the node. The kernel sets alias and IP settings
    of existing links only, and the latter must be set before the link comes up: these are three requests.
    """
    info: Attributes = [("IFLA_INFO_KIND", KIND), ("IFLA_INFO_DATA", {"attrs": _data(tunnel)})]
    attributes: Attributes = [("IFLA_IFNAME", name), ("IFLA_ADDRESS", mac), ("IFLA_MTU", mtu)]
    attributes.append(("IFLA_LINKINFO", {"attrs": info}))
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    text = f'create VXLAN device "{name}" with VNI {tunnel.vni}, port {tunnel.port} and address {tunnel.local}'
    by_name = ("IFLA_IFNAME", name)
    settings: Attributes = [by_name, ("IFLA_IFALIAS", alias), _af_spec(tunnel)]
    up = {"flags": IFF_UP, "change": IFF_UP}
    return [
        Request(text, VxlanMessage, RTM_NEWLINK, flags, {}, attributes),
        Request(f'set alias and IP settings of "{name}"', VxlanMessage, RTM_NEWLINK, NLM_F_ACK, {}, settings),
        Request(f'set "{name}" up', VxlanMessage, RTM_NEWLINK, NLM_F_ACK, up, [by_name]),
    ]


def set_request(device: Link, tunnel: Tunnel) -> Request:
    """Returns a request that sets underlay address, learning and IP settings of an existing device.

    VNI and port cannot change. The request fails with EOPNOTSUPP if the underlay address has another IP version than
    the device's.
    """
    info: Attributes = [("IFLA_INFO_KIND", KIND), ("IFLA_INFO_DATA", {"attrs": _variable_data(tunnel)})]
    attributes: Attributes = [("IFLA_LINKINFO", {"attrs": info}), _af_spec(tunnel)]
    description = f'set "{device.name}" to address {tunnel.local} without learning'
    return Request(description, VxlanMessage, RTM_NEWLINK, NLM_F_ACK, {"index": device.index}, attributes)


def get(socket: Socket, device: Link) -> Tunnel | None:
    """Returns the settings of a link of kind "vxlan", None if it is missing; raises KernelError."""
    request = by_index_request(device.index)
    (message,) = socket.get(Request(request.description, VxlanMessage, RTM_GETLINK, 0, *request[4:7]))
    return message and _tunnel(message)


def find_conflict(socket: Socket, name: str, tunnel: Tunnel) -> Link | None:
    """Returns another VXLAN device with the VNI and port of `tunnel`, None without one; raises KernelError."""
    for device in links.list_of_kind(socket, KIND):
        existing = get(socket, device) if device.name != name else None
        if existing and (existing.vni, existing.port) == (tunnel.vni, tunnel.port):
            return device
    return None


def find_on_port(socket: Socket, name: str, port: int) -> Link | None:
    """Returns another VXLAN device that is up with a UDP port, None without one; raises KernelError.

    Devices share a port only with equal settings of reception ("external", "gbp", ...).
    """
    for device in links.list_of_kind(socket, KIND):
        existing = get(socket, device) if device.name != name and device.is_up else None
        if existing and existing.port == port:
            return device
    return None


def _data(tunnel: Tunnel) -> Attributes:
    return [("IFLA_VXLAN_ID", tunnel.vni), ("IFLA_VXLAN_PORT", tunnel.port), *_variable_data(tunnel)]


def _variable_data(tunnel: Tunnel) -> Attributes:
    data: Attributes = [("IFLA_VXLAN_LEARNING", int(tunnel.learning))]
    if tunnel.local is not None:
        name = "IFLA_VXLAN_LOCAL" if isinstance(tunnel.local, IPv4Address) else "IFLA_VXLAN_LOCAL6"
        data.append((name, tunnel.local.packed))
    return data


def _af_spec(tunnel: Tunnel) -> tuple[str, object]:
    """Returns the attribute for a device with a reverse path filter, and without IPv6 link-local address."""
    conf = _SET_CONF.pack(_SET_CONF.size, _CONF_RP_FILTER, tunnel.rp_filter)
    ipv4 = ("AF_INET", {"attrs": [("IFLA_INET_CONF", conf)]})
    return "IFLA_AF_SPEC", {"attrs": [ipv4, ("AF_INET6", {"attrs": [("IFLA_INET6_ADDR_GEN_MODE", _NO_ADDRESS)]})]}


def _tunnel(message: DecodedMessage) -> Tunnel:
    info, af_spec = message.need_attr("IFLA_LINKINFO"), message.get_attr("IFLA_AF_SPEC")
    data: DecodedMessage = info.need_attr("IFLA_INFO_DATA")
    local = data.get_attr("IFLA_VXLAN_LOCAL") or data.get_attr("IFLA_VXLAN_LOCAL6")
    ipv4 = af_spec and af_spec.get_attr("AF_INET")
    conf = ipv4.get_attr("IFLA_INET_CONF") if ipv4 else b""
    ipv6 = af_spec and af_spec.get_attr("AF_INET6")  # missing if the kernel has IPv6 disabled, or for a small MTU
    return Tunnel(
        data.need_attr("IFLA_VXLAN_ID"),
        data.need_attr("IFLA_VXLAN_PORT"),
        address_of(local) if local else None,
        bool(data.get_attr("IFLA_VXLAN_LEARNING")),
        bool(ipv6) and ipv6.get_attr("IFLA_INET6_ADDR_GEN_MODE") != _NO_ADDRESS,
        _CONF.unpack_from(conf, _CONF.size * (_CONF_RP_FILTER - 1))[0] if conf else _LOOSE,
    )
