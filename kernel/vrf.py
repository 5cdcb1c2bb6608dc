"""VRF devices (virtual routing and forwarding) and their routing tables.

A port of a VRF device uses the device's routing table instead of the table "main". The kernel adds the l3mdev rules
with the first VRF device of a namespace, and never again: after `ip rule flush` no VRF works until they are added
(kernel.rule).

*_request functions return a Request and do no I/O; functions that take a Socket send requests through it.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from kernel.codec import LinkMessage
from kernel.codec_vrf import VrfMessage
from kernel.errors import KernelError
from kernel.link import IFF_UP, RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK, Link, by_name_request
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Request, Socket
from kernel.wire import Attributes, DecodedMessage

KIND = "vrf"
_SKIP_STATISTICS = 8  # RTEXT_FILTER_SKIP_STATS


class Vrf(NamedTuple):
    """A link that may be a VRF device: `kind` is "vrf" then, and `table` its routing table, else 0."""

    index: int  # type: ignore[assignment]  # a field, not tuple.index
    name: str
    kind: str
    table: int
    alias: str
    is_up: bool


def from_message(message: DecodedMessage) -> Vrf:
    """Returns the link in the answer to get_request()."""
    info = message.get_attr("IFLA_LINKINFO")
    kind = (info and info.get_attr("IFLA_INFO_KIND")) or ""
    data = info.get_attr("IFLA_INFO_DATA") if info and kind == KIND else None
    table = (data and data.get_attr("IFLA_VRF_TABLE")) or 0
    alias, name = message.get_attr("IFLA_IFALIAS") or "", message.get_attr("IFLA_IFNAME") or ""
    return Vrf(message["index"], name, kind, table, alias, bool(message["flags"] & IFF_UP))


def get_request(name: str) -> Request:
    """Returns a request for the link called `name`, for from_message(); the answer is None without such a link."""
    return by_name_request(name)._replace(kind=VrfMessage)


def list_all(socket: Socket) -> list[Vrf]:
    """Returns the VRF devices of the namespace; raises KernelError."""
    attributes: Attributes = [
        ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", KIND)]}),
        ("IFLA_EXT_MASK", _SKIP_STATISTICS),
    ]
    request = Request("list the VRF devices", VrfMessage, RTM_GETLINK, NLM_F_DUMP, {}, attributes)
    links = map(from_message, socket.dump(request, merge_key=lambda message: message["index"]))
    return [item for item in links if item.kind == KIND]  # the kernel lists all links for an unknown kind


def create_request(name: str, table: int) -> Request:
    """Returns a request that creates a VRF device and brings it up; it fails with EEXIST if the name is used."""
    data = {"attrs": [("IFLA_VRF_TABLE", table)]}
    info = {"attrs": [("IFLA_INFO_KIND", KIND), ("IFLA_INFO_DATA", data)]}
    attributes: Attributes = [("IFLA_IFNAME", name), ("IFLA_LINKINFO", info)]
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    description = f'create VRF "{name}" with table {table}'
    return Request(description, VrfMessage, RTM_NEWLINK, flags, {"flags": IFF_UP, "change": IFF_UP}, attributes)


def set_alias_request(name: str, alias: str) -> Request:
    """Returns a request that sets the alias of the link called `name`, whose ifindex is not known yet."""
    attributes: Attributes = [("IFLA_IFNAME", name), ("IFLA_IFALIAS", alias)]
    return Request(f'set the alias of "{name}"', VrfMessage, RTM_NEWLINK, NLM_F_ACK, {}, attributes)


def set_up_request(vrf: Vrf) -> Request:
    """Returns a request that brings a VRF device up."""
    values = {"index": vrf.index, "flags": IFF_UP, "change": IFF_UP}
    return Request(f'set "{vrf.name}" up', VrfMessage, RTM_NEWLINK, NLM_F_ACK, values)


def delete_request(name: str) -> Request:
    """Returns a request that deletes the link called `name`, which releases its ports; a missing one is success."""
    return Request(
        f'delete VRF "{name}"', VrfMessage, RTM_DELLINK, NLM_F_ACK, {}, [("IFLA_IFNAME", name)], (errno.ENODEV,)
    )


def set_master_request(link: Link, master: int, name: str) -> Request:
    """Returns a request that makes a link a port of the device with ifindex `master` and that name; 0 releases it.

    The kernel sets a link that is up down and up again: that removes its routes, and IPv6 addresses.
    """
    description = f'make "{link.name}" a port of VRF "{name}"' if master else f'release "{link.name}" from its VRF'
    attributes: Attributes = [("IFLA_MASTER", master)]
    return Request(description, LinkMessage, RTM_NEWLINK, NLM_F_ACK, {"index": link.index}, attributes)


def probe_request(name: str) -> Request:
    """Returns the request that probe() sends: it always fails, since "/" is not a name; errors name `name`."""
    return create_request("/", 1)._replace(description=f'create VRF "{name}"')


def probe(socket: Socket, request: Request) -> None:
    """Raises KernelError (EPERM, EOPNOTSUPP) if no VRF device can be created; `request` is a probe_request()."""
    try:
        socket.send(request)
    except KernelError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP):
            raise
