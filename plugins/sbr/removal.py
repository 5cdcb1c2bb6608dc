"""What DEL removes: the rules of the attachment's addresses, and the routes of their tables.

One rule: a rule is the attachment's if it selects packets by one of its addresses and nothing else, and its table is
the configured one, or has routes through the interface, or has none. Others' rules and tables stay.
"""

from __future__ import annotations

from collections.abc import Iterable

from attachment.sandbox import Sandbox, attachment_ips
from cni.result import IPConfig, Result
from kernel import address, route_copy, rule
from kernel.rtnl import Request
from kernel.rule import PolicyRule
from plugins.sbr.state import SandboxState, get_state, is_choosable
from plugins.sbr.tables import Tables


def remove(sandbox: Sandbox, prev_result: Result | None, table: int | None) -> None:
    """Removes the rules of the interface's addresses in prevResult, or without any on the interface, and their routes.

    With `table`, the configured one, only rules for it, and no routes. Tables whose rules are missing, after a DEL that
    failed for example, are emptied, too. All requests are sent whatever fails. Raises KernelError.
    """
    state = get_state(sandbox.socket, sandbox.ifname)
    ips = attachment_ips(prev_result, sandbox.ifname, strict=False) if prev_result else []
    ips = ips or _assigned(sandbox, state)
    removable = [
        (item, ip.address.ip)
        for item in state.rules
        for ip in {ip.address.ip: ip for ip in ips}.values()
        if item.source == ip.address.packed and _is_ours(state, item, table)
    ]
    requests = [rule.delete_request(source, item.table) for item, source in removable]
    if table is None:
        removed = [item for item, _ in removable]
        tables = {item.table for item in removed} - {item.table for item in state.rules if item not in removed}
        requests += _route_requests(state, tables | _stale_tables(state, prev_result, ips))
    if requests:
        sandbox.socket.change(*requests)


def _is_ours(state: SandboxState, item: PolicyRule, table: int | None) -> bool:
    """Returns whether a rule for one of the attachment's addresses is sbr's."""
    if table is not None:
        return item.table == table
    routes = state.in_table(item.table)
    through_interface = any(state.link and route.is_through(state.link) for route in routes)
    return is_choosable(item.table) and (not routes or through_interface)


def _stale_tables(state: SandboxState, prev_result: Result | None, ips: Iterable[IPConfig]) -> set[int]:
    """Returns the tables of the addresses whose rules are missing."""
    tables, stale = Tables(state, prev_result or Result()), set()
    for ip in ips:
        while (table := tables.find_without_rule(ip)) is not None:
            stale.add(table)
    return stale


def _route_requests(state: SandboxState, tables: set[int]) -> list[Request]:
    """Returns requests that delete the interface's routes from `tables`."""
    return [
        route_copy.delete_request(route, route.table)
        for route in state.routes
        if route.table in tables and state.link and route.is_through(state.link)
    ]


def _assigned(sandbox: Sandbox, state: SandboxState) -> list[IPConfig]:
    """Returns the addresses of the interface, [] if it does not exist."""
    if state.link is None:
        return []
    return [IPConfig(item.address) for item in address.list_on_link(sandbox.socket, state.link)]
