"""What became of a network's verbs, for a person: a line for each plugin as soon as it is done, then the result.

One rule: an error stands in the line of the plugin that met it, and what to do about it below.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni.errors import CniError
from cni.result import Result, from_json
from podwire.networks import Network
from podwire.output import Cell, Output
from podwire.verbs.invoke import Step

_NAME_WIDTH = 12


def print_step(out: Output, done: Step) -> None:
    """Prints the line of one call, and below what else is known of it; nothing with --json."""
    if out.as_json:
        return
    end = Cell("ok", "good") if done.error is None else Cell(f"error: {done.error.msg}", "bad")
    out.print(done.kind.ljust(_NAME_WIDTH), done.command.ljust(6), f"{done.ms:8.1f} ms ", end)
    if done.error and done.error.details:
        out.print(f"  {done.error.details}")
    for text in done.stderr.splitlines():
        out.print(f"  it said: {text}")


def print_plan(out: Output, done: Step) -> None:
    """Prints what one call would change; nothing with --json."""
    if out.as_json:
        return
    known = done.changes is not None or done.error
    nothing = " change nothing" if done.changes == () and not done.error else ":"
    if known:
        out.print(Cell(f"{done.kind} {done.command}", "bold"), f"would{nothing}")
    else:
        out.print(Cell(f"{done.kind} {done.command}", "bold"), f"cannot be told: {done.kind} is not podwire's")
    for change in done.changes or ():
        out.print(f"  {change}")
    if done.error:
        out.print(" ", Cell(f"fail: {done.error.msg}", "bad"))
        if done.error.details:
            out.print(f"    {done.error.details}")


def print_result(out: Output, value: object, network: Network) -> None:
    """Prints the interfaces and addresses of an attachment as a table."""
    own = value.get("cniVersion") if isinstance(value, Mapping) else None
    try:
        found = from_json(value, own if isinstance(own, str) and own else network.version)
    except CniError as error:
        out.print(f"its result cannot be read: {error.msg}")
        return
    rows = _rows(found)
    if rows:
        out.print_table(("INTERFACE", "WHERE", "MAC", "ADDRESS", "GATEWAY"), rows)
    for route in found.routes:
        out.print(f"route {route.dst}" + (f" via {route.gw}" if route.gw else ""))


def _rows(found: Result) -> list[tuple[str, ...]]:
    """Returns a row for each interface and further ones for its further addresses; results before 0.3.0 have none."""
    rows: list[tuple[str, ...]] = []
    for index, interface in enumerate(found.interfaces):
        where = interface.sandbox or "host"
        own = [ip for ip in found.ips if ip.interface == index]
        first = (interface.name, where, interface.mac)
        pairs = [(str(ip.address), str(ip.gateway or "")) for ip in own] or [("", "")]
        rows += [(*(first if number == 0 else ("", "", "")), *pair) for number, pair in enumerate(pairs)]
    known = range(len(found.interfaces))
    loose = [ip for ip in found.ips if ip.interface is None or ip.interface not in known]
    return rows + [("", "", "", str(ip.address), str(ip.gateway or "")) for ip in loose]
