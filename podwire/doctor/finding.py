"""The checks of `podwire doctor`, the faults they can find, and their findings.

Every possible finding is declared as a Fault beside its check, so that the manual lists all of them; a
reported fault is real, and its fix repairs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from podwire.doctor.node import Node


class Severity(Enum):
    """The severity of a finding: a problem exists now, a warning can become one, a note may help to find a cause."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"
    OK = "ok"


@dataclass(frozen=True)
class Finding:
    """A finding: the object (`subject`), its state and cause (`text`), and `fix`: a command to paste, or advice.

    `objects` are the parts of the node (mostly interfaces) that have the fault, `behind` the parts that explain it if
    they have a fault themselves: then the finding is left out, as its fix would be a second one for the same fault.
    """

    severity: Severity
    name: str
    subject: str
    text: str
    fix: str = ""
    objects: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fault:
    """A fault that a check can find; `meaning` and `fix` are for the manual."""

    name: str
    severity: Severity
    meaning: str
    fix: str

    def finding(
        self, subject: str, text: str, fix: str = "", *, objects: Iterable[str] = (), behind: Iterable[str] = ()
    ) -> Finding:
        """Returns a finding of this fault in `subject`."""
        return Finding(self.severity, self.name, subject, text, fix, tuple(objects), tuple(behind))


@dataclass(frozen=True)
class Check:
    """A check: `run` yields its findings; if it yields none, `ok_text` is reported.

    It may also yield findings built by `ok_finding`, each for one object that is in order.
    """

    group: str
    name: str
    ok_text: str
    run: Callable[[Node], Iterable[Finding]]
    faults: tuple[Fault, ...]


def ok_finding(name: str, subject: str, text: str) -> Finding:
    """Returns a finding that reports one object as in order."""
    return Finding(Severity.OK, name, subject, text)


UNSEEN = Fault(
    "not-seen",
    Severity.NOTE,
    "something could not be read: whether anything is wrong there is unknown, and the exit status is 4",
    "run podwire as root, in the host's own namespaces",
)


def without_consequences(findings: Iterable[tuple[Check, Finding]]) -> list[tuple[Check, Finding]]:
    """Returns the findings without the consequences of others, so that each fault has one fix."""
    every = list(findings)
    causes = {name for _, finding in every for name in finding.objects}
    return [(check, finding) for check, finding in every if causes.isdisjoint(finding.behind)]
