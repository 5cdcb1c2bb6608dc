"""Existing devices: reading and setting what a pod may change, and moving them to another network namespace.

A move to another namespace waits for RCU twice, some 7 ms each, whatever else its message changes.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from cni.address import format_mac
from kernel.codec_links import DeviceMessage
from kernel.link import (
    IFF_ALLMULTI,
    IFF_MULTICAST,
    IFF_NOARP,
    IFF_PROMISC,
    RTM_GETLINK,
    RTM_NEWLINK,
    Link,
    by_name_request,
    from_message,
)
from kernel.netns import Netns
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Request, Socket
from kernel.wire import Attributes, DecodedMessage, attribute_specs

RTM_NEWLINKPROP, RTM_DELLINKPROP = 108, 109
FLAGS = IFF_NOARP | IFF_PROMISC | IFF_ALLMULTI | IFF_MULTICAST
_SPECS = attribute_specs(DeviceMessage, IFLA_PERM_ADDRESS=b"", IFLA_GROUP=0)


class Device(NamedTuple):
    """A link and its permanent MAC address, "" for virtual links and before Linux 5.6; its group and altnames."""

    link: Link
    permanent_mac: str
    group: int = 0
    altnames: tuple[str, ...] = ()


def get(socket: Socket, name: str) -> Device | None:
    """Returns the device called `name`, None without one; raises KernelError."""
    (message,) = socket.get(by_name_request(name)._replace(kind=DeviceMessage))
    return message and _device(message)


def list_all(socket: Socket) -> list[Device]:
    """Returns all links of the namespace; raises KernelError."""
    request = Request("list the interfaces", DeviceMessage, RTM_GETLINK, NLM_F_DUMP)
    return [_device(message) for message in socket.dump(request)]


def move_request(link: Link, namespace: Netns, where: str, *, name: str, alias: str) -> Request:
    """Returns a request that moves a link to `namespace`, described as `where`, and there sets its name and alias.

    The kernel changes both after the move, so that the namespace of the socket sees no rename. If `name` is used in
    `namespace`, the link has been moved when the request fails.
    """
    attributes: Attributes = [("IFLA_NET_NS_FD", namespace.fileno())]
    attributes += (("IFLA_IFNAME", name), ("IFLA_IFALIAS", alias))
    description = f'move "{link.name}" to {where} as "{name}"'
    return Request(description, DeviceMessage, RTM_NEWLINK, NLM_F_ACK, {"index": link.index}, attributes)


def rename_request(link: Link, name: str, alias: str) -> Request:
    """Returns a request that sets name and alias of a link that is down; EEXIST, if the name is used, is no failure."""
    attributes: Attributes = [("IFLA_IFNAME", name), ("IFLA_IFALIAS", alias)]
    description = f'set "{link.name}" to name "{name}"'
    return Request(
        description, DeviceMessage, RTM_NEWLINK, NLM_F_ACK, {"index": link.index}, attributes, (errno.EEXIST,)
    )


def add_altnames_request(link: Link, names: tuple[str, ...]) -> Request:
    """Returns a request that adds altnames, all or none; it fails with EEXIST if another link has one."""
    return _altnames_request(f'add the altnames {", ".join(names)} to "{link.name}"', RTM_NEWLINKPROP, link, names)


def delete_altnames_request(link: Link, names: tuple[str, ...]) -> Request:
    """Returns a request that deletes altnames."""
    return _altnames_request(f'delete the altnames {", ".join(names)} of "{link.name}"', RTM_DELLINKPROP, link, names)


def set_flags_request(link: Link, flags: int, tx_queue: int, group: int) -> Request:
    """Returns a request that sets the flags in `FLAGS`, the transmit queue length and the group of a link."""
    values = {"index": link.index, "flags": flags & FLAGS, "change": FLAGS}
    attributes: Attributes = [("IFLA_TXQLEN", tx_queue), ("IFLA_GROUP", group)]
    description = f'set "{link.name}" to flags {flags & FLAGS:#x}, a queue of {tx_queue} and group {group}'
    return Request(description, DeviceMessage, RTM_NEWLINK, NLM_F_ACK, values, attributes)


def _altnames_request(description: str, number: int, link: Link, names: tuple[str, ...]) -> Request:
    properties = {"attrs": [("IFLA_ALT_IFNAME", name) for name in names]}
    flags = NLM_F_ACK | (NLM_F_CREATE | NLM_F_EXCL if number == RTM_NEWLINKPROP else 0)
    return Request(description, DeviceMessage, number, flags, {"index": link.index}, [("IFLA_PROP_LIST", properties)])


def _device(message: DecodedMessage) -> Device:
    permanent, group = message.get_attributes(_SPECS)
    properties = message.get_attr("IFLA_PROP_LIST")
    altnames = tuple(properties.get_attrs("IFLA_ALT_IFNAME")) if properties else ()
    return Device(from_message(message), format_mac(permanent) if any(permanent) else "", group, altnames)
