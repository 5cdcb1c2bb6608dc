"""`podwire doctor`: checks the node and prints faults with their fixes.

The command only reads, except with --fix, which runs the commands that it prints.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from cni.errors import Code
from podwire.command import (
    Command,
    Context,
    ExitStatus,
    UsageError,
    add_options,
    bin_dirs,
    exit_status,
    places,
    require_root,
)
from podwire.doctor import fixing, packets
from podwire.doctor.checks import run_checks
from podwire.doctor.finding import UNSEEN, Check, Finding, Severity
from podwire.doctor.node import CheckedNode
from podwire.doctor.packets import Packets
from podwire.layers import CACHE_DIR
from podwire.output import Cell, Output, plural

_STYLES = {Severity.PROBLEM: "bad", Severity.WARNING: "warning", Severity.NOTE: "bold", Severity.OK: "good"}
_MOST_CONSEQUENCES = 4
_BAD = (Severity.PROBLEM, Severity.WARNING)
_DESCRIPTION = """\
Checks everything that the pods' network on this node depends on: net.d and the plugins it names, the kernel's
settings, the packet filter, each running attachment (its plugins' CHECK), host-local's stores, bridges and MTU, the
runtimes' directories and cache. Without --fix it changes nothing.

It predicts what the packet filter and the routes do to the pods' packets; without --fix it sends none.

Problems come first, each with its cause; what follows from it stands below it. "fix:" is a command or advice. A problem
is why pods have no network now, or why the next ADD will fail; a warning can become one; a note helps if the cause is
still unknown. Anything that could not be inspected is a note named "not-seen". docs/doctor.md explains all findings.

Exit status: 0 no problem and no warning; 1 at least one; 4 none, but not everything could be inspected (without root,
with a wrong --cache-dir, a file that cannot be read, or when time was up), so the node may or may not be healthy.

--fix shows the command of each finding and asks before it runs it (y, n, a for all, q); --yes asks nothing, and
leaves out notes. Before each command and after it, it sends packets on the paths of up to four pods, as `podwire test`
does, and checks the node: a command that did not help, that lost other packets, or that opened a closed path is undone.
What remains is printed at the end. Advice is not run.

--json: {"complete", "checks": [{"group", "name", "severity", "subject", "text", "cure", "commands", "advice",
"consequences"}]}, the worst first; severity is "problem", "warning", "note" or "ok"; commands are complete command
lines for a shell, advice is for people, cure is either of them, "" where there is none; consequences are findings that
the fix will probably end: {"name", "severity", "subject", "text"}; complete is false if anything is "not-seen"."""

Findings = Sequence[tuple[Check, Finding]]


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("network", metavar="NETWORK", nargs="?", default="", help="check only this network")
    parser.add_argument("--all", action="store_true", help="also print everything that is in order")
    parser.add_argument(
        "--fix", action="store_true", help="show the commands of the findings and run them, each after a question"
    )
    parser.add_argument("--yes", action="store_true", help="with --fix: run all commands without a question")
    add_options(parser)


def _run(context: Context, options: Namespace) -> ExitStatus:
    findings = _fix(context, options) if options.fix else _check(context, options)
    complete = all(finding.name != UNSEEN.name for _, finding in findings)
    context.out.print_json({"complete": complete, "checks": [_json(check, finding) for check, finding in findings]})
    _print(findings, context.out, everything=options.all)
    return exit_status(wrong=any(finding.severity in _BAD for _, finding in findings), complete=complete)


def _check(context: Context, options: Namespace) -> Findings:
    """Reads the node and runs all checks."""
    node = CheckedNode(
        context.plugins,
        context.env,
        places(context, options),
        bin_dirs(context, options),
        options.network,
        _directory_options(options),
    )
    node.require_network()
    try:
        return run_checks(node, context.progress.show)
    finally:
        context.progress.clear()


def _fix(context: Context, options: Namespace) -> Findings:
    """Runs the findings' commands; raises UsageError, CniError(4) without root."""
    if context.out.as_json:
        raise UsageError(Code.INVALID_ENVIRONMENT, "--fix asks and prints text, so --json cannot be used with it")
    require_root(context, "doctor --fix")
    answers = None if options.yes else sys.stdin
    directories = places(context, options)

    def send(finding: Finding) -> Packets:
        return packets.send(directories, finding)

    return fixing.fix(lambda: _check(context, options), send, context.out, answers, context.env)


def _directory_options(options: Namespace) -> list[tuple[str, str]]:
    """Returns the directory options whose values differ from the defaults."""
    cache_dirs = [("--cache-dir", path) for path in options.cache_dir if path != CACHE_DIR]
    return [("--conf-dir", options.conf_dir), ("--bin-dir", options.bin_dir), *cache_dirs]


def _json(check: Check, finding: Finding) -> dict[str, object]:
    return {
        "group": check.group,
        "name": finding.name,
        "severity": finding.severity.value,
        "subject": finding.subject,
        "text": finding.text,
        "cure": finding.fix,
        "commands": list(finding.commands),
        "advice": finding.all_advice,
        "consequences": [
            {"name": one.name, "severity": one.severity.value, "subject": one.subject, "text": one.text}
            for one in finding.consequences
        ],
    }


def _print(findings: Findings, out: Output, *, everything: bool) -> None:
    for severity in (Severity.PROBLEM, Severity.WARNING, Severity.NOTE):
        seen = [one for one in findings if one[1].severity == severity and one[1].name != UNSEEN.name]
        for fix in dict.fromkeys((finding.fix, finding.advice) for _, finding in seen):
            _print_with_fix([one for one in seen if (one[1].fix, one[1].advice) == fix], out)
    unseen = [(check, finding) for check, finding in findings if finding.name == UNSEEN.name]
    _print_unseen(unseen, out)
    for group in dict.fromkeys(check.group for check, _ in findings):
        fine = [finding for check, finding in findings if check.group == group and finding.severity == Severity.OK]
        if everything:
            for finding in fine:
                out.print_text(f"{group}: {_described(finding)}", "   ", Cell("ok", "good"))
        elif fine:
            out.print(Cell("ok", "good"), f"{group}: {len(fine)} in order")
    counts = [sum(finding.severity == severity for _, finding in findings) for severity in Severity]
    words = (("problem", counts[0]), ("warning", counts[1]), ("note", counts[2]))
    summary = ", ".join(plural(number, word) for word, number in words)
    summary += "; incomplete: not everything could be inspected" if unseen else ""
    out.print(Cell(summary, "bad" if counts[0] else "warning" if counts[1] or unseen else "good"))


def _print_unseen(unseen: Findings, out: Output) -> None:
    """Prints what could not be inspected, in one line for each reason."""
    subjects: dict[tuple[str, str], list[str]] = {}
    for _, finding in unseen:
        subjects.setdefault((finding.text, finding.fix), []).append(finding.subject)
    for (text, fix), names in subjects.items():
        out.print_text(f"{', '.join(names)}: {text}", "    ", Cell("not seen", "warning"))
        out.print_text(Cell(fix, "bold"), "    ", "  fix:")


def _print_with_fix(findings: Findings, out: Output) -> None:
    """Prints findings that have the same fix, and below them the fix, once."""
    for check, finding in findings:
        name = Cell(finding.severity.value, _STYLES[finding.severity])
        out.print_text(f"{check.group}: {_described(finding)}", "    ", name)
    first = findings[0][1]
    if first.commands:
        out.print("  fix:", Cell(first.fix, "bold"))
    elif first.fix:
        out.print_text(Cell(first.fix, "bold"), "    ", "  fix:")
    if first.advice and first.advice != first.fix:
        out.print_text(first.advice, "    ", "  note:")
    also = dict.fromkeys(f"{one.name} ({one.subject})" for _, finding in findings for one in finding.consequences)
    if also:
        more = f" and {len(also) - _MOST_CONSEQUENCES} more" if len(also) > _MOST_CONSEQUENCES else ""
        text = f"  this probably also ends: {', '.join([*also][:_MOST_CONSEQUENCES])}{more}"
        out.print_text(Cell(text, "dim"), "    ")


def _described(finding: Finding) -> str:
    return f"{finding.subject}: {finding.text}" if finding.subject else finding.text


COMMAND = Command(
    "doctor",
    "check the node and print faults with their fixes",
    _DESCRIPTION,
    _run,
    _arguments,
    (
        ("podwire doctor", "why have pods no network?"),
        ("podwire doctor podwire --all", "one network, also what is in order"),
        ("podwire doctor --fix", "repair the faults, one after the other"),
        ("podwire doctor --json", "for a program"),
    ),
)
