"""Links on top of another link of the host: macvlan, ipvlan and VLAN interfaces.

A child is created in the namespace where it is used, and its parent is in the namespace of the socket.
"""

from __future__ import annotations

from cni.address import format_mac
from kernel.codec_links import IpvlanMessage, MacvlanMessage, VlanDeviceMessage
from kernel.link import RTM_GETLINK, RTM_NEWLINK, Link, by_index_request
from kernel.netns import Netns
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, Request, Socket
from kernel.wire import Attributes, DecodedMessage

_MESSAGES = {"macvlan": MacvlanMessage, "ipvlan": IpvlanMessage, "vlan": VlanDeviceMessage}


def create_request(
    kind: str, name: str, parent: Link, namespace: Netns | None, data: Attributes, *, mac: bytes = b"", mtu: int = 0
) -> Request:
    """Returns a request that creates a link of `kind` on top of `parent`, in `namespace` or, if None, the socket's.

    `data` are the attributes of the kind (IFLA_MACVLAN_*, IFLA_IPVLAN_*, IFLA_VLAN_*, linux/if_link.h). `mac` b"" is
    the kernel's choice, `mtu` 0 the parent's. The link is down. The request fails with EEXIST if the name is used.
    """
    attributes: Attributes = [("IFLA_IFNAME", name), ("IFLA_LINK", parent.index)]
    if mac:
        attributes.append(("IFLA_ADDRESS", mac))
    if mtu:
        attributes.append(("IFLA_MTU", mtu))
    if namespace is not None:
        attributes.append(("IFLA_NET_NS_FD", namespace.fileno()))
    info: Attributes = [("IFLA_INFO_KIND", kind)]
    if data:
        info.append(("IFLA_INFO_DATA", {"attrs": data}))
    attributes.append(("IFLA_LINKINFO", {"attrs": info}))
    with_mac = f" with address {format_mac(mac)}" if mac else ""
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    description = f'create {kind} "{name}" on "{parent.name}"{with_mac}'
    return Request(description, _MESSAGES[kind], RTM_NEWLINK, flags, {}, attributes)


def get_data(socket: Socket, child: Link) -> DecodedMessage | None:
    """Returns the attributes of a link's kind (IFLA_INFO_DATA), None if the link is missing; raises KernelError."""
    request = by_index_request(child.index)
    (message,) = socket.get(Request(request.description, _MESSAGES[child.kind], RTM_GETLINK, 0, *request[4:7]))
    info = message and message.get_attr("IFLA_LINKINFO")
    data: DecodedMessage | None = info and info.get_attr("IFLA_INFO_DATA")
    return data
