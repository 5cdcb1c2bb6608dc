"""Predicts the kernel's choice of a route, and names the policy rule and the route that decide it.

The kernel's own look-up (RTM_GETROUTE) returns only an error number for a packet without a route; this module reads all
rules and routes and looks up the same way, so that the entry that refuses a packet has a name.
"""

from __future__ import annotations

import errno
import socket as stdlib_socket
import struct
from collections.abc import Iterator
from ipaddress import ip_network
from typing import NamedTuple

from cni.address import Address, Network
from kernel import route
from kernel.codec import RouteMessage
from kernel.codec_routing import WholeRuleMessage
from kernel.rtnl import NLM_F_DUMP, Request, Socket
from kernel.rule import RTM_GETRULE
from kernel.wire import DecodedMessage
from process.values import dataclass

_FAMILIES = {4: int(stdlib_socket.AF_INET), 6: int(stdlib_socket.AF_INET6)}
UNICAST, LOCAL, THROW = "unicast", "local", "throw"
_TYPES = {1: UNICAST, 2: LOCAL, 6: "blackhole", 7: "unreachable", 8: "prohibit", 9: THROW}  # RTN_*
_ACTIONS = {1: "lookup", 2: "goto", 3: "nop", 6: "blackhole", 7: "unreachable", 8: "prohibit"}  # FR_ACT_*
REFUSALS = ("blackhole", "unreachable", "prohibit")
_INVERT, _UNSET = 2, 0xFFFFFFFF  # FIB_RULE_INVERT
_DEAD = 1  # RTNH_F_DEAD
_CLONED = 0x200
_RANGE = struct.Struct("=HH")
_TABLES = {255: "local", 254: "main", 253: "default"}


@dataclass(frozen=True)
class FibRoute:
    """A route of any type; `hops` are (ifindex, gateway), none for a route that refuses.

    `nexthop` is the ID of its nexthop object, 0 without one: it, and not the route, then has the type.
    """

    kind: str
    destination: Network
    table: int
    metric: int
    hops: tuple[tuple[int, Address | None], ...]
    protocol: int = 0
    mtu: int = 0
    nexthop: int = 0

    def __str__(self) -> str:
        """Returns the route as `ip route` names it, for a deletion."""
        kind = "" if self.kind == UNICAST or self.nexthop else f"{self.kind} "
        gateway = next((f" via {gateway}" for _, gateway in self.hops if gateway), "")
        gateway = f" nhid {self.nexthop}" if self.nexthop else gateway
        table = "" if self.table == route.TABLE_MAIN else f" table {_TABLES.get(self.table, self.table)}"
        metric = f" metric {self.metric}" if self.metric else ""
        return f"{kind}{self.destination}{gateway}{table}{metric}"


@dataclass(frozen=True)
class FibRule:
    """A policy rule with its conditions; `action` as in _ACTIONS."""

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
    is_undecided: bool = False  # has a condition that is not read here (a user, a TOS)
    goto: int = 0
    suppress_prefix: int = -1

    @property
    def words(self) -> str:
        """The rule as `ip rule` names it, for a deletion."""
        parts = [f"priority {self.priority}", "not" if self.is_inverted else ""]
        parts += [
            f"from {self.source}" if self.source else "from all",
            f"to {self.destination}" if self.destination else "",
        ]
        parts.append(f"fwmark {self.mark:#x}/{self.mask:#x}" if self.mask else "")
        parts += [f"iif {self.iif}" if self.iif else "", f"oif {self.oif}" if self.oif else ""]
        parts.append(f"ipproto {self.protocol}" if self.protocol else "")
        for word, ports in (("sport", self.source_ports), ("dport", self.ports)):
            if ports:
                parts.append(f"{word} {ports[0]}-{ports[1]}" if ports[0] != ports[1] else f"{word} {ports[0]}")
        parts.append(f"lookup {_TABLES.get(self.table, self.table)}" if self.action == "lookup" else self.action)
        return " ".join(part for part in parts if part)


class Query(NamedTuple):
    """A packet to route: `iif` "lo" for one of the host's own, `mark` as the packet filter sets it."""

    destination: Address
    source: Address | None = None
    iif: str = "lo"
    mark: int = 0
    protocol: int = 6
    port: int = 0


class Choice(NamedTuple):
    """The result: `kind` is the type of the route, "" if nothing matches; then the entries that decided."""

    kind: str
    rule: FibRule | None = None
    route: FibRoute | None = None

    @property
    def ifindex(self) -> int:
        """The ifindex of the (first) next hop, 0 without one."""
        return self.route.hops[0][0] if self.route and self.route.hops else 0

    @property
    def gateway(self) -> Address | None:
        """The gateway of the (first) next hop."""
        return self.route.hops[0][1] if self.route and self.route.hops else None


class Fib:
    """The rules and routes of the namespace in which it was read."""

    def __init__(self, rules: list[FibRule], routes: list[FibRoute]) -> None:
        self.rules = sorted(rules, key=lambda rule: rule.priority)
        self.routes = routes
        self._tables: dict[tuple[int, int], list[FibRoute]] = {}
        for one in sorted(routes, key=lambda one: (-one.destination.prefixlen, one.metric)):
            self._tables.setdefault((one.destination.version, one.table), []).append(one)

    def look_up(self, query: Query) -> Choice:
        """Returns the route for a packet, by the rules in their order."""
        lowest = 0
        for rule in self.rules:
            if rule.version != query.destination.version or rule.priority < lowest or not _matches(rule, query):
                continue
            if rule.action == "goto":
                lowest = rule.goto
            elif rule.action in REFUSALS:
                return Choice(rule.action, rule)
            elif rule.action == "lookup" and (matching := self._find(rule, query.destination)):
                return Choice(matching.kind, rule, matching)
        return Choice("")

    def list_thrown(self, query: Query) -> list[FibRoute]:
        """Returns the throw routes that end the search of a table for a packet."""
        rules = [one for one in self.rules if one.version == query.destination.version and one.action == "lookup"]
        best = (self._best(rule, query.destination) for rule in rules if _matches(rule, query))
        return [one for one in best if one is not None and one.kind == THROW]

    def with_rule(self, rule: FibRule) -> Fib:
        """Returns the rules and routes with a further rule, behind those of the same priority as in the kernel."""
        return Fib([*self.rules, rule], self.routes)

    def without_rule(self, rule: FibRule) -> Fib:
        """Returns the rules and routes without a rule."""
        return Fib([one for one in self.rules if one is not rule], self.routes)

    def with_route(self, route: FibRoute) -> Fib:
        """Returns the rules and routes with a route, which replaces those to the same destination in its table."""
        key = route.destination, route.table, route.metric
        others = [one for one in self.routes if (one.destination, one.table, one.metric) != key]
        return Fib(self.rules, [*others, route])

    def without_route(self, route: FibRoute) -> Fib:
        """Returns the rules and routes without a route."""
        return Fib(self.rules, [one for one in self.routes if one is not route])

    def _find(self, rule: FibRule, destination: Address) -> FibRoute | None:
        best = self._best(rule, destination)
        return None if best is not None and best.kind == THROW else best

    def _best(self, rule: FibRule, destination: Address) -> FibRoute | None:
        for one in self._tables.get((destination.version, rule.table), ()):
            if destination in one.destination and one.destination.prefixlen > rule.suppress_prefix:
                return one
        return None


def read_fib(socket: Socket) -> Fib:
    """Reads the rules and routes of the socket's namespace; raises KernelError."""
    request = Request("list the rules", WholeRuleMessage, RTM_GETRULE, NLM_F_DUMP, {})
    ips = set(_FAMILIES.values())
    rules = [_rule(message) for message in socket.dump(request) if message["family"] in ips]
    routes: list[FibRoute] = []
    for family in _FAMILIES.values():
        request = Request(
            "list the routes", RouteMessage, route.RTM_GETROUTE, NLM_F_DUMP, {"family": family},
            ignore=(errno.EAFNOSUPPORT, errno.EOPNOTSUPP),
        )  # fmt: skip
        routes += _routes(socket.dump(request))
    return Fib(rules, routes)


def _routes(messages: list[DecodedMessage]) -> Iterator[FibRoute]:
    for message in messages:
        kind = _TYPES.get(message["type"], "")
        if not kind or message["flags"] & (_DEAD | _CLONED):
            continue
        refuses = kind not in (UNICAST, LOCAL)
        metrics = message.get_attr("RTA_METRICS")
        yield FibRoute(
            kind,
            route.destination_of(message).network,
            message.get_attr("RTA_TABLE") or message["table"],
            message.get_attr("RTA_PRIORITY") or 0,
            () if refuses else tuple(route.hops_of(message)),
            message["proto"],
            (metrics and metrics.get_attr("RTAX_MTU")) or 0,
            message.get_attr("RTA_NH_ID") or 0,
        )


def _rule(message: DecodedMessage) -> FibRule:
    get = message.get_attr
    suppressed = get("FRA_SUPPRESS_PREFIXLEN")
    mark, mask = get("FRA_FWMARK") or 0, get("FRA_FWMASK") or 0
    ports, source_ports = (_range(get(name)) for name in ("FRA_DPORT_RANGE", "FRA_SPORT_RANGE"))
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
        mask,
        get("FRA_IP_PROTO") or 0,
        ports,
        source_ports,
        bool(message["flags"] & _INVERT),
        bool(message["tos"] or get("FRA_UID_RANGE") or get("FRA_L3MDEV")),
        get("FRA_GOTO") or 0,
        -1 if suppressed in (None, _UNSET) else suppressed,
    )


def _network(packed: bytes | None, length: int) -> Network | None:
    return ip_network((packed, length), strict=False) if packed else None


def _range(data: bytes | None) -> tuple[int, int] | None:
    return _RANGE.unpack_from(data) if data and len(data) >= _RANGE.size else None


def _matches(rule: FibRule, query: Query) -> bool:
    """Returns whether a rule applies; one with an unknown condition does not."""
    if rule.is_undecided:
        return False
    applies = (
        (rule.source is None or (query.source is not None and query.source in rule.source))
        and (rule.destination is None or query.destination in rule.destination)
        and (not rule.iif or rule.iif == query.iif)
        and not rule.oif
        and query.mark & rule.mask == rule.mark
        and rule.protocol in (0, query.protocol)
        and (rule.ports is None or rule.ports[0] <= query.port <= rule.ports[1])
        and rule.source_ports is None
    )
    return applies != rule.is_inverted
