"""`podwire selftest`: tries this executable in private namespaces, and compares the machine's state."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Mapping

from cni.errors import CniError, Code
from kernel.private_node import OriginalNamespaces
from podwire.command import Command, Context, ExitStatus, add_json, exit_status, require_root
from podwire.output import Cell, Output, plural
from podwire.selftest import facts, machine_state, run
from podwire.selftest.node import PrivateNode
from podwire.selftest.run import FAILED, PASSED, SKIPPED, Report
from podwire.selftest.trials import list_trials
from process.version import __version__

_STYLES = {PASSED: "good", FAILED: "bad", SKIPPED: "warning"}
_VERBS = ("ADD", "CHECK", "DEL", "GC", "STATUS")
_SEND = (
    "To send this result: podwire selftest --json > selftest.json, and attach the file to an issue of the project; "
    'it names no host and no address, except in "changes"'
)


def _run(context: Context, options: Namespace) -> ExitStatus:
    require_root(context, "selftest")
    _require_executable()
    start = time.monotonic()
    described = {"podwire": __version__, **facts.read_facts()}
    _print_facts(context.out, described)
    modules, before, origin = facts.list_modules(), machine_state.read_state(), OriginalNamespaces()
    try:
        reports = _run_trials(context, PrivateNode.enter(("podwire", *context.plugins)))
    finally:
        origin.enter()
    differences = sorted(machine_state.read_state() ^ before)
    passed = not any(report.outcome == FAILED for report in reports)
    document: dict[str, object] = {
        **described,
        "networks": [report.to_json() for report in reports],
        "loadedModules": sorted(facts.list_modules() - modules),
        "changes": differences,
        "passed": passed,
        "seconds": round(time.monotonic() - start, 1),
    }
    context.out.print_json(document)
    _print_end(context.out, reports, document, differences)
    return exit_status(wrong=not passed, complete=not differences)


def _require_executable() -> None:
    """Raises CniError(4) if this process is Python: the node's plugins are names of this process's executable."""
    if os.path.basename(os.readlink("/proc/self/exe")).startswith("python"):
        hint = "build it: make binaries, then dist/bin/podwire selftest"
        raise CniError(Code.INVALID_ENVIRONMENT, "selftest tries the executable, and this is Python", hint)


def _run_trials(context: Context, node: PrivateNode) -> list[Report]:
    """Runs the trials and prints each when it ends."""
    reports = []
    for trial in list_trials(ipv6=node.has_ipv6):
        report = run.run(trial, node)
        reports.append(report)
        _print_report(context.out, report)
    return reports


def _print_facts(out: Output, described: Mapping[str, object]) -> None:
    for name, value in described.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        out.print(f"{name:<15}", text or "-")


def _print_report(out: Output, report: Report) -> None:
    out.print()
    reason = f": {report.reason}" if report.reason else ""
    out.print(Cell(report.trial.name, "bold"), Cell(f"{report.outcome}{reason}", _STYLES[report.outcome]))
    if report.outcome != SKIPPED:
        kinds = dict.fromkeys(kind for kind, _ in report.ms)
        rows = [[kind, *(_format_ms(report, kind, verb) for verb in _VERBS)] for kind in kinds]
        out.print_table(["MEDIAN ms", *_VERBS], rows)
    for one in report.measurements:
        out.print(f"{one.value:8.2f} {one.unit}", one.what)
    out.stream.flush()  # a reader at the end of a pipe sees the progress, too


def _format_ms(report: Report, kind: str, verb: str) -> str:
    values = report.ms.get((kind, verb))
    return f"{run.median(values):.1f}" if values else "-"


def _print_end(out: Output, reports: list[Report], document: Mapping[str, object], differences: list[str]) -> None:
    out.print()
    if differences:
        out.print(
            Cell("The machine's state differs from the state before; another program may have changed it:", "bad")
        )
        for line in differences:
            out.print(f"  {line}")
    else:
        out.print(Cell("The machine is unchanged: links, addresses, routes, rules, settings, mounts, files.", "good"))
    modules = document["loadedModules"]
    if isinstance(modules, list) and modules:
        out.print(f"The kernel has loaded modules, as it does for any program: {', '.join(modules)}")
    counts = {outcome: sum(report.outcome == outcome for report in reports) for outcome in _STYLES}
    summary = ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number)
    out.print(Cell(f"{plural(len(reports), 'network')}: {summary}, in {document['seconds']} s", "bold"))
    out.print(_SEND)


COMMAND = Command(
    "selftest",
    "try every plugin on this machine, in private namespaces",
    "Creates a node, a network around it and pods in private network and mount namespaces; runs ADD, CHECK, GC, DEL\n"
    "and STATUS of every plugin, with real packets: ping, TCP through a host port, masquerading, a limit. Prints the\n"
    "median time of each verb. It takes some ten seconds, and needs root and this file only: no other program, no\n"
    "network. A plugin that cannot work on this machine is skipped, with the reason that its STATUS gives.\n\n"
    "Nothing on the machine is changed: the state before and after is compared. The kernel deletes the namespaces\n"
    "when the command ends, also if it is killed. It may load modules, which are printed.\n\n"
    "Exit status: 0; 1 when a plugin failed or packets were lost; 4 when the machine's state has changed meanwhile,\n"
    "which on a busy node is another program's work: the changes are printed.\n\n"
    '--json: {"podwire", "kernel", "machine", "cpu", "cpus", "memoryMiB", "pageBytes", "distribution", "product",\n'
    '"networkDrivers", "programs", "networks": [{"network", "plugins", "outcome", "reason", "verbs": [{"plugin",\n'
    '"command", "calls", "leastMs", "medianMs"}], "packets": [{"what", "value", "unit"}]}], "loadedModules",\n'
    '"changes", "passed", "seconds"}; outcome is "passed", "failed" or "skipped".',
    _run,
    add_json,
    (
        ("podwire selftest", "does podwire work on this machine, and how fast?"),
        ("podwire selftest --json > selftest.json", "the same, as a file to send"),
    ),
)
