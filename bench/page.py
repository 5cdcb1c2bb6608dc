"""The tables of docs/performance.md: ratios with their targets first, then all figures of a run.

One rule: pure; the tables show only cases of this run, so that all figures have the same age.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench import counts
from bench.figures import SIZE_UNITS, ratio_text
from bench.targets import floor_target
from tests.support.kubelet import PODS
from tests.support.markdown import with_part

Report = Mapping[str, Any]  # the output of bench.run --json

QUIET_LOAD = 0.5  # below it, times are not disturbed by other programs

# The groups of a report, and the heads of their tables; those of sizes have the unit before them.
_TIMES = {"ms": "ms", "parallel_ms": "ms per pod, whole chains of 50", "pod_ms": f"ms per pod, a node of {PODS}"}
_SIZES = {"memory_kib": "memory, peak", "shared_kib": "memory of each process (PSS)", "size_bytes": "files"}


class Case(NamedTuple):
    """A case: the medians of both implementations and of the floor, in the unit of its group; None if not measured."""

    name: str
    ours: float
    reference: float | None
    ratio: float | None
    target: float | None
    floor: float | None

    @property
    def is_met(self) -> bool:
        """Whether the ratio meets the target; true without a target."""
        return self.target is None or self.ratio is None or self.ratio <= self.target


def cases(report: Report, group: str) -> list[Case]:
    """Returns the cases of a group of the report: a key of `_TIMES` or `_SIZES`."""
    return [
        Case(
            name=row["case"],
            ours=row["podwire"]["median"],
            reference=_median(row, "reference"),
            ratio=row["ratio"],
            target=row["wanted"],
            floor=_median(row, "floor"),
        )
        for row in report.get(group, [])
    ]


def markdown(report: Report) -> dict[str, str]:
    """Returns the generated parts of the page, by the name of their marks."""
    times = [case for group in _TIMES for case in cases(report, group)]
    everything, name = [*_where(report), ""], reference_name(report["about"])
    for group, head in _TIMES.items():
        everything += [*_table(head, name, 1, cases(report, group)), ""]
    for group, head in _SIZES.items():
        unit, divisor = SIZE_UNITS[group]
        everything += [*_table(f"{unit} of {head}", name, divisor, cases(report, group)), ""]
    parts = {
        "targets": _targets(name, [case for case in times if case.target is not None]),
        "floors": _floors([case for case in times if case.floor]),
        "bench": "\n".join(everything),
    }
    rows = report.get("conversation")
    return {**parts, "counts": counts.markdown(rows)} if rows else parts


def markdown_newest(report: Report) -> dict[str, str]:
    """Returns the generated part of the page about the newest reference plugins, by the name of its marks."""
    name = reference_name(report["about"])
    about = report["about"]
    lines = [
        f"{_where(report)[0]} {_load_text(about['load'])}",
        f"In brackets the milliseconds of podwire and of the {name}.",
        "",
        f"| podwire divided by {name} | ADD | CHECK | DEL |",
        "|---|---|---|---|",
    ]
    for title, verbs in _by_title([case for group in _TIMES for case in cases(report, group)]).items():
        cells = [_ratio_with_times(verbs.get(verb)) for verb in ("ADD", "CHECK", "DEL")]
        lines.append(f"| {' | '.join([title, *cells])} |")
    return {"newest": "\n".join(lines)}


def reference_name(about: Mapping[str, Any]) -> str:
    """Returns the head of the reference's column, with the version if it is known."""
    return f"reference {about.get('version', '')}".strip()


def inserted(document: str, parts: Mapping[str, str]) -> str:
    """Returns the document with each part between its marks; raises ValueError when a mark is missing."""
    for name, text in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        document = with_part(document, begin, f"\n{text.strip()}\n\n", end)
    return document


def shown(value: float | None) -> str:
    """Returns a figure with three digits, "-" for None."""
    if value is None:
        return "-"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _median(row: Mapping[str, Any], side: str) -> float | None:
    return row[side]["median"] if row.get(side) else None


def _where(report: Report) -> list[str]:
    about = report["about"]
    kernel = ".".join(str(about["kernel"]).split(".")[:2])
    return [f"Medians of up to {about['rounds']} rounds, Linux {kernel}, {about['cpus']} processors."]


def _load_text(load: float) -> str:
    """Returns the sentence about the load of the machine, the higher of those before and after the run."""
    return f"The load was up to {load:.1f}" + (
        ": trust the ratios rather than the times." if load > QUIET_LOAD else "."
    )


def _by_title(every: Sequence[Case]) -> dict[str, dict[str, Case]]:
    """Returns the cases by title and verb; a case without a verb counts as ADD."""
    titles: dict[str, dict[str, Case]] = {}
    for case in every:
        title, _, verb = case.name.rpartition(" ")
        titles.setdefault(title.rstrip(":") or case.name, {})["ADD" if verb == case.name else verb] = case
    return titles


def _ratio_with_times(case: Case | None) -> str:
    if case is None:
        return ""
    return f"{ratio_text(case.ratio) or '-'} ({shown(case.ours)} / {shown(case.reference)})"


def _targets(reference: str, cases_with_target: Sequence[Case]) -> str:
    """Returns a row for each title, with its verbs side by side."""
    count = sum(case.is_met for case in cases_with_target)
    lines = [
        f"{count} of {len(cases_with_target)} targets are met; missed ones are **bold**.",
        "",
        f"| podwire divided by {reference} | ADD | target | CHECK | target | DEL | target |",
        "|---|---|---|---|---|---|---|",
    ]
    for title, verbs in _by_title(cases_with_target).items():
        cells = [cell for verb in ("ADD", "CHECK", "DEL") for cell in _target_cells(verbs.get(verb))]
        lines.append(f"| {' | '.join([title, *cells])} |")
    return "\n".join(lines)


def _target_cells(case: Case | None) -> tuple[str, str]:
    """Returns the ratio to the reference and its target."""
    if case is None:
        return "", ""
    ratio, target = ratio_text(case.ratio) or "-", f"{case.target:.2f}"
    if not case.is_met:
        ratio = f"**{ratio}**" if ratio != target else f"**{case.ratio:.3f}**"  # the difference is in the third digit
    return ratio, target


def _floors(cases_with_floor: Sequence[Case]) -> str:
    """Returns a row for each title, with the ratio of each verb to the kernel's work alone."""
    lines = ["| podwire divided by kernel alone | ADD | CHECK | DEL |", "|---|---|---|---|"]
    for title, verbs in _by_title(cases_with_floor).items():
        cells = [_floor_cell(verbs.get(verb)) for verb in ("ADD", "CHECK", "DEL")]
        lines.append(f"| {' | '.join([title, *cells])} |")
    return "\n".join(lines)


def _floor_cell(case: Case | None) -> str:
    if case is None or not case.floor:
        return ""
    ratio = case.ours / case.floor
    return f"**{ratio:.2f}**" if ratio > floor_target(case.name) else f"{ratio:.2f}"


def _table(unit: str, reference: str, divisor: float, rows: Sequence[Case]) -> list[str]:
    floors = any(case.floor for case in rows)
    head, rule = f"| {unit} | podwire | {reference} | ratio |", "|---|---|---|---|"
    lines = [f"{head} kernel alone |", f"{rule}---|"] if floors else [head, rule]
    for case in rows:
        theirs = shown(case.reference / divisor if case.reference is not None else None)
        line = f"| {case.name} | {shown(case.ours / divisor)} | {theirs} | {ratio_text(case.ratio)} |"
        lines.append(f"{line} {shown(case.floor) if case.floor else ''} |" if floors else line)
    return lines
