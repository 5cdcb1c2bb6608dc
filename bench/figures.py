"""The figures of measured samples, as text tables and as values for JSON.

One rule: pure. A ratio is podwire's figure divided by the reference's; below 1, podwire needs less.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# The units of groups of sizes, and their divisors.
SIZE_UNITS = {"memory_kib": ("MiB", 1024), "shared_kib": ("MiB", 1024), "size_bytes": ("MB", 1e6)}


class Figures(NamedTuple):
    """The figures of a series in one unit: milliseconds, KiB of memory, or bytes of a file."""

    median: float
    least: float
    runs: int
    faults: int | None = None  # median of the minor page faults; None if they were not counted


class Row(NamedTuple):
    """A case measured with both implementations; `target` is the ratio of medians that it should not exceed.

    `reference` is None if the reference does not support the case; `floor` is the time of the kernel's work alone, None
    if it was not measured.
    """

    case: str
    ours: Figures
    reference: Figures | None
    target: float | None = None
    floor: Figures | None = None

    @property
    def ratio(self) -> float | None:
        """The ratio of the medians."""
        return self.ours.median / self.reference.median if self.reference else None

    @property
    def least_ratio(self) -> float | None:
        """The ratio of the minima, which other work on the machine disturbs least."""
        return self.ours.least / self.reference.least if self.reference else None

    @property
    def missed(self) -> bool:
        """Whether the ratio exceeds the target."""
        return self.target is not None and self.ratio is not None and self.ratio > self.target


def figures(values: Sequence[float], faults: Sequence[int] = ()) -> Figures:
    """Returns the figures of a series; raises ValueError when it is empty."""
    if not values:
        raise ValueError("nothing was measured")
    return Figures(
        median=statistics.median(values),
        least=min(values),
        runs=len(values),
        faults=round(statistics.median(faults)) if faults else None,
    )


def timing_table(rows: Sequence[Row], unit: str = "ms", reference: str = "reference") -> str:
    """Returns the table of times: medians, minima, page faults, both ratios, targets, and floors if any.

    `reference` is the head of the reference's column.
    """
    head = (unit, "podwire", "min", "faults", reference, "min", "faults", "ratio", "of min", "target")
    if not any(row.floor for row in rows):
        return table(head, [_timing(row) for row in rows])
    floors = [f"{row.floor.median:.2f}" if row.floor else "" for row in rows]
    lines = [(*_timing(row), floor) for row, floor in zip(rows, floors, strict=True)]
    return table((*head, "kernel alone"), lines)


def growth_table(rows: Sequence[tuple[str, Row, Row]]) -> str:
    """Returns the table of growth: how many times longer the second row takes than the first."""
    head = ("times longer", "podwire", "reference")
    return table(
        head,
        [
            (
                name,
                f"{large.ours.median / small.ours.median:.2f}",
                f"{large.reference.median / small.reference.median:.2f}",
            )
            for name, small, large in rows
            if small.reference and large.reference
        ],
    )


def size_table(unit: str, divisor: float, rows: Sequence[Row], reference: str = "reference") -> str:
    """Returns the table of sizes, in units of `divisor`."""
    head = (unit, "podwire", reference, "ratio")
    return table(
        head,
        [
            (
                row.case,
                f"{row.ours.median / divisor:.1f}",
                f"{row.reference.median / divisor:.1f}",
                ratio_text(row.ratio),
            )
            for row in rows
            if row.reference
        ],
    )


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
        "reference": row.reference._asdict() if row.reference else None,
        "floor": row.floor._asdict() if row.floor else None,
        "ratio": row.ratio,
        "ratio_of_least": row.least_ratio,
        "wanted": row.target,
    }


def _timing(row: Row) -> tuple[str, ...]:
    target = "" if row.target is None else f"{row.target:.2f}" + (" !" if row.missed else "  ")
    reference = _side(row.reference) if row.reference else ("-", "", "")
    return (row.case, *_side(row.ours), *reference, ratio_text(row.ratio), ratio_text(row.least_ratio), target)


def ratio_text(value: float | None) -> str:
    """Returns a ratio with two decimal places, a small one with three, "" for None."""
    if value is None:
        return ""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _side(side: Figures) -> tuple[str, str, str]:
    return f"{side.median:.2f}", f"{side.least:.2f}", "" if side.faults is None else str(side.faults)
