"""Counters of the kernel: bytes and packets of interfaces, packets that limits dropped, tracked connections.

This module only reads.
"""

from __future__ import annotations

import socket as stdlib_socket
import struct
from collections.abc import Mapping
from ipaddress import ip_address

from cni.address import Address
from kernel import sysctl
from kernel.codec_netfilter import ConntrackMessage
from kernel.codec_traffic import QdiscMessage
from kernel.netfilter import nft
from kernel.rtnl import NLM_F_DUMP, Request, Socket
from kernel.traffic import RTM_GETQDISC, qdisc_from_answer
from kernel.wire import attribute_specs
from process.values import dataclass

_DEV = "/proc/thread-self/net/dev"  # of the network namespace that this thread has entered
_ROOT = 0xFFFFFFFF  # TC_H_ROOT
_STATISTICS = struct.Struct("=QII")  # the start of struct tc_stats: bytes, packets, drops
_STATISTICS_SPECS = attribute_specs(QdiscMessage, TCA_STATS=b"")
_GET_CONNTRACK = (1 << 8) | 1  # NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET
_HEADER, _GENERIC, _ATTRIBUTE = 16, 4, struct.Struct("=HH")  # struct nlmsghdr, struct nfgenmsg, struct nlattr
_ADDRESS_BYTES = {int(stdlib_socket.AF_INET): 4, int(stdlib_socket.AF_INET6): 16}


@dataclass(frozen=True)
class Traffic:
    """The bytes and packets that an interface has received and sent since it was created."""

    received_bytes: int
    received_packets: int
    sent_bytes: int
    sent_packets: int


@dataclass(frozen=True)
class Conntrack:
    """The number of tracked connections and its limit, and the number by address; {} if they are too many to list."""

    count: int
    limit: int
    by_address: Mapping[Address, int]


def read_traffic() -> dict[str, Traffic]:
    """Returns the counters of all interfaces in the current namespace by name; raises OSError."""
    with open(_DEV, encoding="utf-8", errors="surrogateescape") as file:
        lines = file.read().splitlines()[2:]
    traffic = {}
    for line in lines:
        name, _, rest = line.rpartition(":")
        numbers = [int(word) for word in rest.split()]
        traffic[name.strip()] = Traffic(numbers[0], numbers[1], numbers[8], numbers[9])
    return traffic


def list_drops(socket: Socket) -> dict[int, int]:
    """Returns the packets that each limit of podwire and the reference plugins dropped, by ifindex."""
    drops = {}
    for message in socket.dump(Request("list the qdiscs", QdiscMessage, RTM_GETQDISC, NLM_F_DUMP)):
        root = qdisc_from_answer(message)
        (statistics,) = message.get_attributes(_STATISTICS_SPECS)
        if root and root.is_shaper and message["parent"] == _ROOT and len(statistics) >= _STATISTICS.size:
            drops[message["index"]] = _STATISTICS.unpack_from(statistics)[2]
    return drops


def read_conntrack(most: int) -> Conntrack | None:
    """Returns the tracked connections of the current namespace, None without connection tracking.

    A connection counts for its first packet's source, and for the source of the replies: the pod behind a published
    port. Above `most` connections only the numbers are read.
    """
    try:
        count, limit = (int(sysctl.get(f"netfilter/nf_conntrack_{name}")) for name in ("count", "max"))
    except OSError:
        return None
    return Conntrack(count, limit, _count_by_address() if count <= most else {})


def _count_by_address() -> dict[Address, int]:
    counts: dict[bytes, int] = {}

    def count(body: bytes) -> bool:
        for address in _sources(body[_HEADER:]):
            counts[address] = counts.get(address, 0) + 1
        return False  # decoding a message takes ten times as long

    request = Request("list tracked connections", ConntrackMessage, _GET_CONNTRACK, NLM_F_DUMP, body_filter=count)
    with nft.open_socket() as socket:
        socket.dump(request)
    return {ip_address(address): number for address, number in counts.items()}


def _sources(body: bytes) -> set[bytes]:
    """Returns the sources of both directions, from a message that begins with CTA_TUPLE_ORIG and CTA_TUPLE_REPLY.

    In each, CTA_TUPLE_IP is first, and in that the source: the kernel has always written them in this order.
    """
    size = _ADDRESS_BYTES.get(body[0]) if body else None
    if size is None:
        return set()
    start, addresses = _GENERIC, set()
    for _ in range(2):
        if len(body) < start + 3 * _ATTRIBUTE.size + size:
            break
        at = start + 3 * _ATTRIBUTE.size
        addresses.add(body[at : at + size])
        start += (_ATTRIBUTE.unpack_from(body, start)[0] + 3) & ~3
    return addresses
