"""What DEL removes: the rules of the attachment's addresses, and the routes of their tables.

One rule: a rule is the attachment's if it selects packets by one of its addresses and nothing else, and its table is
the configured one, or has routes through the interface, or has none. Others' rules and tables stay.
"""

from __future__ import annotations

from attachment.sandbox import Sandbox
from cni.address import Address
from cni.result import IPConfig
from kernel import address, route_copy, rule
from kernel.rtnl import Request
from kernel.rule import Rule
from plugins.sbr.state import State, get_state, is_choosable


def remove(sandbox: Sandbox, ips: list[IPConfig], table: int | None) -> None:
    """Removes the rules of `ips`, or without any of the interface's addresses, and the routes of their tables.

    With `table`, the configured one, only rules for it, and no routes. All requests are sent whatever fails. Raises
    KernelError.
    """
    state = get_state(sandbox.socket, sandbox.ifname)
    addresses = {ip.address.ip for ip in ips} or _assigned_addresses(sandbox, state)
    doomed = [
        (item, source)
        for item in state.rules
        for source in addresses
        if item.source == source.packed and _is_ours(state, item, table)
    ]
    requests = [rule.delete_request(source, item.table) for item, source in doomed]
    if table is None:
        requests += _route_requests(state, [item for item, _ in doomed])
    if requests:
        sandbox.socket.change(*requests)


def _is_ours(state: State, item: Rule, table: int | None) -> bool:
    """Returns whether a rule for one of the attachment's addresses is sbr's."""
    if table is not None:
        return item.table == table
    routes = state.in_table(item.table)
    through_interface = any(state.link and route.is_through(state.link) for route in routes)
    return is_choosable(item.table) and (not routes or through_interface)


def _route_requests(state: State, doomed: list[Rule]) -> list[Request]:
    """Returns requests that delete the interface's routes from tables to which no other rule refers."""
    kept = {item.table for item in state.rules if item not in doomed}
    tables = {item.table for item in doomed} - kept
    return [
        route_copy.delete_request(route, route.table)
        for route in state.routes
        if route.table in tables and state.link and route.is_through(state.link)
    ]


def _assigned_addresses(sandbox: Sandbox, state: State) -> set[Address]:
    """Returns the addresses of the interface, none if it does not exist."""
    if state.link is None:
        return set()
    return {item.address.ip for item in address.list_on_link(sandbox.socket, state.link)}
