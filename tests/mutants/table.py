"""The table of mutants in the repository, tests/data/mutants.toml: what killed each, and why a survivor may survive.

One rule: the field `why` is written by hand and kept by all runs, as long as the fault exists.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence

from tests.mutants.faults import Fault
from tests.mutants.recording import ROOMS, ROOT
from tests.mutants.trial import Result

TABLE = ROOT / "tests" / "data" / "mutants.toml"
_HEAD = """\
# Written by `make mutants`, except for `why`: the reason why a survivor is no fault ("equivalent: ...").
# `tests`: so many it met. `short`: the one that killed it is part of `make test`; the others are of `make test-all`.
"""


def write(faults: Sequence[Fault], results: dict[str, Result]) -> None:
    """Writes the faults that were examined, by file and line."""
    reasons = {entry["key"]: entry["why"] for entry in _read() if entry["why"]}
    done = sorted((fault for fault in faults if fault.key in results), key=lambda fault: (fault.path, fault.line))
    lines = [_HEAD, *(f"# {line}\n" for line in summarize(done, results)), "\nmutants = [\n"]
    for fault in done:
        result = results[fault.key]
        fields = {
            "key": fault.key,
            "place": f"{fault.path}:{fault.line}",
            "fault": fault.words,
            "killed_by": result.killed_by,
            "short": result.short,
            "tests": result.met,
            "why": "" if result.killed_by else reasons.get(fault.key, ""),
        }
        text = ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items())
        lines.append(f"    {{ {text} }},\n")
    TABLE.write_text("".join([*lines, "]\n"]))


def summarize(faults: Sequence[Fault], results: dict[str, Result]) -> list[str]:
    """Returns a line for each room and for all: the mutants, those killed by the short suite and by all tests."""
    why = {entry["key"]: entry["why"] for entry in _read()}
    lines = []
    for room in (*ROOMS, ""):
        group = [results[fault.key] for fault in faults if fault.path.startswith(f"{room}/" if room else "")]
        short = sum(result.short for result in group)
        killed = sum(bool(result.killed_by) for result in group)
        equivalent = sum(not result.killed_by and bool(why.get(result.key)) for result in group)
        count = max(1, len(group) - equivalent)
        shares = f"short suite {100 * short / count:.0f} %, all {100 * killed / count:.0f} %"
        lines.append(f"{room or 'all':<10} {len(group)} mutants, {equivalent} equivalent; killed by: {shares}")
    return lines


def _read() -> list[dict[str, str]]:
    return tomllib.loads(TABLE.read_text())["mutants"] if TABLE.exists() else []
