"""What a check is and what it finds.

One rule: whatever can be told is declared as a Fault beside the check that tells it, so that the manual lists all of
them; a fault that is told is true, and its cure cures it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from podwire.doctor.node import Node


class Severity(Enum):
    """How bad it is: a note is for who looks for a reason, a warning can become a problem, a problem is one now."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"
    OK = "ok"


@dataclass(frozen=True)
class Finding:
    """One fault or remark: the object (`subject`), its state, and the command or key that repairs it.

    `objects` are the parts of the node (interfaces above all) that have the fault, `behind` those that a consequence
    depends on. A consequence of another finding is left out: its repair would be a second one for the same fault.
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
    """Something that a check can find; `meaning` and `cure` are for the manual."""

    name: str
    severity: Severity
    meaning: str
    fix: str

    def finding(
        self, subject: str, text: str, fix: str = "", *, objects: Iterable[str] = (), behind: Iterable[str] = ()
    ) -> Finding:
        """Returns the finding: the fault in `subject`."""
        return Finding(self.severity, self.name, subject, text, fix, tuple(objects), tuple(behind))


@dataclass(frozen=True)
class Check:
    """One check: `look` yields what is wrong, and `fine` is said when it yields nothing.

    It may also yield findings made by `ok_finding`, each for one thing that is in order.
    """

    group: str
    name: str
    ok_text: str
    run: Callable[[Node], Iterable[Finding]]
    faults: tuple[Fault, ...]


def ok_finding(name: str, subject: str, text: str) -> Finding:
    """Returns what tells of one thing that it is in order."""
    return Finding(Severity.OK, name, subject, text)


UNSEEN = Fault(
    "not-seen",
    Severity.NOTE,
    "something could not be looked at: whether anything is wrong there is not known, and the exit status is 4",
    "call it as root, in the host's own namespaces",
)


def without_consequences(found: Iterable[tuple[Check, Finding]]) -> list[tuple[Check, Finding]]:
    """Returns the findings without the consequences of others, so that each fault has one repair."""
    every = list(found)
    causes = {name for _, finding in every for name in finding.objects}
    return [(check, finding) for check, finding in every if causes.isdisjoint(finding.behind)]
