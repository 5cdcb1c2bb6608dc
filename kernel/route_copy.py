"""Routes of all tables with everything that defines them: listing, copying to another table, deleting.

*_request functions return a Request and do no I/O. A route with several next hops is one route here, and a copy keeps
metrics, preference and encapsulation. Expiry times are not copied: the kernel reports them in another form.
"""

from __future__ import annotations

import errno
import socket as stdlib_socket
import sys
from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from cni.address import Address, Network, format_ip
from kernel import route
from kernel.codec_routing import RouteCopyMessage
from kernel.link import Link
from kernel.route import RTM_DELROUTE, RTM_GETROUTE, RTM_NEWROUTE, SCOPE_LINK
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, Request
from kernel.wire import DecodedMessage

_NLM_F_APPEND = 0x800  # linux/netlink.h: beside routes to the same destination, in the order of the requests
UNICAST = 1  # RTN_UNICAST (linux/rtnetlink.h)
_PROTOCOL_BOOT, _TABLE_LOCAL = 3, 255
_IPV6_METRIC = 1024  # IP6_RT_PRIO_USER, which the kernel sets in a new route without metric
_FAMILIES = {4: int(stdlib_socket.AF_INET), 6: int(stdlib_socket.AF_INET6)}
_ONLINK = 4  # RTNH_F_ONLINK
_HEADER_BYTES, _TABLE_OFFSET = 16, 20  # of struct nlmsghdr; of rtm_table in a message
_METRIC, _RTAX_CWND = Struct("=HHI"), 7  # one of RTA_METRICS: struct rtattr and a number (linux/rtnetlink.h)
_HOP_BYTES = 8  # struct rtnexthop: length (2 bytes), flags, hops, ifindex
# A deletion names the next hop, but not the metrics and preference: the kernel compares all that it is given.
_IDENTIFYING = ("RTA_DST", "RTA_OIF", "RTA_GATEWAY", "RTA_PRIORITY", "RTA_PREFSRC", "RTA_MULTIPATH", "RTA_VIA")


class TableRoute(NamedTuple):
    """A route of any table: destination, metric, type (RTN_*), the ifindexes and gateways of its next hops.

    `source` is the preferred source address. `values` and `attributes` are those of its message, without the table.
    """

    dst: Network
    table: int
    metric: int
    type: int
    indexes: tuple[int, ...]
    gateways: tuple[Address | None, ...]
    source: Address | None
    values: Mapping[str, int]
    attributes: tuple[tuple[str, object], ...]

    @property
    def key(self) -> tuple[object, ...]:
        """The parts that make two routes of one table the same: destination, metric and next hops."""
        return self.dst, self.metric, self.indexes, self.gateways

    @property
    def identity(self) -> tuple[object, ...]:
        """The parts in which two routes of the kernel differ: `key`, table and type."""
        return *self.key, self.table, self.type

    @property
    def congestion_window(self) -> int:
        """The clamp of the congestion window (RTAX_CWND), 0 without one; the kernel ignores it unless it is locked."""
        metrics = dict(self.attributes).get("RTA_METRICS", b"")
        assert isinstance(metrics, bytes)
        return _find_metric(metrics, _RTAX_CWND)

    @property
    def is_default(self) -> bool:
        """Whether it is a default route."""
        return not self.dst.prefixlen

    def is_through(self, link: Link) -> bool:
        """Returns whether all its next hops are on `link`."""
        return set(self.indexes) == {link.index}

    def describe(self) -> str:
        """Returns destination and gateways, for descriptions."""
        via = "".join(f" via {format_ip(gateway)}" for gateway in self.gateways if gateway)
        return f"{'default' if self.is_default else self.dst}{via}"


def list_request() -> Request:
    """Returns a request for the routes of both IP versions in all tables but "local"; see `from_message`."""
    return Request("list the routes", RouteCopyMessage, RTM_GETROUTE, NLM_F_DUMP, body_filter=_is_listed)


def from_message(message: DecodedMessage) -> TableRoute:
    """Returns the route in an RTM_NEWROUTE message; raises AnswerError."""
    hops = list(route.hops_of(message))
    source = message.get_attr("RTA_PREFSRC")
    attributes = dict(message["attrs"])
    attributes.pop("RTA_TABLE", None)
    if "RTA_MULTIPATH" in attributes:
        attributes["RTA_MULTIPATH"] = _without_flags(attributes["RTA_MULTIPATH"])
    values = {name: message[name] for name in ("family", "dst_len", "tos", "proto", "scope", "type")}
    values["flags"] = message["flags"] & _ONLINK  # the others are the state of the interface, which a request must lack
    return TableRoute(
        route.destination_of(message).network,
        message.get_attr("RTA_TABLE") or message["table"],
        message.get_attr("RTA_PRIORITY") or 0,
        message["type"],
        tuple(index for index, _ in hops),
        tuple(gateway for _, gateway in hops),
        route.address_of(source) if source else None,
        values,
        tuple(attributes.items()),
    )


def build_route(
    link: Link,
    dst: Network,
    *,
    gateway: Address | None = None,
    source: Address | None = None,
    metric: int = 0,
    congestion_window: int = 0,
) -> TableRoute:
    """Returns a route through `link` that is not in the kernel yet; an IPv4 route without gateway has scope link."""
    metric = metric or (_IPV6_METRIC if dst.version == 6 else 0)
    values = {
        "family": _FAMILIES[dst.version],
        "dst_len": dst.prefixlen,
        "proto": _PROTOCOL_BOOT,
        "scope": SCOPE_LINK if dst.version == 4 and not gateway else 0,
        "type": UNICAST,
    }
    attributes: list[tuple[str, object]] = [("RTA_OIF", link.index)]
    if dst.prefixlen:
        attributes.append(("RTA_DST", dst.network_address.packed))
    if gateway:
        attributes.append(("RTA_GATEWAY", gateway.packed))
    if source:
        attributes.append(("RTA_PREFSRC", source.packed))
    if metric:
        attributes.append(("RTA_PRIORITY", metric))
    if congestion_window:
        attributes.append(("RTA_METRICS", _METRIC.pack(_METRIC.size, _RTAX_CWND, congestion_window)))
    return TableRoute(dst, 0, metric, UNICAST, (link.index,), (gateway,), source, values, tuple(attributes))


def add_request(item: TableRoute, table: int, *, description: str = "", replace: bool = False) -> Request:
    """Returns a request that adds `item` to `table`; an equal route there is success.

    With `replace` it takes the place of a route to the same destination with the same metric.
    """
    flags = NLM_F_ACK | NLM_F_CREATE | (NLM_F_REPLACE if replace else _NLM_F_APPEND)
    text = description or f"add route {item.describe()} to table {table}"
    return _request(item, table, text, RTM_NEWROUTE, flags, item.attributes, errno.EEXIST)


def delete_request(item: TableRoute, table: int) -> Request:
    """Returns a request that deletes `item` from `table`; a missing route is success."""
    attributes = tuple((name, value) for name, value in item.attributes if name in _IDENTIFYING)
    text = f"delete route {item.describe()} from table {table}"
    return _request(item, table, text, RTM_DELROUTE, NLM_F_ACK, attributes, errno.ESRCH)


def _request(
    item: TableRoute,
    table: int,
    description: str,
    number: int,
    flags: int,
    attributes: tuple[tuple[str, object], ...],
    ignored: int,
) -> Request:
    values = {**item.values, "table": table if table < 256 else 0}
    return Request(
        description, RouteCopyMessage, number, flags, values, [*attributes, ("RTA_TABLE", table)], (ignored,)
    )


def _is_listed(body: bytes) -> bool:
    """Returns whether an answer is an IPv4 or IPv6 route outside of table "local"; others are of multicast routing."""
    if len(body) <= _TABLE_OFFSET:
        return True  # decoding refuses it
    is_ip = body[_HEADER_BYTES] in (stdlib_socket.AF_INET, stdlib_socket.AF_INET6)
    return is_ip and body[_TABLE_OFFSET] != _TABLE_LOCAL


def _find_metric(metrics: bytes, number: int) -> int:
    """Returns one of the numbers in RTA_METRICS, 0 without it."""
    offset = 0
    while offset + _METRIC.size <= len(metrics):
        length, kind, value = _METRIC.unpack_from(metrics, offset)
        if kind == number:
            return int(value)
        offset += max(_METRIC.size, (length + 3) & ~3)
    return 0


def _without_flags(hops: bytes) -> bytes:
    """Returns the next hops of RTA_MULTIPATH without the flags of their state, which a request must not have."""
    result, offset = bytearray(hops), 0
    while offset + _HOP_BYTES <= len(result):
        result[offset + 2] &= _ONLINK
        length = int.from_bytes(result[offset : offset + 2], sys.byteorder)
        offset += max(_HOP_BYTES, (length + 3) & ~3)
    return bytes(result)
