"""Runs the commands of doctor's findings, one after the other, each after the operator's consent, and verifies each.

Before a command and after it packets are sent and the node is checked: a command that did not help, or that opened what
was closed, is undone (verdict.py). A command runs once at most, and so does the command of a finding, whatever its
words are the next time. A signal leaves either the kept command or the state before it, and the output says which.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

from cni.errors import CniError
from podwire.doctor.finding import Check, Finding, Severity
from podwire.doctor.packets import Packets
from podwire.doctor.undo import CommandUndo
from podwire.doctor.verdict import Findings, FixTrial, shorten
from podwire.output import Cell, Output, plural
from process import child, signals
from process.child import ChildCommand, Outcome

_LIMIT_S = 60.0
_MOST_COMMANDS = 100
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_QUESTION = "run it? [y]es, [n]o, [a]ll, [q]uit: "
_SHELL, _TOOL = "/bin/sh", "podwire"

Send = Callable[[Finding], Packets]


def fix(
    check: Callable[[], Findings], send: Send, out: Output, answers: TextIO | None, env: Mapping[str, str]
) -> Findings:
    """Runs the commands of all findings; returns the findings afterwards.

    `check` runs doctor's checks, `send` sends the packets of a finding. `answers` are the operator's, a line for each
    question; None: all are yes, and the commands of notes, which may be no faults, are left out. Raises Terminated.
    """
    signals.block()
    return _Repair(check, send, out, answers, env).run()


class _Repair:
    """The repair of a node: what has been tried."""

    def __init__(
        self, check: Callable[[], Findings], send: Send, out: Output, answers: TextIO | None, env: Mapping[str, str]
    ) -> None:
        self._check = check
        self._send = send
        self._out = out
        self._answers = answers
        self._env = env
        self._tried: set[object] = set()

    def run(self) -> Findings:
        """Runs the commands until no new one is left."""
        findings = self._check()
        for _ in range(_MOST_COMMANDS):
            current = self._next(findings)
            if current is None:
                break
            check, finding, command = current
            self._tried |= {command, finding.identity}
            self._show(finding, command)
            answer = self._ask()
            if answer == "q":
                break
            if answer == "y":
                findings = self._try(check, finding, command, findings)
        return findings

    def _next(self, findings: Findings) -> tuple[Check, Finding, str] | None:
        for check, finding in findings:
            if self._answers is None and finding.severity is Severity.NOTE:
                continue
            for command in finding.commands:
                if command not in self._tried and finding.identity not in self._tried:
                    return check, finding, command
        return None

    def _show(self, finding: Finding, command: str) -> None:
        self._out.print_text(f"{finding.subject}: {finding.text}", "    ", Cell(finding.severity.value, "bold"))
        self._out.print("  command:", Cell(command, "bold"))
        if finding.advice:
            self._out.print_text(finding.advice, "    ", "  note:")

    def _ask(self) -> str:
        """Returns the operator's answer, "y", "n" or "q"; "q" at the end of the input."""
        if self._answers is None:
            return "y"
        self._out.stream.write(f"  {_QUESTION}")
        self._out.stream.flush()
        with signals.unblocked():
            line = self._answers.readline()
        if not line:
            self._out.stream.write("\n")
        answer = line.strip().lower()[:1] if line else "q"
        if answer == "a":
            self._answers = None
        return "y" if answer == "a" else answer if answer in ("y", "q") else "n"

    def _try(self, check: Check, finding: Finding, command: str, findings: Findings) -> Findings:
        """Runs a command, and undoes it if it did not help or opened what was closed; returns the findings then."""
        try:
            before = self._send(finding)
            undo = CommandUndo(command)
        except signals.Terminated:
            self._print("interrupted: the command was not run")
            raise
        self._print(f"packets before: {_describe(before)}")
        try:
            self._run(command)
            undo.compute()
            after, now = self._send(finding), self._check()
            self._print(f"packets after: {_describe(after)}")
        except signals.Terminated:
            self._print(f"interrupted: {self._undo(undo)}")
            raise
        except (CniError, OSError) as error:
            with signals.ignored():
                self._print(Cell(f"{self._undo(undo)}: the state after it cannot be read: {error}", "bad"))
            return self._check()
        verdict = FixTrial(check, finding, command, before, after, findings, now).judge()
        if verdict.is_kept:
            self._print(f"kept: {verdict.reason}")
            return now
        with signals.ignored():
            self._print(Cell(f"{self._undo(undo)}: {verdict.reason}", "bad"))
        return self._check()

    def _run(self, command: str) -> None:
        outcome = self._execute(command)
        for stream in (outcome.stdout, outcome.stderr):
            for line in stream.decode("utf-8", "replace").splitlines():
                self._out.print("   ", line)
        self._print("done" if outcome.status == 0 else Cell(f"failed: {outcome.ending}", "bad"))

    def _undo(self, undo: CommandUndo) -> str:
        """Restores the state before the command, if that is possible; returns which state the node has."""
        if not undo.is_complete:
            return "kept, as podwire cannot undo it"
        try:
            for command in undo.compute():
                outcome = self._execute(command)
                if outcome.status:
                    stderr = outcome.stderr.decode("utf-8", "replace").strip()
                    return f"undone in part ({command}: {stderr or outcome.ending})"
            return "undone" if undo.is_restored else "undone in part (the state differs from that before)"
        except (CniError, OSError) as error:
            return f"kept, as it could not be undone ({error})"

    def _execute(self, command: str) -> Outcome:
        script = f'{_TOOL}() {{ "$PODWIRE_FILE" "$@"; }}\n{command}'
        file = _program_file()
        # The directory of the plugins may be on the PATH: one of them is called bridge, as iproute2's program.
        path = [one for one in self._env.get("PATH", _PATH).split(":") if one.rstrip("/") != os.path.dirname(file)]
        variables = {**self._env, "PATH": ":".join(path) or _PATH, "PODWIRE_FILE": file}
        try:
            (outcome,) = child.run(
                ChildCommand((_SHELL, "-ec", script), variables, capture_stderr=True), limit_s=_LIMIT_S
            )
        except TimeoutError as error:
            return Outcome(-signal.SIGKILL, b"", str(error).encode())
        return outcome

    def _print(self, text: str | Cell) -> None:
        self._out.print(" ", text)
        self._out.stream.flush()


def _describe(packets: Packets) -> str:
    if packets.unsent:
        return f"none sent: {packets.unsent}"
    number = plural(len(packets.meant), "path")
    return (
        f"{len(packets.lost)} of {number} lose packets: {shorten(packets.lost)}"
        if packets.lost
        else f"{number}, none loses packets"
    )


def _program_file() -> str:
    """Returns the path of this program."""
    path = os.readlink("/proc/self/exe")
    return path if os.path.basename(path) == _TOOL else os.path.abspath(sys.argv[0])
