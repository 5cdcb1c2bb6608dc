"""The routing decision for one packet: policy rules, routes of all types, and the kernel's own answer.

`look_up` asks the kernel. Where it answers only with an error, `explain` finds the rule or route in the lists: it
evaluates them as the kernel does, so its result is only as good as the conditions that it knows (`PolicyRule.others`).
"""

from __future__ import annotations

import errno
import socket as stdlib_socket
import struct
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import NamedTuple

from cni.address import Address, Network
from kernel.codec_tracing import LookupMessage, PolicyRuleMessage
from kernel.errors import KernelError
from kernel.route import RTM_GETROUTE, address_of, destination_of, hops_of
from kernel.rtnl import NLM_F_DUMP, Request, Socket
from kernel.rule import RTM_GETRULE
from kernel.wire import Attributes, DecodedMessage

_FAMILIES = {4: int(stdlib_socket.AF_INET), 6: int(stdlib_socket.AF_INET6)}
UNICAST, LOCAL, BLACKHOLE, UNREACHABLE, PROHIBIT, THROW = 1, 2, 6, 7, 8, 9  # RTN_* (linux/rtnetlink.h)
TYPES = {
    1: "unicast", 2: "local", 3: "broadcast", 4: "anycast", 5: "multicast", 6: "blackhole", 7: "unreachable",
    8: "prohibit", 9: "throw",
}  # fmt: skip
DISCARDING = (BLACKHOLE, UNREACHABLE, PROHIBIT)
TO_TABLE, GOTO, _NOP = 1, 2, 3  # FR_ACT_* (linux/fib_rules.h)
_ACTIONS = {6: BLACKHOLE, 7: UNREACHABLE, 8: PROHIBIT}
_INVERT = 2  # FIB_RULE_INVERT
_TABLES = {253: "default", 254: "main", 255: "local"}
_PROTOCOLS = {2: "kernel", 3: "boot", 4: "static", 9: "ra", 11: "zebra", 12: "bird", 16: "dhcp", 186: "bgp"}
_RTM_F_CLONED, _RTM_F_FIB_MATCH, _DEAD = 0x200, 0x2000, 0x1
_NO_ROUTE = (
    errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL, errno.EACCES, errno.EXDEV, errno.ESRCH, errno.ENODEV,
    errno.ENOENT, errno.EAGAIN,
)  # fmt: skip
_UNSET = 0xFFFFFFFF


class Packet(NamedTuple):
    """The properties of a packet that routing depends on; `iif` is the ifindex where it arrives, 0 for a local one."""

    source: Address | None
    destination: Address
    iif: int = 0
    iif_name: str = ""
    mark: int = 0
    protocol: int = 0
    source_port: int = 0
    port: int = 0


class RouteEntry(NamedTuple):
    """A route of any type: `hops` are (ifindex, gateway or None); `protocol` is the program that added it."""

    type: int
    table: int
    destination: Network
    hops: tuple[tuple[int, Address | None], ...]
    metric: int = 0
    source: Address | None = None
    protocol: int = 0
    mtu: int = 0

    @property
    def device(self) -> int:
        """The ifindex of the first next hop, 0 without one."""
        return self.hops[0][0] if self.hops else 0

    @property
    def gateway(self) -> Address | None:
        """The gateway of the first next hop."""
        return self.hops[0][1] if self.hops else None

    def describe(self, names: dict[int, str]) -> str:
        """Returns the route as `ip route` prints it; `names` are the names of interfaces."""
        words = [] if self.type == UNICAST else [TYPES.get(self.type, str(self.type))]
        words.append("default" if not self.destination.prefixlen else _without_full_prefix(self.destination))
        for index, gateway in self.hops:
            words += [f"via {gateway}"] * bool(gateway) + [f"dev {names.get(index, index)}"] * bool(index)
        words += [f"metric {self.metric}"] * bool(self.metric)
        words += [f"table {table_name(self.table)}"] * (self.table not in (0, 254))
        return " ".join(words)


class PolicyRule(NamedTuple):
    """A policy rule (`ip rule`). `others`: it has conditions that are not read here, or a tos."""

    version: int
    priority: int
    action: int
    table: int
    source: Network | None = None
    destination: Network | None = None
    iif: str = ""
    oif: str = ""
    mark: int = 0
    mask: int = 0
    ip_protocol: int = 0
    source_ports: tuple[int, int] | None = None
    ports: tuple[int, int] | None = None
    suppressed_prefix: int | None = None
    inverted: bool = False
    l3mdev: bool = False
    others: bool = False

    def describe(self) -> str:
        """Returns the rule as `ip rule` prints it."""
        words = [f"{self.priority}:"] + ["not"] * self.inverted
        words += ["from", _without_full_prefix(self.source) if self.source else "all"]
        words += ["to", _without_full_prefix(self.destination)] if self.destination else []
        words += [f"iif {self.iif}"] * bool(self.iif) + [f"oif {self.oif}"] * bool(self.oif)
        if self.mark or self.mask:
            words.append(f"fwmark {self.mark:#x}" + (f"/{self.mask:#x}" if self.mask != 0xFFFFFFFF else ""))
        words += [f"ipproto {self.ip_protocol}"] * bool(self.ip_protocol)
        words += [f"dport {self.ports[0]}-{self.ports[1]}"] if self.ports else []
        if self.action == TO_TABLE:
            words.append("lookup [l3mdev-table]" if self.l3mdev else f"lookup {table_name(self.table)}")
            if self.suppressed_prefix is not None:
                words.append(f"suppress_prefixlength {self.suppressed_prefix}")
        else:
            words.append(TYPES.get(_ACTIONS.get(self.action, 0), f"action {self.action}"))
        return " ".join(words)

    def matches(self, packet: Packet) -> bool:
        """Returns whether the rule's known conditions select a packet."""
        selected = (
            (self.source is None or (packet.source is not None and _contains(self.source, packet.source)))
            and (self.destination is None or _contains(self.destination, packet.destination))
            and (not self.iif or self.iif == (packet.iif_name or "lo"))
            and not self.oif
            and (packet.mark & self.mask) == self.mark
            and self.ip_protocol in (0, packet.protocol)
            and _in_range(self.source_ports, packet.source_port)
            and _in_range(self.ports, packet.port)
        )
        return selected != self.inverted


class Decision(NamedTuple):
    """The result of a look-up: the rule and the route that decide; `error` is the kernel's errno without a route.

    `mtu` is the MTU of the path if the route has one.
    """

    route: RouteEntry | None
    rule: PolicyRule | None = None
    error: int = 0

    @property
    def is_delivered(self) -> bool:
        """Whether the packet has a way: out of an interface, or to this host."""
        return not self.error and self.route is not None and self.route.type not in (*DISCARDING, THROW)


class Fib(NamedTuple):
    """The policy rules and routes of one IP version in a namespace."""

    rules: tuple[PolicyRule, ...]
    routes: tuple[RouteEntry, ...]

    def explain(self, packet: Packet) -> Decision:
        """Evaluates rules and routes for a packet: the first rule whose table has a route, the longest prefix there."""
        for rule in sorted(self.rules, key=lambda each: each.priority):
            if rule.others or rule.l3mdev or rule.action in (GOTO, _NOP) or not rule.matches(packet):
                continue
            if rule.action in _ACTIONS:
                kind = _ACTIONS[rule.action]
                everything = _whole(packet.destination)
                return Decision(RouteEntry(kind, 0, everything, ()), rule)
            best = self._best(rule.table, packet.destination)
            if best is None or best.type == THROW:
                continue
            if rule.suppressed_prefix is not None and best.destination.prefixlen <= rule.suppressed_prefix:
                continue
            return Decision(best, rule)
        return Decision(None, None, errno.ENETUNREACH)

    def rule_of(self, packet: Packet, route: RouteEntry) -> PolicyRule | None:
        """Returns the rule by which a packet uses the table of a route that the kernel chose, None if unknown."""
        for rule in sorted(self.rules, key=lambda each: each.priority):
            if rule.action == TO_TABLE and rule.table == route.table and rule.matches(packet):
                return rule
        return None

    def _best(self, table: int, destination: Address) -> RouteEntry | None:
        candidates = [one for one in self.routes if one.table == table and _contains(one.destination, destination)]
        return min(candidates, key=lambda one: (-one.destination.prefixlen, one.metric), default=None)


def read(socket: Socket, version: int) -> Fib:
    """Returns the rules and routes of an IP version; raises KernelError."""
    family = {"family": _FAMILIES[version]}
    rules = socket.dump(Request("list the policy rules", PolicyRuleMessage, RTM_GETRULE, NLM_F_DUMP, family))
    routes = socket.dump(Request("list the routes", LookupMessage, RTM_GETROUTE, NLM_F_DUMP, family))
    return Fib(
        tuple(_rule(message) for message in rules if message["family"] == _FAMILIES[version]),
        tuple(_route(message) for message in routes if not message["flags"] & _RTM_F_CLONED),
    )


def look_up(socket: Socket, packet: Packet) -> Decision:
    """Asks the kernel for the route of a packet; raises KernelError.

    The errors of a packet without a way are in the decision: ENETUNREACH, EHOSTUNREACH (no forwarding, or a route of
    type unreachable), EACCES (prohibit), EINVAL (blackhole, or a source that this host does not accept).
    """
    flags = _RTM_F_FIB_MATCH
    try:
        message = _ask(socket, packet, flags)
    except KernelError as error:
        if error.errno not in _NO_ROUTE:
            raise
        return Decision(None, None, error.errno)
    return Decision(_route(message))


def source_for(socket: Socket, destination: Address) -> Address | None:
    """Returns the source address that this namespace uses to a destination, None without a route."""
    try:
        message = _ask(socket, Packet(None, destination), 0)
    except KernelError as error:
        if error.errno not in _NO_ROUTE:
            raise
        return None
    packed = message.get_attr("RTA_PREFSRC")
    return address_of(packed) if packed else None


def table_name(number: int) -> str:
    """Returns the name of a routing table, or its number."""
    return _TABLES.get(number, str(number))


def _ask(socket: Socket, packet: Packet, flags: int) -> DecodedMessage:
    length = packet.destination.max_prefixlen
    values = {"family": _FAMILIES[packet.destination.version], "dst_len": length, "flags": flags}
    attributes: Attributes = [("RTA_DST", packet.destination.packed)]
    if packet.source is not None:
        values["src_len"] = length
        attributes.append(("RTA_SRC", packet.source.packed))
    for name, number in (("RTA_IIF", packet.iif), ("RTA_MARK", packet.mark)):
        attributes += [(name, number)] if number else []
    if packet.protocol in (6, 17):
        attributes += [("RTA_IP_PROTO", packet.protocol)]
        attributes += [("RTA_SPORT", packet.source_port), ("RTA_DPORT", packet.port)]
    description = f"look up the route to {packet.destination}"
    (message,) = socket.get(Request(description, LookupMessage, RTM_GETROUTE, 0, values, attributes))
    return message  # type: ignore[no-any-return]  # a decoded message


def _route(message: DecodedMessage) -> RouteEntry:
    metrics = message.get_attr("RTA_METRICS")
    source = message.get_attr("RTA_PREFSRC")
    hops = tuple(hop for hop in hops_of(message) if hop[0] or hop[1])
    return RouteEntry(
        message["type"],
        message.get_attr("RTA_TABLE") or message["table"],
        destination_of(message).network,
        hops,
        message.get_attr("RTA_PRIORITY") or 0,
        address_of(source) if source else None,
        message["proto"],
        (metrics.get_attr("RTAX_MTU") or 0) if metrics else 0,
    )


def _rule(message: DecodedMessage) -> PolicyRule:
    get = message.get_attr
    version = 4 if message["family"] == _FAMILIES[4] else 6
    suppressed = get("FRA_SUPPRESS_PREFIXLEN")
    mark, mask = get("FRA_FWMARK") or 0, get("FRA_FWMASK")
    return PolicyRule(
        version,
        get("FRA_PRIORITY") or 0,
        message["action"],
        get("FRA_TABLE") or message["table"],
        _network(version, get("FRA_SRC"), message["src_len"]),
        _network(version, get("FRA_DST"), message["dst_len"]),
        get("FRA_IIFNAME") or "",
        get("FRA_OIFNAME") or "",
        mark,
        (0xFFFFFFFF if mark else 0) if mask is None else mask,
        get("FRA_IP_PROTO") or 0,
        _range(get("FRA_SPORT_RANGE")),
        _range(get("FRA_DPORT_RANGE")),
        None if suppressed in (None, _UNSET) else suppressed,
        bool(message["flags"] & _INVERT),
        bool(get("FRA_L3MDEV")),
        bool(message["tos"]),
    )


def _network(version: int, packed: bytes | None, length: int) -> Network | None:
    if not packed:
        return None
    return IPv4Network((packed, length)) if version == 4 else IPv6Network((packed, length))


def _range(data: bytes | None) -> tuple[int, int] | None:
    if not data or len(data) < 4:
        return None
    first, last = struct.unpack_from("=HH", data)
    return first, last


def _in_range(ports: tuple[int, int] | None, port: int) -> bool:
    return ports is None or ports[0] <= port <= ports[1]


def _contains(network: Network, address: Address) -> bool:
    return network.version == address.version and address in network


def _whole(address: Address) -> Network:
    return IPv4Network("0.0.0.0/0") if address.version == 4 else IPv6Network("::/0")


def _without_full_prefix(network: Network) -> str:
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)


def best_of(routes: Iterable[RouteEntry], destination: Address) -> RouteEntry | None:
    """Returns the route with the longest prefix that contains an address, None if there is none."""
    candidates = [one for one in routes if _contains(one.destination, destination)]
    return max(candidates, key=lambda one: one.destination.prefixlen, default=None)


def names_of(links: Sequence[tuple[int, str]]) -> dict[int, str]:
    """Returns the names of interfaces by index."""
    return dict(links)
