"""The changes of ADD, each with the request that reverses it.

Pure functions compute them; `apply` sends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from cni.errors import CniError
from cni.result import IPConfig, Result
from kernel import route_copy, rule
from kernel.errors import KernelError
from kernel.link import Link
from kernel.route import TABLE_MAIN
from kernel.route_copy import TableRoute
from kernel.rtnl import Request, Socket
from kernel.rule import PolicyRule
from plugins.sbr import routes
from plugins.sbr.conf import SbrConf
from plugins.sbr.state import SandboxState, tables_of
from plugins.sbr.tables import Tables
from process.undo import Undo


class ReversibleRequest(NamedTuple):
    """A request, and the request that reverses it."""

    request: Request
    undo: Request


class SbrChanges(NamedTuple):
    """The changes of one attachment: tables and rules, then table main."""

    additions: list[ReversibleRequest]
    removals: list[ReversibleRequest]


def build(state: SandboxState, link: Link, conf: SbrConf, prev_result: Result, ips: Sequence[IPConfig]) -> SbrChanges:
    """Returns the changes that make the interface's traffic use a table for each address.

    What exists already is left alone, so a repeated ADD changes nothing.
    """
    tables, main = Tables(state, prev_result), state.main_routes()
    additions: list[ReversibleRequest] = []
    for ip in {ip.address.ip: ip for ip in ips}.values():
        of_version = [item for item in main if item.dst.version == ip.address.version]
        table = tables.find(ip)
        is_new = table is None and any(not routes.is_link_local(item) for item in of_version)
        if table is None:
            table = (None if is_new else tables.find_without_rule(ip)) or tables.choose()
        in_table = state.in_table(table)
        if is_new:  # routes of an earlier attachment
            additions += [_removal(item, table) for item in in_table]
            in_table = []
        existing = [item for item in in_table if item.dst.version == ip.address.version]
        missing = routes.missing_routes(link, conf, prev_result, ips, ip, of_version, existing)
        additions += [_addition(item, table, existing) for item in missing]
        additions += rules_only(state.rules, [ip], table)
    return SbrChanges(additions, _main_changes(link, conf, ips, main))


def rules_only(rules: Sequence[PolicyRule], ips: Sequence[IPConfig], table: int) -> list[ReversibleRequest]:
    """Returns the changes that add missing rules for `table`."""
    addresses = dict.fromkeys(ip.address.ip for ip in ips)
    return [
        ReversibleRequest(rule.add_request(address, table), rule.delete_request(address, table))
        for address in addresses
        if table not in tables_of(rules, address)
    ]


def apply(socket: Socket, changes: Sequence[ReversibleRequest], undo: Undo) -> None:
    """Sends the changes in one batch; raises CniError(999) with the reference plugin's text."""
    if not changes:
        return
    undo.push("restore rules and routes", partial(socket.send, *(item.undo for item in reversed(changes))))
    try:
        socket.change(*(item.request for item in changes))
    except KernelError as error:
        raise CniError(error.code, f"Failed{error.msg.removeprefix('failed')}", error.details) from error


def _main_changes(
    link: Link, conf: SbrConf, ips: Sequence[IPConfig], main: Sequence[TableRoute]
) -> list[ReversibleRequest]:
    """Returns the changes that remove the interface's routes from table main, except link-local ones and hints.

    Routes of an IP version without an address stay: no rule would lead to a table with them.
    """
    versions = {ip.address.version for ip in ips}
    hints = routes.hints(link, ips, main) if conf.add_source_hints else []
    hint_keys, main_keys = {item.key for item in hints}, {item.key for item in main}
    # Link routes last: the others need them when they are added again.
    ordered = sorted(main, key=lambda item: not any(item.gateways))
    removable = [item for item in ordered if item.dst.version in versions and not routes.is_link_local(item)]
    added = [_addition(item, TABLE_MAIN, ()) for item in hints if item.key not in main_keys]
    return added + [_removal(item, TABLE_MAIN) for item in removable if not _stays(item, conf, hint_keys)]


def _stays(item: TableRoute, conf: SbrConf, hint_keys: set[tuple[object, ...]]) -> bool:
    """Returns whether a route stays in table main: with "addSourceHints", hints and IPv4 routes without gateway."""
    return conf.add_source_hints and (item.key in hint_keys or (item.dst.version == 4 and not any(item.gateways)))


def _addition(item: TableRoute, table: int, existing: Sequence[TableRoute]) -> ReversibleRequest:
    """Returns the addition of a route; a default route replaces one with the same metric, which the undo restores."""
    if not item.is_default:
        return ReversibleRequest(route_copy.add_request(item, table), route_copy.delete_request(item, table))
    gateway = next((gateway for gateway in item.gateways if gateway), None)
    text = f"add default route to {gateway}" if gateway else f"add default route to table {table}"
    replaced = [other for other in existing if other.is_default and other.metric == item.metric]
    undo = route_copy.add_request(replaced[0], table, replace=True) if replaced else None
    request = route_copy.add_request(item, table, description=text, replace=bool(replaced))
    return ReversibleRequest(request, undo or route_copy.delete_request(item, table))


def _removal(item: TableRoute, table: int) -> ReversibleRequest:
    return ReversibleRequest(route_copy.delete_request(item, table), route_copy.add_request(item, table))
