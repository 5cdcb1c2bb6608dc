"""Connection tracking: lists and deletes the kernel's entries of UDP flows.

An entry stores the NAT decision of a flow's first packet. As long as it exists the kernel does not apply the NAT rules
again; an entry of UDP exists as long as packets are sent.

This module deletes an entry by its whole original direction and its number, so that it deletes no other flow's entry,
nor a later one of the same flow. (A deletion without a direction would empty the whole table.)
"""

from __future__ import annotations

import errno
import socket as stdlib_socket
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from ipaddress import ip_address

from cni.address import Address
from kernel.codec_netfilter import ConntrackMessage
from kernel.rtnl import NLM_F_ACK, NLM_F_DUMP, Request, Socket
from kernel.wire import AnswerError, Attributes, DecodedMessage
from process.values import dataclass

_FAMILIES = {4: int(stdlib_socket.AF_INET), 6: int(stdlib_socket.AF_INET6)}
# linux/netfilter/nfnetlink.h, linux/netfilter/nfnetlink_conntrack.h
_SUBSYSTEM = 1  # NFNL_SUBSYS_CTNETLINK
_GET, _DELETE = (_SUBSYSTEM << 8 | number for number in (1, 2))
_PROTO_NUM, _PROTO_DST_PORT = 1 << 3, 1 << 5  # CTA_FILTER_F_*: net/netfilter/nf_internals.h
_PORT = struct.Struct("=HHH")  # an attribute's length and type, and a port
_PORT_TYPE = 3  # CTA_PROTO_DST_PORT
_ADDRESS = struct.Struct("=HH")  # an attribute's length and type, before an address
_SOURCE_TYPES, _DESTINATION_TYPES = {4: 1, 6: 3}, {4: 2, 6: 4}  # CTA_IP_*_SRC, CTA_IP_*_DST
_DELETIONS_MAX = 100  # in one send: the kernel answers each, and 160 answers fill a socket's buffer


@dataclass(frozen=True)
class TrackedFlow:
    """A UDP flow: its original direction as the kernel keeps it, the number of its entry, its zone or None.

    `reply_source`: the address and port to which its packets are forwarded, None if the kernel does not report it.
    `reply_destination`: their source address when they leave.
    """

    source: Address
    source_port: int
    destination: Address
    port: int
    number: int
    zone: int | None = None
    direction_zone: int | None = None
    reply_source: tuple[Address, int] | None = None
    reply_destination: Address | None = None


def list_udp_flows(socket: Socket, version: int, ports: Collection[int]) -> list[TrackedFlow]:
    """Lists the UDP flows of IP `version` whose first packet was sent to one of `ports`; raises KernelError.

    `socket` is a netfilter socket. The kernel reads its whole table: 9 ms for 262,144 buckets, the default with 16 GiB.
    Since Linux 5.8 it sends only flows of UDP, and with a single port only flows to it. (It refuses a filter for a port
    and an IP version.) Older kernels ignore the filter and may send thousands of flows, so this function searches a
    message's bytes for the ports before it decodes the message.
    """
    flags, filtered = _PROTO_NUM, [("CTA_PROTO_NUM", int(stdlib_socket.IPPROTO_UDP))]
    if len(ports) == 1:
        flags |= _PROTO_DST_PORT
        filtered += [("CTA_PROTO_DST_PORT", port) for port in ports]
    marks = [_PORT.pack(_PORT.size, _PORT_TYPE, stdlib_socket.htons(port)) for port in ports]
    request = _list_request(version, flags, filtered, lambda message: any(mark in message for mark in marks))
    entries = filter(None, map(_parse_flow, socket.dump(request)))
    return [entry for entry in entries if entry.port in ports and entry.destination.version == version]


def list_flows_from_others(
    socket: Socket, version: int, sources: set[Address], known: set[Address]
) -> list[TrackedFlow]:
    """Lists the UDP flows of `sources` that leave with an address that is not `known`; raises KernelError.

    Only messages without such an address as a destination are decoded: the replies of most flows go to one.
    """
    starts = [_address(_SOURCE_TYPES, one) for one in sources if one.version == version]
    ends = [_address(_DESTINATION_TYPES, one) for one in known | sources if one.version == version]

    def is_foreign(message: bytes) -> bool:
        return not any(one in message for one in ends) and any(one in message for one in starts)

    request = _list_request(version, _PROTO_NUM, [("CTA_PROTO_NUM", int(stdlib_socket.IPPROTO_UDP))], is_foreign)
    entries = filter(None, map(_parse_flow, socket.dump(request)))
    return [one for one in entries if one.source in sources and one.reply_destination not in (None, one.source)]


def _list_request(
    version: int, flags: int, protocol: list[tuple[str, int]], body_filter: Callable[[bytes], bool]
) -> Request:
    attributes: Attributes = [
        ("CTA_TUPLE_ORIG", {"attrs": [("CTA_TUPLE_PROTO", {"attrs": protocol})]}),
        ("CTA_FILTER", {"attrs": [("CTA_FILTER_ORIG_FLAGS", flags)]}),
    ]
    values = {"family": _FAMILIES[version]}
    return Request(
        "list the tracked UDP flows", ConntrackMessage, _GET, NLM_F_DUMP, values, attributes, body_filter=body_filter
    )


def _address(types: Mapping[int, int], address: Address) -> bytes:
    """Returns the bytes of an address's attribute."""
    return _ADDRESS.pack(_ADDRESS.size + len(address.packed), types[address.version]) + address.packed


def delete_flows(socket: Socket, entries: Iterable[TrackedFlow]) -> None:
    """Deletes the entries of flows; a missing entry is success. Raises KernelError."""
    requests = [_delete_request(entry) for entry in entries]
    for start in range(0, len(requests), _DELETIONS_MAX):
        socket.change(*requests[start : start + _DELETIONS_MAX])


def _parse_flow(message: DecodedMessage) -> TrackedFlow | None:
    """Returns the flow in a message, None if it is not UDP."""
    direction = message.need_attr("CTA_TUPLE_ORIG")
    addresses, ports = direction.need_attr("CTA_TUPLE_IP"), direction.need_attr("CTA_TUPLE_PROTO")
    if ports.get_attr("CTA_PROTO_NUM") != stdlib_socket.IPPROTO_UDP:
        return None
    try:
        source, destination = (
            ip_address(addresses.get_attr(f"CTA_IP_V4_{end}") or addresses.need_attr(f"CTA_IP_V6_{end}"))
            for end in ("SRC", "DST")
        )
    except ValueError as error:
        raise AnswerError(str(error)) from error
    return TrackedFlow(
        source,
        ports.need_attr("CTA_PROTO_SRC_PORT"),
        destination,
        ports.need_attr("CTA_PROTO_DST_PORT"),
        message.need_attr("CTA_ID"),
        message.get_attr("CTA_ZONE"),
        direction.get_attr("CTA_TUPLE_ZONE"),
        *_reply(message.get_attr("CTA_TUPLE_REPLY")),
    )


def _reply(direction: DecodedMessage | None) -> tuple[tuple[Address, int] | None, Address | None]:
    """Returns the source of the replies with its port, and their destination; None if the message lacks them."""
    if direction is None:
        return None, None
    try:
        addresses, ports = direction.need_attr("CTA_TUPLE_IP"), direction.need_attr("CTA_TUPLE_PROTO")
        source = addresses.get_attr("CTA_IP_V4_SRC") or addresses.need_attr("CTA_IP_V6_SRC")
        destination = addresses.get_attr("CTA_IP_V4_DST") or addresses.get_attr("CTA_IP_V6_DST")
        port = ports.need_attr("CTA_PROTO_SRC_PORT")
        return (ip_address(source), port), ip_address(destination) if destination else None
    except (ValueError, AnswerError):
        return None, None


def _delete_request(entry: TrackedFlow) -> Request:
    version = entry.source.version
    addresses = [
        (f"CTA_IP_V{version}_SRC", entry.source.packed),
        (f"CTA_IP_V{version}_DST", entry.destination.packed),
    ]
    ports = [
        ("CTA_PROTO_NUM", stdlib_socket.IPPROTO_UDP),
        ("CTA_PROTO_SRC_PORT", entry.source_port),
        ("CTA_PROTO_DST_PORT", entry.port),
    ]
    direction: Attributes = [("CTA_TUPLE_IP", {"attrs": addresses}), ("CTA_TUPLE_PROTO", {"attrs": ports})]
    if entry.direction_zone is not None:
        direction.append(("CTA_TUPLE_ZONE", entry.direction_zone))
    attributes: Attributes = [("CTA_TUPLE_ORIG", {"attrs": direction}), ("CTA_ID", entry.number)]
    if entry.zone is not None:
        attributes.append(("CTA_ZONE", entry.zone))
    description = f"delete the tracked UDP flow from {entry.source} to {entry.destination} port {entry.port}"
    values = {"family": _FAMILIES[version]}
    return Request(description, ConntrackMessage, _DELETE, NLM_F_ACK, values, attributes, (errno.ENOENT,))
