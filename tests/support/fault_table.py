"""The faults that `podwire doctor` must find (tests/data/faults.toml); as a program, writes docs/faults.md.

One rule: a fault is one change that an operator, another program or the kernel makes on real nodes.
"""

import sys
import tomllib
from dataclasses import dataclass

from tests.support.binaries import ROOT
from tests.support.markdown import with_part

PAGE = ROOT / "docs" / "faults.md"
START, END = "<!-- faults -->\n", "<!-- end of faults -->\n"
REBUILD = "rebuild"


@dataclass(frozen=True)
class Fault:
    """A fault; the file explains the keys."""

    group: str
    title: str
    shell: str
    finding: str
    others: tuple[str, ...] = ()
    undo: str = ""
    repair: bool = True
    run: bool = True
    needs: tuple[str, ...] = ()
    before: str = ""
    intended: bool = False

    @property
    def name(self) -> str:
        """The name of its test."""
        return f"{self.group}: {self.title}"


def load() -> tuple[Fault, ...]:
    """Reads the faults."""
    content = tomllib.loads((ROOT / "tests" / "data" / "faults.toml").read_text())
    undo: dict[str, str] = content["undo"]
    lists = [{key: tuple(one.get(key, ())) for key in ("needs", "others")} for one in content["fault"]]
    faults = zip(content["fault"], lists, strict=True)
    return tuple(Fault(**{"undo": undo.get(one["group"], ""), **one, **more}) for one, more in faults)


FAULTS = load()


def table() -> str:
    """Returns the table of the page."""
    lines = []
    for group in dict.fromkeys(fault.group for fault in FAULTS):
        lines += [f"### {group[0].upper()}{group[1:]}", "", "| fault | finding | fix |", "|---|---|---|"]
        for fault in FAULTS:
            if fault.group == group:
                fix = "none: intended" if fault.intended else "command" if fault.repair else "advice"
                lines.append(f"| {fault.title} | `{fault.finding}` | {fix} |")
        lines.append("")
    return "\n".join(lines)


def with_table(text: str) -> str:
    """Returns the page with the current table."""
    return with_part(text, START, f"\n{table()}\n", END)


def main() -> int:
    """Writes the table into the page."""
    PAGE.write_text(with_table(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
