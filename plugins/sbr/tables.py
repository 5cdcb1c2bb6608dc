"""The routing table of each address: the one that its rule names, a stale one of the interface, or a free one.

One rule: a table that a rule names or that holds any route is not free, so that sbr never mixes its routes with others.
Only a table without a rule whose routes all go through the interface is stale: an earlier attachment filled it.
"""

from __future__ import annotations

from cni.result import IPConfig, Result
from kernel.route_copy import TableRoute
from plugins.sbr.state import SandboxState, is_choosable, tables_of


class Tables:
    """The tables of one attachment, each chosen once."""

    def __init__(self, state: SandboxState, prev_result: Result) -> None:
        self._state = state
        named = {item.table for item in prev_result.routes if item.table}  # IPAM's routes, perhaps for another plugin
        self._in_rules = {item.table for item in state.rules} | named
        self._with_routes = {item.table for item in state.routes}
        self._chosen: set[int] = set()

    def find(self, ip: IPConfig) -> int | None:
        """Returns the table of a rule for the address that sbr created, None without one."""
        address = ip.address.ip
        for table in tables_of(self._state.rules, address):
            shared = any(item.table == table and item.source != address.packed for item in self._state.rules)
            if is_choosable(table) and not shared and self._state.holds_only_ours(table):
                self._chosen.add(table)
                return table
        return None

    def find_without_rule(self, ip: IPConfig) -> int | None:
        """Returns a stale table with the address's routes, whose rule was deleted; None without one."""
        for item in self._state.routes:
            if item.table not in self._chosen and _is_of(item, ip) and self._is_stale(item.table):
                self._chosen.add(item.table)
                return item.table
        return None

    def choose(self) -> int:
        """Returns the first free or stale table after those chosen before."""
        table = max(self._chosen, default=99)
        while True:
            table += 1
            if is_choosable(table) and (self._is_free(table) or self._is_stale(table)):
                self._chosen.add(table)
                return table

    def _is_free(self, table: int) -> bool:
        return table not in self._in_rules and table not in self._with_routes and table not in self._chosen

    def _is_stale(self, table: int) -> bool:
        known = table in self._with_routes and table not in self._in_rules
        return known and is_choosable(table) and self._state.holds_only_ours(table)


def _is_of(item: TableRoute, ip: IPConfig) -> bool:
    """Returns whether a route leads to the address's subnet, has its source, or a gateway in the subnet."""
    network = ip.address.network
    return item.dst == network or item.source == ip.address.ip or any(end in network for end in item.gateways if end)
