"""The generated parts of docs/performance.md: times beside the reference, costs that are higher, and counts.

One rule: pure; a table shows only cases of one run, so that all its figures have the same age.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench import counts
from bench.figures import UNITS, ratio_text
from tests.support.markdown import with_part

Report = Mapping[str, Any]  # the output of bench.run --json
Case = Mapping[str, Any]  # bench.figures.as_json

QUIET_LOAD = 0.5  # below it, times are not disturbed by other programs
TIMES, COSTS = ("ms", "pod_ms"), ("cold_ms", "memory_kib", "size_bytes")  # the groups of a report
_VERBS = ("ADD", "CHECK", "DEL")


def markdown(report: Report) -> dict[str, str]:
    """Returns the generated parts of the page, by the name of their marks."""
    parts = {"times": times(report), "costs": _costs(report)}
    return {**parts, "counts": counts.markdown(report["counts"])} if "counts" in report else parts


def times(report: Report) -> str:
    """Returns the ratios and milliseconds of a run, with the verbs of a case side by side."""
    is_quiet = report["about"]["load"] <= QUIET_LOAD
    return _by_verb(report, _ratio_and_times, "." if is_quiet else ": trust the ratios rather than the times.")


def ratios(report: Report) -> str:
    """Returns the ratios of a run, with the verbs of a case side by side."""
    return _by_verb(report, lambda case: ratio_text(case["ratio"]), ".")


def reference_name(about: Mapping[str, Any]) -> str:
    """Returns the head of the reference's column, with the version if it is known."""
    return f"reference {about.get('version', '')}".strip()


def inserted(document: str, parts: Mapping[str, str]) -> str:
    """Returns the document with each part between its marks; raises ValueError when a mark is missing."""
    for name, text in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        document = with_part(document, begin, f"\n{text.strip()}\n\n", end)
    return document


def shown(value: float) -> str:
    """Returns a figure with three digits."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _by_verb(report: Report, cell: Callable[[Case], str], advice: str) -> str:
    """Returns a line about the machine, with its load before or after the run, and a table of a cell for each case."""
    about, name = report["about"], reference_name(report["about"])
    kernel = ".".join(str(about["kernel"]).split(".")[:2])
    lines = [
        f"Medians of up to {about['rounds']} rounds, Linux {kernel}, {about['cpus']} processors. "
        f"The load was up to {about['load']:.1f}{advice}",
        "",
        f"| {name} | ADD | CHECK | DEL |",
        "|---|---|---|---|",
    ]
    titles: dict[str, dict[str, str]] = {}
    for case in (case for group in TIMES for case in report.get(group, [])):
        title, _, verb = case["case"].rpartition(" ")
        title, verb = (title, verb) if verb in _VERBS else (case["case"], "ADD")
        titles.setdefault(title, {})[verb] = cell(case)
    lines += [f"| {title} | {' | '.join(cells.get(verb, '') for verb in _VERBS)} |" for title, cells in titles.items()]
    return "\n".join(lines)


def _ratio_and_times(case: Case) -> str:
    both = " / ".join(shown(case[side]["median"]) for side in ("podwire", "reference"))
    return f"{ratio_text(case['ratio'])} ({both})"


def _costs(report: Report) -> str:
    """Returns the cases in which podwire needs more."""
    lines = [f"| | podwire | {reference_name(report['about'])} | ratio |", "|---|---|---|---|"]
    for group in COSTS:
        unit, divisor = UNITS[group]
        for case in (case for case in report.get(group, []) if case["ratio"] > 1):
            ours, reference = (f"{shown(case[side]['median'] / divisor)} {unit}" for side in ("podwire", "reference"))
            lines.append(f"| {case['case']} | {ours} | {reference} | {ratio_text(case['ratio'])} |")
    return "\n".join(lines)
