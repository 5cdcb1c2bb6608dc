"""CHECK: each address has its rule, and the rule's table the routes of the address.

Accepts what ADD of this plugin creates, and what ADD of the reference plugin creates.
"""

from __future__ import annotations

from collections.abc import Sequence

from attachment.prev_result import RECREATE_HINT
from cni.address import Address, Network
from cni.errors import CniError, internal
from cni.result import IPConfig, Result
from kernel.link import Link
from kernel.route_copy import TableRoute
from kernel.rule import PolicyRule
from plugins.sbr import routes
from plugins.sbr.conf import SbrConf
from plugins.sbr.state import SandboxState, tables_of

_HINT = f"restore it with podwire repair, or {RECREATE_HINT}"


def check_rules(rules: Sequence[PolicyRule], ips: Sequence[IPConfig], table: int) -> None:
    """Checks that each address has a rule for `table`, the configured one; raises CniError(999)."""
    for ip in ips:
        if table not in tables_of(rules, ip.address.ip):
            raise internal(f"Expected rule from {ip.address.ip} lookup {table} is missing", _HINT)


def check_tables(state: SandboxState, link: Link, conf: SbrConf, prev_result: Result, ips: Sequence[IPConfig]) -> None:
    """Checks that each address has a rule whose table has its subnet, its default route and its routes of prevResult.

    A default route may have another gateway than prevResult names, but not another one than "gateways". Raises
    CniError(999).
    """
    for ip in ips:
        gateway = routes.expected_gateway(conf, prev_result, ips, ip)
        destinations = [item.dst for item in routes.result_routes(link, prev_result, ips, ip)]
        if ip.address.network.prefixlen < ip.address.max_prefixlen:
            destinations.insert(0, ip.address.network)
        failure: CniError | None = internal(f"Expected rule from {ip.address.ip} is missing", _HINT)
        for table in tables_of(state.rules, ip.address.ip):
            through = [item for item in state.in_table(table) if item.is_through(link)]
            failure = _failure(through, table, destinations, gateway, conf.gateway(ip.address.version))
            if failure is None:
                break
        if failure:
            raise failure


def _failure(
    through: Sequence[TableRoute],
    table: int,
    destinations: Sequence[Network],
    gateway: Address | None,
    configured: Address | None,
) -> CniError | None:
    """Returns the error for a route that the table lacks, None if it is complete."""
    for subnet in destinations:
        if not any(item.dst == subnet for item in through):
            return internal(f"Expected route to {subnet} in table {table} is missing", _HINT)
    if gateway is None:
        return None
    defaults = [item for item in through if item.is_default and item.dst.version == gateway.version]
    if configured:
        defaults = [item for item in defaults if item.gateways == (configured,)]
    if not defaults:
        return internal(f"Expected default route via {gateway} in table {table} is missing", _HINT)
    return None
