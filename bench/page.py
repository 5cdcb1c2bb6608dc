"""The figures of a run for readers: docs/performance.md, first what is wanted and what is reached, then all of it.

One rule: pure; what is not in the run is not on the page, so that no figure is older than the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench import conversation
from bench.figures import ratio_text
from tests.support.kubelet import PODS

Report = Mapping[str, Any]  # what bench.run writes with --json

# The groups of a report with what heads their tables and what a figure is divided by.
_TIMES = {"ms": "ms", "parallel_ms": "ms per pod, whole chains of 50", "pod_ms": f"ms per pod, a node of {PODS}"}
_SIZES = {"memory_kib": ("MiB of memory, peak", 1024), "size_bytes": ("MB of files", 1e6)}


class Case(NamedTuple):
    """One case: medians of both implementations and the floor, in the unit of its group; None what there is not.

    `ratio` is ours divided by the reference's.
    """

    name: str
    ours: float
    reference: float | None
    ratio: float | None
    wanted: float | None
    floor: float | None

    @property
    def reached(self) -> bool:
        """Whether it is as wanted."""
        return self.wanted is None or self.ratio is None or self.ratio <= self.wanted


def cases(report: Report, group: str) -> list[Case]:
    """Returns the cases of a group of the report: "ms", "parallel_ms", "pod_ms", "memory_kib" or "size_bytes"."""
    return [
        Case(
            name=row["case"],
            ours=row["podwire"]["median"],
            reference=_median(row, "reference"),
            ratio=row["ratio"],
            wanted=row["wanted"],
            floor=_median(row, "floor"),
        )
        for row in report.get(group, [])
    ]


def markdown(report: Report) -> dict[str, str]:
    """Returns what stands between the marks of the page, by the name of the mark."""
    times = [case for group in _TIMES for case in cases(report, group)]
    everything = [*_where(report), ""]
    for group, head in _TIMES.items():
        everything += [*_table(head, 1, cases(report, group)), ""]
    for group, (head, divisor) in _SIZES.items():
        everything += [*_table(head, divisor, cases(report, group)), ""]
    parts = {"wanted": _aims([case for case in times if case.wanted is not None]), "bench": "\n".join(everything)}
    said = report.get("conversation")
    return {**parts, "conversation": conversation.markdown(said)} if said else parts


def inserted(document: str, parts: Mapping[str, str]) -> str:
    """Returns the document with each part between its marks; ValueError when one is not there."""
    for name, text in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, first, rest = document.partition(begin)
        _, last, after = rest.partition(end)
        if not first or not last:
            raise ValueError(f"no {begin.strip()} and {end} in the document")
        document = f"{before}{begin}\n{text.strip()}\n\n{end}{after}"
    return document


def shown(value: float | None) -> str:
    """Returns a figure with three digits, "-" for none."""
    if value is None:
        return "-"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _median(row: Mapping[str, Any], side: str) -> float | None:
    return row[side]["median"] if row.get(side) else None


def _where(report: Report) -> list[str]:
    about = report["about"]
    kernel = ".".join(str(about["kernel"]).split(".")[:2])
    return [f"Medians of up to {about['rounds']} rounds, Linux {kernel}, {about['cpus']} processors."]


def _aims(wanted: Sequence[Case]) -> str:
    """Returns a row for each title, its verbs side by side."""
    count = sum(case.reached for case in wanted)
    titles: dict[str, dict[str, Case]] = {}
    for case in wanted:
        title, _, verb = case.name.rpartition(" ")
        titles.setdefault(title.rstrip(":") or case.name, {})["ADD" if verb == case.name else verb] = case
    lines = [
        f"{count} of {len(wanted)} aims are reached; **bold** is what is missed.",
        "",
        "| podwire divided by reference | ADD | wanted | kernel alone | CHECK | wanted | kernel alone | DEL | wanted |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for title, verbs in titles.items():
        add, check, delete = (_aim(verbs.get(verb)) for verb in ("ADD", "CHECK", "DEL"))
        lines.append(f"| {' | '.join([title, *add, *check, *delete[:2]])} |")
    return "\n".join(lines)


def _aim(case: Case | None) -> tuple[str, str, str]:
    """Returns what is reached, what is wanted, and what the kernel alone takes, all divided by the reference's."""
    if case is None:
        return "", "", ""
    reached, wanted = ratio_text(case.ratio) or "-", f"{case.wanted:.2f}"
    if not case.reached:
        reached = f"**{reached}**" if reached != wanted else f"**{case.ratio:.3f}**"  # missed by less than shows
    least = ratio_text(case.floor / case.reference) if case.floor and case.reference else ""
    return reached, wanted, least


def _table(unit: str, divisor: float, rows: Sequence[Case]) -> list[str]:
    floors = any(case.floor for case in rows)
    head, rule = f"| {unit} | podwire | reference | ratio |", "|---|---|---|---|"
    lines = [f"{head} kernel alone |", f"{rule}---|"] if floors else [head, rule]
    for case in rows:
        reference = shown(case.reference / divisor if case.reference is not None else None)
        line = f"| {case.name} | {shown(case.ours / divisor)} | {reference} | {ratio_text(case.ratio)} |"
        lines.append(f"{line} {shown(case.floor) if case.floor else ''} |" if floors else line)
    return lines
