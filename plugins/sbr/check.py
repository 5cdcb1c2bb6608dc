"""CHECK: each address has its rule, and the rule's table the routes of the address.

Accepts what ADD of this plugin creates, and what ADD of the reference plugin creates.
"""

from __future__ import annotations

from collections.abc import Sequence

from attachment.prev_result import RECREATE_HINT
from cni.errors import CniError, internal
from cni.result import IPConfig, Result
from kernel.link import Link
from kernel.route_copy import TableRoute
from kernel.rule import Rule
from plugins.sbr import routes
from plugins.sbr.conf import SbrConf
from plugins.sbr.state import State, tables_of

_HINT = f"restore it with podwire repair, or {RECREATE_HINT}"


def check_rules(rules: Sequence[Rule], ips: Sequence[IPConfig], table: int) -> None:
    """Checks that each address has a rule for `table`, the configured one; raises CniError(999)."""
    for ip in ips:
        if table not in tables_of(rules, ip.address.ip):
            raise internal(f"Expected rule from {ip.address.ip} lookup {table} is missing", _HINT)


def check_tables(state: State, link: Link, conf: SbrConf, prev_result: Result, ips: Sequence[IPConfig]) -> None:
    """Checks that each address has a rule whose table has its subnet and default route; raises CniError(999).

    A default route may have another gateway than prevResult names, but not another one than "gateways".
    """
    for ip in ips:
        failure: CniError | None = internal(f"Expected rule from {ip.address.ip} is missing", _HINT)
        for table in tables_of(state.rules, ip.address.ip):
            version = ip.address.version
            through = [item for item in state.in_table(table) if item.dst.version == version and item.is_through(link)]
            failure = _failure(through, table, conf, ip, routes.expected_gateway(conf, prev_result, ips, ip))
            if failure is None:
                break
        if failure:
            raise failure


def _failure(
    through: Sequence[TableRoute], table: int, conf: SbrConf, ip: IPConfig, gateway: object
) -> CniError | None:
    """Returns the error for a route that the table lacks, None if it is complete."""
    subnet, configured = ip.address.network, conf.gateway(ip.address.version)
    if subnet.prefixlen < subnet.max_prefixlen and not any(item.dst == subnet for item in through):
        return internal(f"Expected route to {subnet} in table {table} is missing", _HINT)
    defaults = [item for item in through if item.is_default]
    if configured:
        defaults = [item for item in defaults if item.gateways == (configured,)]
    if gateway and not defaults:
        return internal(f"Expected default route via {gateway} in table {table} is missing", _HINT)
    return None
