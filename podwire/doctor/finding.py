"""The checks of `podwire doctor`, the faults they can find, and their findings.

Every possible finding is declared as a Fault beside its check, so that the manual lists all of them; a
reported fault is real, and its fix repairs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum

from podwire.doctor.node import CheckedNode
from podwire.doctor.shell_command import ShellCommand

_COUNTERS = re.compile(r"packets \d+ bytes \d+")


class Severity(Enum):
    """The severity of a finding: a problem exists now, a warning can become one, a note may help to find a cause."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"
    OK = "ok"


@dataclass(frozen=True)
class Finding:
    """A finding: the object (`subject`), its state and cause (`text`), and `fix`: a `ShellCommand`, or advice.

    `objects` are the parts of the node (mostly interfaces) that have the fault, `behind` the parts that explain it if
    they have a fault themselves: then the finding is one of the cause's `consequences`, as its fix would be a second
    one for the same fault. `advice` stands beside a command: what else to do, for instance to make it permanent.
    """

    severity: Severity
    name: str
    subject: str
    text: str
    fix: str = ""
    objects: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    advice: str = ""
    consequences: tuple[Finding, ...] = ()

    @property
    def identity(self) -> tuple[str, str, str]:
        """A key that stays equal when the text is reworded: name, subject, objects, and the rule at its end."""
        _, _, cause = self.text.rpartition(": ")
        end = cause if cause != self.text else str(self.fix)
        return self.name, self.subject, _COUNTERS.sub("", ", ".join((*self.objects, end)))

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that repair it, to be run in a shell."""
        return (str(self.fix),) if isinstance(self.fix, ShellCommand) else ()

    @property
    def all_advice(self) -> str:
        """The advice beside the commands, or instead of them."""
        return self.advice or ("" if isinstance(self.fix, ShellCommand) else self.fix)


@dataclass(frozen=True)
class Fault:
    """A fault that a check can find; `meaning` is for the manual."""

    name: str
    severity: Severity
    meaning: str

    def finding(
        self,
        subject: str,
        text: str,
        fix: str = "",
        *,
        objects: Iterable[str] = (),
        behind: Iterable[str] = (),
        advice: str = "",
        severity: Severity | None = None,
    ) -> Finding:
        """Returns a finding of this fault in `subject`, with the fault's severity unless another one is given."""
        return Finding(severity or self.severity, self.name, subject, text, fix, tuple(objects), tuple(behind), advice)


@dataclass(frozen=True)
class Check:
    """A check: `run` yields its findings; if it yields none, `ok_text` is reported.

    It may also yield findings built by `ok_finding`, each for one object that is in order.
    """

    group: str
    name: str
    ok_text: str
    run: Callable[[CheckedNode], Iterable[Finding]]
    faults: tuple[Fault, ...]


def ok_finding(name: str, subject: str, text: str) -> Finding:
    """Returns a finding that reports one object as in order."""
    return Finding(Severity.OK, name, subject, text)


UNSEEN_FIX = "run podwire as root, in the host's own namespaces"
UNSEEN = Fault(
    "not-seen",
    Severity.NOTE,
    "something could not be read: whether anything is wrong there is unknown, and the exit status is 4",
)


def fold_consequences(findings: Iterable[tuple[Check, Finding]]) -> list[tuple[Check, Finding]]:
    """Returns the findings, each consequence within the first finding that explains it: each fault has one fix."""
    every = list(findings)
    by_object: dict[str, int] = {}
    for number, (_, finding) in enumerate(every):
        for name in finding.objects:
            by_object.setdefault(name, number)
    causes = [
        next((by_object[name] for name in finding.behind if by_object.get(name, number) != number), number)
        for number, (_, finding) in enumerate(every)
    ]
    folded: dict[int, list[Finding]] = {}
    for number, (_, finding) in enumerate(every):
        if (root := _root(causes, number)) != number:
            folded.setdefault(root, []).append(finding)
    return [
        (check, replace(finding, consequences=tuple(folded.get(number, ()))))
        for number, (check, finding) in enumerate(every)
        if _root(causes, number) == number
    ]


def _root(causes: list[int], number: int) -> int:
    """Returns the first cause of a finding, the smallest of those that explain each other."""
    seen = [number]
    while (cause := causes[seen[-1]]) not in seen:
        seen.append(cause)
    return seen[-1] if cause == seen[-1] else min(seen[seen.index(cause) :])
