"""Prints a network's verbs: a line for each plugin as soon as it has run, then the result.

An error is in the line of its plugin, with the hint below.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni.errors import CniError
from cni.result import Result, from_json
from podwire.networks import Network
from podwire.output import Cell, Output
from podwire.verbs.invoke import PluginOutcome

_NAME_WIDTH = 12


def print_step(out: Output, step: PluginOutcome) -> None:
    """Prints the line of one step, with its hint and stderr below."""
    end = Cell("ok", "good") if step.error is None else Cell(f"error: {step.error.msg}", "bad")
    out.print_text(end, "  ", f"{step.kind.ljust(_NAME_WIDTH)} {step.command.ljust(6)} {step.ms:8.1f} ms ")
    if step.error and step.error.details:
        out.print_text(f"  {step.error.details}", "  ")
    for text in step.stderr.splitlines():
        out.print(f"  stderr: {text}")


def print_plan(out: Output, step: PluginOutcome) -> None:
    """Prints what one step would change."""
    known = step.changes is not None or step.error
    nothing = " change nothing" if step.changes == () and not step.error else ":"
    if known:
        out.print(Cell(f"{step.kind} {step.command}", "bold"), f"would{nothing}")
    else:
        out.print(Cell(f"{step.kind} {step.command}", "bold"), f"unknown: {step.kind} is not podwire's")
    for change in step.changes or ():
        out.print(f"  {change}")
    if step.error:
        out.print(" ", Cell(f"fail: {step.error.msg}", "bad"))
        if step.error.details:
            out.print(f"    {step.error.details}")


def print_result(out: Output, value: object, network: Network) -> None:
    """Prints the interfaces and addresses of an attachment as a table."""
    version = value.get("cniVersion") if isinstance(value, Mapping) else None
    try:
        parsed = from_json(value, version if isinstance(version, str) and version else network.version)
    except CniError as error:
        out.print(f"its result cannot be read: {error.msg}")
        return
    rows = _rows(parsed)
    if rows:
        out.print_table(("INTERFACE", "WHERE", "MAC", "ADDRESS", "GATEWAY"), rows)
    for route in parsed.routes:
        out.print(f"route {route.dst}" + (f" via {route.gw}" if route.gw else ""))


def _rows(parsed: Result) -> list[tuple[str, ...]]:
    """Returns a row for each interface and further ones for its further addresses; results before 0.3.0 have none."""
    rows: list[tuple[str, ...]] = []
    for index, interface in enumerate(parsed.interfaces):
        where = interface.sandbox or "host"
        ips = [ip for ip in parsed.ips if ip.interface == index]
        first = (interface.name, where, interface.mac)
        pairs = [(str(ip.address), str(ip.gateway or "")) for ip in ips] or [("", "")]
        rows += [(*(first if number == 0 else ("", "", "")), *pair) for number, pair in enumerate(pairs)]
    known = range(len(parsed.interfaces))
    loose = [ip for ip in parsed.ips if ip.interface is None or ip.interface not in known]
    return rows + [("", "", "", str(ip.address), str(ip.gateway or "")) for ip in loose]
