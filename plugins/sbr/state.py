"""The rules and routes in a sandbox, read in two exchanges with the kernel."""

from __future__ import annotations

from collections.abc import Sequence

from cni.address import Address
from kernel import link, route_copy, rule
from kernel.link import Link
from kernel.route import TABLE_MAIN
from kernel.route_copy import UNICAST, TableRoute
from kernel.rtnl import Socket
from kernel.rule import PolicyRule
from process.values import dataclass

_FIRST_TABLE = 100  # as in the reference plugin
_RESERVED = frozenset((253, TABLE_MAIN, 255))  # tables default, main and local (linux/rtnetlink.h)


@dataclass(frozen=True)
class SandboxState:
    """The interface (None if it no longer exists), and all rules and routes of the sandbox."""

    link: Link | None
    rules: tuple[PolicyRule, ...]
    routes: tuple[TableRoute, ...]

    def in_table(self, table: int) -> list[TableRoute]:
        """Returns the routes of a table, of both IP versions."""
        return [route for route in self.routes if route.table == table]

    def holds_only_ours(self, table: int) -> bool:
        """Returns whether all routes of a table are unicast routes through the interface."""
        if self.link is None:
            return not self.in_table(table)
        return all(route.type == UNICAST and route.is_through(self.link) for route in self.in_table(table))

    def main_routes(self) -> list[TableRoute]:
        """Returns the unicast routes through the interface in table main."""
        return [
            item
            for item in self.in_table(TABLE_MAIN)
            if item.type == UNICAST and self.link and item.is_through(self.link)
        ]


def get_state(socket: Socket, ifname: str) -> SandboxState:
    """Reads interface, rules and routes; raises KernelError."""
    container_link, rules = socket.get(link.by_name_request(ifname), rule.list_request())
    routes = socket.dump(route_copy.list_request(), merge_key=lambda message: route_copy.from_message(message).identity)
    return SandboxState(
        link.from_message(container_link) if container_link else None,
        tuple(map(rule.from_message, rules)),
        tuple(map(route_copy.from_message, routes)),
    )


def tables_of(rules: Sequence[PolicyRule], address: Address) -> list[int]:
    """Returns the tables of the rules that select packets from `address` by nothing but this source."""
    return [item.table for item in rules if item.source == address.packed and item.table]


def is_choosable(table: int) -> bool:
    """Returns whether sbr may choose a table by itself."""
    return table >= _FIRST_TABLE and table not in _RESERVED
