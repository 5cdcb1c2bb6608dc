"""Existing devices: reading them with their permanent addresses, and moving them to another network namespace.

A move to another namespace waits for RCU twice, some 7 ms each, whatever else its message changes.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from cni.address import format_mac
from kernel.codec_links import DeviceMessage
from kernel.link import IFF_UP, RTM_GETLINK, RTM_NEWLINK, Link, by_name_request, from_message
from kernel.netns import Netns
from kernel.rtnl import NLM_F_ACK, NLM_F_DUMP, Request, Socket
from kernel.wire import Attributes, DecodedMessage, attribute_specs

_PERMANENT = attribute_specs(DeviceMessage, IFLA_PERM_ADDRESS=b"")


class Device(NamedTuple):
    """A link and its permanent MAC address, "" for virtual links and before Linux 5.6."""

    link: Link
    permanent_mac: str


def get(socket: Socket, name: str) -> Device | None:
    """Returns the device called `name`, None without one; raises KernelError."""
    (message,) = socket.get(by_name_request(name)._replace(kind=DeviceMessage))
    return message and _device(message)


def list_all(socket: Socket) -> list[Device]:
    """Returns all links of the namespace; raises KernelError."""
    request = Request("list the interfaces", DeviceMessage, RTM_GETLINK, NLM_F_DUMP)
    return [_device(message) for message in socket.dump(request)]


def move_request(
    link: Link, namespace: Netns, where: str, *, name: str = "", alias: str | None = None, up: bool = False
) -> Request:
    """Returns a request that moves a link to `namespace`, described as `where`, and there sets the given attributes.

    The kernel changes name, alias and state after the move, so that the namespace of the socket sees no rename. If the
    link's present name is used in `namespace`, the link arrives with `name`; without `name` that fails with EEXIST. If
    `name` is used, the link has been moved when the request fails.
    """
    values = {"index": link.index, "flags": IFF_UP * up, "change": IFF_UP * up}
    attributes: Attributes = [("IFLA_NET_NS_FD", namespace.fileno())]
    if name:
        attributes.append(("IFLA_IFNAME", name))
    if alias is not None:
        attributes.append(("IFLA_IFALIAS", alias))
    as_name = f' as "{name}"' if name else ""
    description = f'move "{link.name}" to {where}{as_name}'
    return Request(description, DeviceMessage, RTM_NEWLINK, NLM_F_ACK, values, attributes)


def rename_request(link: Link, name: str, alias: str) -> Request:
    """Returns a request that sets name and alias of a link that is down; EEXIST, if the name is used, is no failure."""
    attributes: Attributes = [("IFLA_IFNAME", name), ("IFLA_IFALIAS", alias)]
    description = f'set "{link.name}" to name "{name}"'
    return Request(
        description, DeviceMessage, RTM_NEWLINK, NLM_F_ACK, {"index": link.index}, attributes, (errno.EEXIST,)
    )


def _device(message: DecodedMessage) -> Device:
    (permanent,) = message.get_attributes(_PERMANENT)
    return Device(from_message(message), format_mac(permanent) if any(permanent) else "")
