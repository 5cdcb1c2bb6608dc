"""The policy rules and the routes of a namespace, of every type and table, and the kernel's own choice for a packet.

podwire.predictions.routing chooses among the lists as the kernel does.
"""

from __future__ import annotations

import errno
import socket as stdlib_socket
import struct
from collections.abc import Mapping
from ipaddress import ip_network
from typing import NamedTuple

from cni.address import Address, Network
from kernel import route
from kernel.codec_tracing import LookupMessage, PolicyRuleMessage
from kernel.errors import KernelError
from kernel.netfilter.packet import Packet
from kernel.rtnl import NLM_F_DUMP, Request, Socket
from kernel.rule import RTM_GETRULE
from kernel.wire import Attributes, DecodedMessage
from process.values import dataclass

UNICAST, LOCAL, THROW = "unicast", "local", "throw"
REFUSALS = BLACKHOLE, UNREACHABLE, PROHIBIT = "blackhole", "unreachable", "prohibit"
TO_TABLE, GOTO = "lookup", "goto"
BY_KERNEL = 2  # RTPROT_KERNEL: the route of an address
BY_ADVERTISEMENT = 9  # RTPROT_RA: the kernel learned it from a router
TABLE_LOCAL = 255
_TYPES = {
    1: UNICAST, 2: LOCAL, 3: "broadcast", 4: "anycast", 5: "multicast", 6: BLACKHOLE, 7: UNREACHABLE, 8: PROHIBIT,
    9: THROW,
}  # RTN_* (linux/rtnetlink.h)  # fmt: skip
_ACTIONS = {1: TO_TABLE, 2: GOTO, 3: "nop", 6: BLACKHOLE, 7: UNREACHABLE, 8: PROHIBIT}  # FR_ACT_* (linux/fib_rules.h)
_TABLES = {TABLE_LOCAL: "local", route.TABLE_MAIN: "main", 253: "default"}
_FAMILIES = {4: int(stdlib_socket.AF_INET), 6: int(stdlib_socket.AF_INET6)}
_INVERT, _UNSET = 2, 0xFFFFFFFF  # FIB_RULE_INVERT
_RTM_F_CLONED, _RTM_F_FIB_MATCH, _RTNH_F_DEAD = 0x200, 0x2000, 0x1
_RANGE = struct.Struct("=II")
_PORTS = struct.Struct("=HH")
_NOT_READ = frozenset((12, 19, 25, 26))  # FRA_TUN_ID, FRA_L3MDEV, FRA_DSCP, FRA_FLOWLABEL
_ALL_BITS = 0xFFFF  # the mask of a port as a whole
_NO_ROUTE = (
    errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL, errno.EACCES, errno.EXDEV, errno.ESRCH, errno.ENODEV,
    errno.ENOENT, errno.EAGAIN,
)  # fmt: skip


@dataclass(frozen=True)
class FibRoute:
    """A route of any type; `hops` are (ifindex, gateway), none for a route that refuses.

    `nexthop` is the ID of its nexthop object, 0 without one: it, and not the route, then has the type. `protocol` is
    the program that added the route (RTPROT_*). `source`: the network whose packets use the
    route (IPv6), None for any.
    """

    kind: str
    destination: Network
    table: int = route.TABLE_MAIN
    metric: int = 0
    hops: tuple[tuple[int, Address | None], ...] = ()
    protocol: int = 0
    mtu: int = 0
    nexthop: int = 0
    source: Network | None = None

    @property
    def ifindex(self) -> int:
        """The ifindex of the first next hop, 0 without one."""
        return self.hops[0][0] if self.hops else 0

    @property
    def gateway(self) -> Address | None:
        """The gateway of the first next hop."""
        return self.hops[0][1] if self.hops else None

    def describe(self, names: Mapping[int, str]) -> str:
        """Returns the route as `ip route` prints it, and takes it for a deletion; `names` are those of interfaces."""
        words = [] if self.kind == UNICAST or self.nexthop else [self.kind]
        words.append(_text(self.destination) if self.destination.prefixlen else "default")
        words += [f"from {_text(self.source)}"] if self.source else []
        if self.nexthop:
            words.append(f"nhid {self.nexthop}")
        for index, gateway in () if self.nexthop else self.hops:
            words += ["nexthop"] * (len(self.hops) > 1)
            words += [f"via {gateway}"] * bool(gateway) + [f"dev {names.get(index, index)}"] * bool(index)
        words += [f"table {table_name(self.table)}"] * (self.table != route.TABLE_MAIN)
        words += [f"metric {self.metric}"] * bool(self.metric)
        return " ".join(words)


@dataclass(frozen=True)
class FibRule:
    """A policy rule (`ip rule`) with its conditions; `action` is "lookup", "goto", "nop", or the type of a refusal.

    `is_undecided`: it has a condition that is not read here.
    """

    version: int
    priority: int
    action: str
    table: int = 0
    source: Network | None = None
    destination: Network | None = None
    iif: str = ""
    oif: str = ""
    mark: int = 0
    mask: int = 0
    protocol: int = 0
    ports: tuple[int, int] | None = None
    source_ports: tuple[int, int] | None = None
    is_inverted: bool = False
    is_undecided: bool = False
    goto: int = 0
    suppress_prefix: int = -1
    tos: int = 0
    uids: tuple[int, int] | None = None

    @property
    def words(self) -> str:
        """The rule as `ip rule` takes it for a deletion."""
        parts = [f"priority {self.priority}", "not" if self.is_inverted else ""]
        parts += [
            f"from {_text(self.source)}" if self.source else "from all",
            f"to {_text(self.destination)}" if self.destination else "",
        ]
        parts.append(f"tos {self.tos:#x}" if self.tos else "")
        parts.append(f"fwmark {self.mark:#x}/{self.mask:#x}" if self.mask else "")
        parts += [f"iif {self.iif}" if self.iif else "", f"oif {self.oif}" if self.oif else ""]
        parts.append(f"uidrange {self.uids[0]}-{self.uids[1]}" if self.uids else "")
        parts.append(f"ipproto {self.protocol}" if self.protocol else "")
        for word, ports in (("sport", self.source_ports), ("dport", self.ports)):
            if ports:
                parts.append(f"{word} {ports[0]}-{ports[1]}" if ports[0] != ports[1] else f"{word} {ports[0]}")
        parts.append(f"lookup {table_name(self.table)}" if self.action == TO_TABLE else self.action)
        parts.append(str(self.goto) if self.goto else "")
        parts.append(f"suppress_prefixlength {self.suppress_prefix}" if self.suppress_prefix >= 0 else "")
        return " ".join(part for part in parts if part)


class RouteAnswer(NamedTuple):
    """The kernel's choice for a packet: its route, or the errno of a packet without a usable one."""

    route: FibRoute | None
    error: int = 0


def list_rules(socket: Socket) -> list[FibRule]:
    """Returns the policy rules of both IP versions, in the kernel's order; raises KernelError."""
    request = Request("list the rules", PolicyRuleMessage, RTM_GETRULE, NLM_F_DUMP, {})
    ips = set(_FAMILIES.values())
    rules = [_rule(message) for message in socket.dump(request) if message["family"] in ips]
    return sorted(rules, key=lambda rule: rule.priority)


def list_routes(socket: Socket) -> list[FibRoute]:
    """Returns the routes of both IP versions, of all tables, without those of dead links; raises KernelError."""
    routes: list[FibRoute] = []
    for family in _FAMILIES.values():
        request = Request(
            "list the routes", LookupMessage, route.RTM_GETROUTE, NLM_F_DUMP, {"family": family},
            ignore=(errno.EAFNOSUPPORT, errno.EOPNOTSUPP),
        )  # fmt: skip
        messages = socket.dump(request)
        routes += [_route(one) for one in messages if not one["flags"] & (_RTNH_F_DEAD | _RTM_F_CLONED)]
    return routes


def look_up(socket: Socket, packet: Packet, ifindex: int = 0) -> RouteAnswer:
    """Asks the kernel for the route of a packet, which arrives at `ifindex` (0: a local one); raises KernelError.

    The errors of a packet without a way are in the answer: ENETUNREACH, EHOSTUNREACH (no forwarding, or a route of
    type unreachable), EACCES (prohibit), EINVAL (blackhole, or a source that this host does not accept).
    """
    message, error = _ask(socket, packet, _RTM_F_FIB_MATCH, ifindex)
    return RouteAnswer(_route(message) if message else None, error)


def source_for(socket: Socket, destination: Address) -> Address | None:
    """Returns the source address of the host's packets to a destination, None without a route; raises KernelError."""
    message, _ = _ask(socket, packet_to(destination), 0)
    packed = message.get_attr("RTA_PREFSRC") if message else None
    return route.address_of(packed) if packed else None


def packet_to(
    destination: Address,
    source: Address | None = None,
    iif: str = "",
    mark: int = 0,
    protocol: int = stdlib_socket.IPPROTO_TCP,
    port: int = 0,
    source_port: int = 0,
) -> Packet:
    """Returns a packet to route; without a source, one of a program that has not bound an address."""
    unbound = ip_network("0.0.0.0/0" if destination.version == 4 else "::/0").network_address
    return Packet(
        destination.version, source or unbound, destination, protocol, source_port, port, iif=iif, mark=mark
    )  # fmt: skip


def table_name(number: int) -> str:
    """Returns the name of a routing table, or its number."""
    return _TABLES.get(number, str(number))


def _ask(socket: Socket, packet: Packet, flags: int, ifindex: int = 0) -> tuple[DecodedMessage | None, int]:
    length = packet.destination.max_prefixlen
    values = {"family": _FAMILIES[packet.version], "dst_len": length, "flags": flags}
    attributes: Attributes = [("RTA_DST", packet.destination.packed)]
    if not packet.source.is_unspecified:
        values["src_len"] = length
        attributes.append(("RTA_SRC", packet.source.packed))
    for name, number in (("RTA_IIF", ifindex), ("RTA_MARK", packet.mark)):
        attributes += [(name, number)] if number else []
    if packet.protocol in (stdlib_socket.IPPROTO_TCP, stdlib_socket.IPPROTO_UDP):
        attributes += [("RTA_IP_PROTO", packet.protocol)]
        attributes += [("RTA_SPORT", packet.source_port or 0), ("RTA_DPORT", packet.port or 0)]
    description = f"look up the route to {packet.destination}"
    try:
        (message,) = socket.get(Request(description, LookupMessage, route.RTM_GETROUTE, 0, values, attributes))
    except KernelError as error:
        if error.errno not in _NO_ROUTE:
            raise
        return None, error.errno
    return message, 0


def _route(message: DecodedMessage) -> FibRoute:
    kind = _TYPES.get(message["type"], str(message["type"]))
    metrics = message.get_attr("RTA_METRICS")
    return FibRoute(
        kind,
        route.destination_of(message).network,
        message.get_attr("RTA_TABLE") or message["table"],
        message.get_attr("RTA_PRIORITY") or 0,
        () if kind in (*REFUSALS, THROW) else tuple(hop for hop in route.hops_of(message) if hop[0] or hop[1]),
        message["proto"],
        (metrics and metrics.get_attr("RTAX_MTU")) or 0,
        message.get_attr("RTA_NH_ID") or 0,
        _network(message.get_attr("RTA_SRC"), message["src_len"]),
    )


def _rule(message: DecodedMessage) -> FibRule:
    get = message.get_attr
    suppressed = get("FRA_SUPPRESS_PREFIXLEN")
    mark, mask = get("FRA_FWMARK") or 0, get("FRA_FWMASK")
    ports, source_ports, uids = (
        _range(get(name), form)
        for name, form in (("FRA_DPORT_RANGE", _PORTS), ("FRA_SPORT_RANGE", _PORTS), ("FRA_UID_RANGE", _RANGE))
    )
    return FibRule(
        4 if message["family"] == stdlib_socket.AF_INET else 6,
        get("FRA_PRIORITY") or 0,
        _ACTIONS.get(message["action"], "nop"),
        get("FRA_TABLE") or message["table"],
        _network(get("FRA_SRC"), message["src_len"]),
        _network(get("FRA_DST"), message["dst_len"]),
        get("FRA_IIFNAME") or "",
        get("FRA_OIFNAME") or "",
        mark,
        (_UNSET if mark else 0) if mask is None else mask,
        get("FRA_IP_PROTO") or 0,
        ports,
        source_ports,
        bool(message["flags"] & _INVERT),
        _has_more(message),
        get("FRA_GOTO") or 0,
        -1 if suppressed in (None, _UNSET) else suppressed,
        message["tos"],
        uids,
    )


def _has_more(message: DecodedMessage) -> bool:
    """Returns whether a rule has a condition that is not read: tunnel, VRF, DSCP, flow label, some bits of a port."""
    if not _NOT_READ.isdisjoint(message.attribute_numbers()):
        return True
    return any(message.get_attr(name) not in (None, _ALL_BITS) for name in ("FRA_SPORT_MASK", "FRA_DPORT_MASK"))


def _network(packed: bytes | None, length: int) -> Network | None:
    return ip_network((packed, length), strict=False) if packed else None


def _range(data: bytes | None, form: struct.Struct) -> tuple[int, int] | None:
    if not data or len(data) < form.size:
        return None
    first, last = form.unpack_from(data)
    return first, last


def _text(network: Network) -> str:
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)
