"""The results of upstream's tests: tests/data/kubernetes.json, and the table of docs/kubernetes.md.

One rule: the file has the outcome of the last run of all tests, and the page is written from it.

    python -m tests.kubernetes.results     # writes the table into the page
"""

import json
import re
from collections.abc import Mapping

from tests.kubernetes import e2e, plan
from tests.support.binaries import ROOT
from tests.support.markdown import DOCS, with_part

DATA = ROOT / "tests" / "data" / "kubernetes.json"
PAGE = DOCS / "kubernetes.md"
_BEGIN, _END = "<!-- results of tests/kubernetes -->\n", "<!-- end of the results -->"
_GROUP = re.compile(r"\[sig-network\] (.+?) +should ")


def write(outcomes: Mapping[str, str]) -> None:
    """Writes the outcomes of a run of all tests into the file and the page."""
    left_out = {name: reason for name in e2e.every_name() if (reason := e2e.reason_to_leave_out(name))}
    short = {name: outcome if outcome == e2e.PASSED else "failed" for name, outcome in sorted(outcomes.items())}
    body = {"kubernetes": plan.VERSION, "outcomes": short, "left_out": left_out}
    DATA.write_text(json.dumps(body, indent=1) + "\n")
    PAGE.write_text(with_part(PAGE.read_text(), _BEGIN, table(), _END))


def table() -> str:
    """Returns the table of the page: each group of tests with the number that passed."""
    last_run = json.loads(DATA.read_text())
    outcomes: dict[str, str] = last_run["outcomes"]
    groups: dict[str, list[str]] = {}
    for name in outcomes:
        match = _GROUP.match(name)
        groups.setdefault(match[1] if match else name, []).append(name)
    rows = [_row(group, names, outcomes) for group, names in sorted(groups.items())]
    total = _row("all", list(outcomes), outcomes)
    return "\n".join(
        [f"| Kubernetes {last_run['kubernetes']} | passed | of these conformance |", "|---|---|---|", *rows, total, ""]
    )


def _row(group: str, names: list[str], outcomes: Mapping[str, str]) -> str:
    passed = [name for name in names if outcomes[name] == e2e.PASSED]
    return f"| {group} | {len(passed)} of {len(names)} | {len(e2e.conformance(dict.fromkeys(passed, '')))} |"


if __name__ == "__main__":
    PAGE.write_text(with_part(PAGE.read_text(), _BEGIN, table(), _END))
