"""Generates the table of docs/doctor.md from the texts of doctor's checks; as a program, writes it into the page.

One rule: the text between the marks is generated; everything else in the file is written by hand.
"""

import sys
from pathlib import Path

from podwire.doctor.checks import CHECKS
from podwire.doctor.finding import UNSEEN, Fault
from tests.support.binaries import ROOT
from tests.support.markdown import with_part

PAGE = ROOT / "docs" / "doctor.md"
START, END = "<!-- findings -->\n", "<!-- end of findings -->\n"


def table() -> str:
    """Returns the findings of all checks, a table for each group."""
    parts = []
    for group in dict.fromkeys(check.group for check in CHECKS):
        faults = [fault for check in CHECKS if check.group == group for fault in check.faults]
        parts.append(f"### {group.capitalize()}\n\n{_rows(faults)}")
    return "\n".join([*parts, f"### Any group\n\n{_rows([UNSEEN])}"])


def with_table(text: str) -> str:
    """Returns the page with the current table."""
    return with_part(text, START, f"\n{table()}\n", END)


def _rows(faults: list[Fault]) -> str:
    lines = ["| finding | severity | meaning |", "|---|---|---|"]
    lines += [f"| `{one.name}` | {one.severity.value} | {one.meaning} |" for one in faults]
    return "\n".join(lines) + "\n"


def main(page: Path = PAGE) -> int:
    """Writes the table into the page."""
    page.write_text(with_table(page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
