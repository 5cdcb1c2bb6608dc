"""Runs the commands of doctor's findings, one after the other, each after the operator's consent.

After each command the node is checked again: a repair often ends further findings. A command runs once at most.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from podwire.doctor.finding import Check, Finding, Severity
from podwire.output import Cell, Output
from process import child
from process.child import Command

Findings = Sequence[tuple[Check, Finding]]

_LIMIT_S = 60.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_QUESTION = "run it? [y]es, [n]o, [a]ll, [q]uit: "
_SHELL, _TOOL = "/bin/sh", "podwire"


def fix(check: Callable[[], Findings], out: Output, answers: TextIO | None, env: Mapping[str, str]) -> Findings:
    """Runs the commands of all findings; returns the findings afterwards.

    `check` runs doctor's checks. `answers` are the operator's, a line for each question; None: all are yes, and the
    commands of notes, which may be no faults, are left out.
    """
    seen: set[str] = set()
    while True:
        findings = check()
        candidates = [one for _, one in findings if answers is not None or one.severity is not Severity.NOTE]
        current = next(
            ((finding, command) for finding in candidates for command in finding.commands if command not in seen), None
        )
        if current is None:
            return findings
        finding, command = current
        seen.add(command)
        out.print(Cell(finding.severity.value, "bold"), f"{finding.subject}: {finding.text}")
        out.print("  command:", Cell(command, "bold"))
        if finding.advice:
            out.print("  note:", finding.advice)
        if answers is not None:
            answer = _ask(out, answers)
            if answer == "q":
                return findings
            if answer == "a":
                answers = None
            elif answer != "y":
                continue
        _run(command, out, env)


def _ask(out: Output, answers: TextIO) -> str:
    """Returns the first letter of the operator's answer; "q" at the end of the input."""
    out.stream.write(f"  {_QUESTION}")
    out.stream.flush()
    line = answers.readline()
    return line.strip().lower()[:1] if line else "q"


def _run(command: str, out: Output, env: Mapping[str, str]) -> None:
    script = f'{_TOOL}() {{ "$PODWIRE_FILE" "$@"; }}\n{command}'
    variables = {"PATH": _PATH, **env, "PODWIRE_FILE": _program_file()}
    (outcome,) = child.run(Command((_SHELL, "-ec", script), variables, capture_stderr=True), limit_s=_LIMIT_S)
    for stream in (outcome.stdout, outcome.stderr):
        for line in stream.decode("utf-8", "replace").splitlines():
            out.print("   ", line)
    out.print("  done" if outcome.status == 0 else Cell(f"  failed: {outcome.ending}", "bad"))


def _program_file() -> str:
    """Returns the path of this program."""
    path = os.readlink("/proc/self/exe")
    return path if os.path.basename(path) == _TOOL else os.path.abspath(sys.argv[0])
