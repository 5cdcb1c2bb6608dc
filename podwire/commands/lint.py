"""`podwire lint`: checks the network configurations before a pod is started.

This module only reads and prints; the checks are in podwire/lint.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter

from cni.errors import CniError, Code
from cni.gojson import without_surrogates
from podwire.command import Command, Context, ExitStatus, add_bin_dir, add_conf_dir, add_json, bin_dirs, conf_dir
from podwire.lint import directory, source
from podwire.lint.directory import LintResult
from podwire.lint.source import LintSeverity, SourceFile
from podwire.output import Cell, plural
from process import files

_STYLES = {LintSeverity.ERROR: "bad", LintSeverity.WARNING: "warning", LintSeverity.NOTE: "dim"}
_BAD = (LintSeverity.ERROR, LintSeverity.WARNING)
_MOST_BYTES = 32 << 20  # the longest file for --nad


def _run(context: Context, options: Namespace) -> ExitStatus:
    places = () if options.no_bin_dir else tuple(one for one in bin_dirs(context, options) if os.path.isdir(one))
    default = [] if options.nad else [conf_dir(context, options)]
    linted = [_lint(path, context, places) for path in options.paths or default]
    if options.nad:
        linted.append(directory.lint_definitions(_read(options.nad), options.nad, context.plugins, places))
    counts = Counter(finding.severity for one in linted for page in one.files for finding in page.findings)
    is_empty = any(one.is_directory and one.winner is None for one in linted)
    _print_json(context, linted, counts)
    _print(context, linted, counts)
    counted = tuple(LintSeverity) if options.strict else _BAD
    return ExitStatus.WRONG if is_empty or any(counts[severity] for severity in counted) else ExitStatus.FINE


def _lint(path: str, context: Context, places: tuple[str, ...]) -> LintResult:
    if os.path.exists(path) and not os.path.isdir(path):
        return directory.lint_file(path, context.plugins, places)
    return directory.lint_directory(path, context.plugins, places)


def _read(path: str) -> bytes:
    """Returns the content of a file, of standard input for "-"; raises CniError(5)."""
    try:
        return sys.stdin.buffer.read(_MOST_BYTES) if path == "-" else files.read(path, _MOST_BYTES)
    except OSError as error:
        raise CniError(Code.IO_FAILURE, f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CniError(Code.IO_FAILURE, f"cannot read {path}: {error}") from error


def _print(context: Context, linted: list[LintResult], counts: Counter[LintSeverity]) -> None:
    for page in (page for one in linted for page in one.files):
        for finding in page.findings:
            where = f"{page.path}:{finding.line}:{finding.column}:"
            context.out.print(where, Cell(f"{finding.severity}:", _STYLES[finding.severity]), finding.text)
            if finding.hint:
                context.out.print(f"    {finding.hint}")
    for one in linted:
        if one.is_directory:
            _print_winner(context, one)
    number = sum(len(one.files) for one in linted)
    summary = ", ".join(plural(counts[severity], severity) for severity in LintSeverity if counts[severity])
    context.out.print(f"{plural(number, 'file')}: {summary or 'no findings'}")


def _print_winner(context: Context, one: LintResult) -> None:
    """Prints the network that Kubernetes' runtimes use, and those that libcni finds by name."""
    if one.winner is None or one.winner.network is None:
        context.out.print(Cell(f"{one.path}: no runtime finds a network here", "bad"))
        return
    winner, network = os.path.basename(one.winner.path), one.winner.network.name
    delegates = [each.network.name for each in source.list_delegates(one.winner) if each.network]
    pods = f' Multus attaches pods to "{delegates[0]}", and to those that their annotations name.' if delegates else ""
    context.out.print(f'Kubernetes\' runtimes use "{network}" of {winner}, the first file that can be used.{pods}')
    others = [page.network.name for page in one.files if page.network and page is not one.winner]
    if others:
        context.out.print(f"libcni also finds by name: {', '.join(dict.fromkeys(others))}")


def _print_json(context: Context, linted: list[LintResult], counts: Counter[LintSeverity]) -> None:
    files = [_file(page, one) for one in linted for page in one.files]
    totals = {f"{severity}s": counts[severity] for severity in LintSeverity}
    context.out.print_json({"files": files, **totals})


def _file(page: SourceFile, linted: LintResult) -> dict[str, object]:
    return {
        "path": without_surrogates(page.path),
        "network": page.network.name if page.network else None,
        "wins": page is linted.winner if linted.is_directory else None,
        "findings": [
            {
                "severity": str(finding.severity),
                "line": finding.line,
                "column": finding.column,
                "key": without_surrogates(finding.key),
                "text": without_surrogates(finding.text),
                "hint": without_surrogates(finding.hint),
            }
            for finding in page.findings
        ],
    }


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "paths", metavar="FILE|DIR", nargs="*", help="files or directories to check (the directory of --conf-dir)"
    )
    parser.add_argument(
        "--nad",
        metavar="FILE",
        default="",
        help="check NetworkAttachmentDefinitions, printed by kubectl get net-attach-def -A -o json (-: standard input)",
    )
    add_conf_dir(parser)
    add_bin_dir(parser)
    parser.add_argument("--no-bin-dir", action="store_true", help="do not check whether the plugins are installed")
    parser.add_argument("--strict", action="store_true", help="exit with 1 also for notes")
    add_json(parser)


_DESCRIPTION = """\
Reads network configurations as the runtimes and the plugins do, and prints each fault with its position and the
correction. It changes nothing and starts no process.

  error    a runtime or a plugin will refuse it: pods do not start
  warning  it works, but almost certainly not as intended: a misspelt key, an option without effect, two networks that
           allocate the same addresses
  note     worth knowing

For a directory it also prints which file wins: Kubernetes' runtimes (containerd, CRI-O) use the first file by name;
podman, nerdctl and cnitool find a network by its name. Keys of other vendors' plugins are not checked. Networks inside
Multus' file are checked as a file is; those of NetworkAttachmentDefinitions with --nad, under their names.

Exit status: 0 without errors and warnings, 1 with some.

--json: {"files": [{"path", "network", "wins", "findings": [{"severity", "line", "column", "key", "text", "hint"}]}],
"errors": N, "warnings": N, "notes": N}. "network" is null if no runtime can use the file; "wins" is null for a
file that was named as an argument."""

COMMAND = Command(
    "lint",
    "check the network configurations",
    _DESCRIPTION,
    _run,
    _arguments,
    (
        ("podwire lint", "all networks of this node, and the one that pods get"),
        ("podwire lint --no-bin-dir conf/*.conflist", "single files, without a node, as in continuous integration"),
        ("kubectl get net-attach-def -A -o json | podwire lint --nad -", "Multus' networks of the whole cluster"),
        ("podwire lint --json /etc/cni/net.d", "for a program"),
    ),
)
