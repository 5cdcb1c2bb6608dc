"""The figures of measured samples, as text tables and as values for JSON.

One rule: pure. A ratio is podwire's figure divided by the reference's; below 1, podwire needs less.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# The groups of a report: the unit of a table, and the divisor of its figures.
UNITS = {
    "ms": ("ms", 1.0),
    "pod_ms": ("ms a pod", 1.0),
    "cold_ms": ("ms", 1.0),
    "memory_kib": ("MiB", 1024.0),
    "size_bytes": ("MB", 1e6),
}


class Figures(NamedTuple):
    """The figures of a series in one unit: milliseconds, KiB of memory, or bytes of a file."""

    median: float
    least: float
    runs: int


class Row(NamedTuple):
    """A case measured with both implementations."""

    case: str
    ours: Figures
    reference: Figures

    @property
    def ratio(self) -> float:
        """The ratio of the medians."""
        return self.ours.median / self.reference.median

    @property
    def least_ratio(self) -> float:
        """The ratio of the minima, which other work on the machine disturbs least."""
        return self.ours.least / self.reference.least


def figures(values: Sequence[float]) -> Figures:
    """Returns the figures of a series; raises ValueError when it is empty."""
    if not values:
        raise ValueError("nothing was measured")
    return Figures(median=statistics.median(values), least=min(values), runs=len(values))


def text_table(group: str, rows: Sequence[Row], reference: str = "reference") -> str:
    """Returns the table of medians, minima and both ratios; `reference` is the head of the reference's column."""
    unit, divisor = UNITS[group]
    lines = [
        (
            row.case,
            *(f"{value / divisor:.2f}" for side in (row.ours, row.reference) for value in (side.median, side.least)),
            ratio_text(row.ratio),
            ratio_text(row.least_ratio),
        )
        for row in rows
    ]
    return table((unit, "podwire", "min", reference, "min", "ratio", "of min"), lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of text as lines: the first column left-aligned, the others right-aligned."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in (head, ["-" * width for width in widths], *rows)
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def as_json(row: Row) -> Mapping[str, object]:
    """Returns a row as values for JSON."""
    return {
        "case": row.case,
        "podwire": row.ours._asdict(),
        "reference": row.reference._asdict(),
        "ratio": row.ratio,
        "ratio_of_least": row.least_ratio,
    }


def ratio_text(value: float) -> str:
    """Returns a ratio with two decimal places, a small one with three."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
