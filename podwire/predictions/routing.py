"""The kernel's choice of a route for a packet, with the policy rule and the route that decide it.

The kernel's own look-up returns only an error number for a packet without a route, and never the rule; this module
chooses among all rules and routes in the same way, so that the entry that refuses a packet has a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cni.address import Address
from kernel import fib
from kernel.fib import GOTO, LOCAL, REFUSALS, THROW, TO_TABLE, FibRoute, FibRule
from kernel.netfilter.packet import Packet
from kernel.route import TABLE_MAIN
from kernel.rtnl import Socket
from process.values import replace

_LOOPBACK = "lo"  # where the host's own packets come from
# Addresses of other machines, by IP version, in both halves of the address space.
REMOTE = {4: ("1.1.1.1", "8.8.8.8", "193.0.14.129"), 6: ("2606:4700:4700::1111", "2001:7fd::1")}
MARTIAN = "martian"  # the kernel drops it: its source address is one of this host
_ROOT = 0  # the user of forwarded packets, and of those that this program sends


class Choice(NamedTuple):
    """The result: `kind` is the type of the route, MARTIAN, or "" if nothing matches; then the entries that decided.

    `error` is the kernel's errno for a packet that it refuses, 0 if it was not asked.
    """

    kind: str
    rule: FibRule | None = None
    route: FibRoute | None = None
    error: int = 0

    @property
    def is_delivered(self) -> bool:
        """Whether the packet has a way: out of an interface, or to this host."""
        return not self.error and self.route is not None and self.kind not in (*REFUSALS, MARTIAN)

    @property
    def ifindex(self) -> int:
        """The ifindex of the (first) next hop, 0 without one."""
        return self.route.ifindex if self.route else 0

    @property
    def gateway(self) -> Address | None:
        """The gateway of the (first) next hop."""
        return self.route.gateway if self.route else None


class Fib:
    """The rules and routes of a namespace."""

    def __init__(self, rules: list[FibRule], routes: list[FibRoute]) -> None:
        self.rules = sorted(rules, key=lambda rule: rule.priority)
        self.routes = routes
        # By (IP version, table), then by prefix length (longest first), then by prefix: its routes, best first.
        self._tables: dict[tuple[int, int], dict[int, dict[int, list[FibRoute]]]] = {}
        for one in sorted(routes, key=_order):
            network = one.destination
            by_length = self._tables.setdefault((network.version, one.table), {})
            by_prefix = by_length.setdefault(network.prefixlen, {})
            by_prefix.setdefault(_prefix(network.network_address, network.prefixlen), []).append(one)

    def look_up(self, packet: Packet) -> Choice:
        """Returns the route for a packet, or MARTIAN if it arrives with a source address of this host."""
        if packet.iif and packet.version == 4:  # IPv6 does not look at the source (fib_validate_source in net/ipv4)
            back = self._look_up(fib.packet_to(packet.source, packet.destination, mark=packet.mark or 0))
            if back.kind == LOCAL:
                return back._replace(kind=MARTIAN)
        return self._look_up(packet)

    def list_thrown(self, packet: Packet) -> list[FibRoute]:
        """Returns the throw routes that end the search of a table for a packet."""
        rules = [one for one in self.rules if one.version == packet.version and one.action == TO_TABLE]
        best = (self._best(rule, packet) for rule in rules if _matches(rule, packet))
        return [one for one in best if one is not None and one.kind == THROW]

    def describe_other_source(self, packet: Packet, names: Mapping[int, str]) -> str:
        """Returns text about a route that a packet would use if it came from another network; "" without one."""
        for one in self.routes:
            if one.source and packet.source not in one.source and packet.destination in one.destination:
                return f'; the route "{one.describe(names)}" is only for packets from {one.source}'
        return ""

    def list_defaults(self, version: int) -> list[FibRoute]:
        """Returns the default routes of all tables that have an interface: those of table main first, by metric."""
        defaults = [one for one in self.routes if one.destination.version == version and not one.destination.prefixlen]
        usable = (one for one in defaults if one.ifindex)
        return sorted(usable, key=lambda one: (one.table != TABLE_MAIN, one.metric))

    def with_rule(self, rule: FibRule) -> Fib:
        """Returns the rules and routes with a further rule, behind those of the same priority as in the kernel."""
        return Fib([*self.rules, rule], self.routes)

    def without_rule(self, rule: FibRule) -> Fib:
        """Returns the rules and routes without a rule."""
        return Fib([one for one in self.rules if one is not rule], self.routes)

    def with_route(self, route: FibRoute) -> Fib:
        """Returns the rules and routes with a route, which replaces those to the same destination in its table."""
        key = route.destination, route.table, route.metric, route.source
        others = [one for one in self.routes if (one.destination, one.table, one.metric, one.source) != key]
        return Fib(self.rules, [*others, route])

    def without_route(self, route: FibRoute) -> Fib:
        """Returns the rules and routes without a route."""
        return Fib(self.rules, [one for one in self.routes if one is not route])

    def _look_up(self, packet: Packet) -> Choice:
        """Returns the route for a packet, by the rules in their order."""
        lowest = 0
        for rule in self.rules:
            if rule.version != packet.version or rule.priority < lowest or not _matches(rule, packet):
                continue
            if rule.action == GOTO:
                lowest = rule.goto
            elif rule.action in REFUSALS:
                return Choice(rule.action, rule)
            elif rule.action == TO_TABLE:
                best = self._best(rule, packet)
                if best is not None and best.kind != THROW:
                    return Choice(best.kind, rule, best)
        return Choice("")

    def _best(self, rule: FibRule, packet: Packet) -> FibRoute | None:
        for length, by_prefix in self._tables.get((packet.version, rule.table), {}).items():
            for one in by_prefix.get(_prefix(packet.destination, length), ()):
                if length > rule.suppress_prefix and (not one.source or packet.source in one.source):
                    return one
        return None


def read_fib(socket: Socket) -> Fib:
    """Reads the rules and routes of the socket's namespace; raises KernelError."""
    return Fib(fib.list_rules(socket), fib.list_routes(socket))


def ask_kernel(socket: Socket, predicted: Choice, packet: Packet, ifindex: int = 0) -> Choice:
    """Returns the kernel's own choice for a packet, with the entries of the predicted one where both are the same.

    The packet arrives at `ifindex` (0: a local one). Raises KernelError.
    """
    answer = fib.look_up(socket, packet, ifindex)
    if answer.route is None:
        refused = predicted if predicted.kind in (*REFUSALS, MARTIAN) else Choice("")
        return refused._replace(error=answer.error)
    route = predicted.route
    if route is not None and (route.kind, route.destination) == (answer.route.kind, answer.route.destination):
        return predicted
    return Choice(answer.route.kind, None, answer.route)


def without_source(packet: Packet) -> Packet:
    """Returns the packet as a program of the host would send it to the same destination."""
    of_host = fib.packet_to(packet.destination, protocol=packet.protocol, port=packet.port or 0)
    return replace(packet, source=of_host.source, iif="", mark=0)


def _prefix(address: Address, length: int) -> int:
    """Returns the first `length` bits of an address."""
    return int(address) >> (address.max_prefixlen - length)


def _order(route: FibRoute) -> tuple[int, int, int]:
    return -route.destination.prefixlen, -route.source.prefixlen if route.source else 0, route.metric


def _matches(rule: FibRule, packet: Packet) -> bool:
    """Returns whether a rule applies; one with an unknown condition does not."""
    if rule.is_undecided or (rule.mask and packet.mark is None):
        return False
    applies = (
        (rule.source is None or packet.source in rule.source)
        and (rule.destination is None or packet.destination in rule.destination)
        and (not rule.iif or rule.iif == (packet.iif or _LOOPBACK))
        and not rule.oif
        and not rule.tos
        and (packet.mark or 0) & rule.mask == rule.mark
        and rule.protocol in (0, packet.protocol)
        and _contains(rule.ports, packet.port)
        and _contains(rule.source_ports, packet.source_port)
        and (rule.uids is None or rule.uids[0] <= _ROOT)
    )
    return applies != rule.is_inverted


def _contains(ports: tuple[int, int] | None, port: int | None) -> bool:
    return ports is None or (port is not None and ports[0] <= port <= ports[1])
