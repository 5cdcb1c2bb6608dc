"""Links on top of another link of the host: macvlan, ipvlan and VLAN interfaces.

A child is created in the namespace where it is used, and its parent is in the namespace of the socket.
"""

from __future__ import annotations

import errno
from functools import partial

from cni.address import format_mac
from kernel import system
from kernel.codec_links import IpvlanMessage, MacvlanMessage, VlanDeviceMessage
from kernel.errors import KernelError
from kernel.link import (
    RTM_GETLINK,
    RTM_NEWLINK,
    Link,
    by_index_request,
    by_name_request,
    delete_request,
    get,
    set_request,
)
from kernel.netns import Netns
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, Request, Socket
from kernel.wire import Attributes, DecodedMessage
from process.undo import Undo

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


def create(
    socket: Socket,
    sandbox_socket: Socket,
    kind: str,
    name: str,
    parent: Link,
    namespace: Netns | None,
    data: Attributes,
    *,
    mac: bytes = b"",
    mtu: int = 0,
) -> None:
    """Creates the link of create_request(); `sandbox_socket` is in `namespace`. Raises KernelError.

    Older kernels, such as 6.1, refuse a name that exists in the namespace of `socket`, too ("eth0" of the host). There
    the link gets a random name first.
    """
    try:
        socket.change(create_request(kind, name, parent, namespace, data, mac=mac, mtu=mtu))
        return
    except KernelError as error:
        if error.errno != errno.EEXIST or namespace is None:
            raise
    temporary = f"{kind[:4]}{system.current.random_bytes(4).hex()}"
    with Undo() as undo:
        undo.push(f'delete "{temporary}"', partial(_delete, sandbox_socket, temporary))
        socket.change(create_request(kind, temporary, parent, namespace, data, mac=mac, mtu=mtu))
        (created,) = get(sandbox_socket, by_name_request(temporary))
        if created is not None:
            sandbox_socket.change(set_request(created, name=name))


def get_data(socket: Socket, child: Link) -> DecodedMessage | None:
    """Returns the attributes of a link's kind (IFLA_INFO_DATA), None if the link is missing; raises KernelError."""
    request = by_index_request(child.index)
    (message,) = socket.get(Request(request.description, _MESSAGES[child.kind], RTM_GETLINK, 0, *request[4:7]))
    info = message and message.get_attr("IFLA_LINKINFO")
    data: DecodedMessage | None = info and info.get_attr("IFLA_INFO_DATA")
    return data


def _delete(socket: Socket, name: str) -> None:
    (existing,) = get(socket, by_name_request(name))
    if existing is not None:
        socket.change(delete_request(existing))
