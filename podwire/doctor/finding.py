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
    """One thing that was found: of what (`subject`), what it is, and the command or key that mends it."""

    severity: Severity
    name: str
    subject: str
    text: str
    cure: str = ""


@dataclass(frozen=True)
class Fault:
    """Something that a check can find; `meaning` and `cure` are for the manual."""

    name: str
    severity: Severity
    meaning: str
    cure: str

    def found(self, subject: str, text: str, cure: str = "") -> Finding:
        """Returns the finding: the fault in `subject`."""
        return Finding(self.severity, self.name, subject, text, cure)


@dataclass(frozen=True)
class Check:
    """One check: `look` yields what is wrong, and `fine` is said when it yields nothing.

    It may also yield findings made by `fine_one`, each for one thing that is in order.
    """

    group: str
    name: str
    fine: str
    look: Callable[[Node], Iterable[Finding]]
    faults: tuple[Fault, ...]


def fine_one(name: str, subject: str, text: str) -> Finding:
    """Returns what tells of one thing that it is in order."""
    return Finding(Severity.OK, name, subject, text)
