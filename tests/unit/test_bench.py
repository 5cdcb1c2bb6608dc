"""Figures, tables and targets of bench/: arithmetic on samples, no plugin runs."""

from __future__ import annotations

import pytest

from bench.figures import Figures, Row, as_json, figures, growth_table, size_table, table, timing_table
from bench.targets import target_ratio


def row(ours: list[float], reference: list[float], target: float | None = None) -> Row:
    return Row("case", figures(ours), figures(reference), target)


def test_figures_of_a_series():
    """The figures of a series are median, minimum, length, and the median of its page faults, None if not counted."""
    assert figures([3.0, 1.0, 2.0, 9.0], [10, 30, 20]) == Figures(median=2.5, least=1.0, runs=4, faults=20)
    assert figures([1.0]).faults is None
    with pytest.raises(ValueError, match="nothing was measured"):
        figures([])


def test_ratio_below_one_means_podwire_needs_less():
    """The ratio is podwire's figure divided by the reference's, for medians and for minima."""
    compared = row([1.0, 2.0, 3.0], [2.0, 8.0, 9.0])
    assert (compared.ratio, compared.least_ratio) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("ours", "target", "cells"),
    [
        (0.8, 0.8, ["0.80", "0.80"]),
        (0.81, 0.8, ["0.81", "0.80", "!"]),
        (0.5, 0.8, ["0.50", "0.80"]),
        (5.0, None, ["5.00"]),
    ],
)
def test_missed_target_is_marked(ours, target, cells):
    """A ratio above its target has an exclamation mark; a row without a target has an empty cell."""
    last = timing_table([row([ours], [1.0], target)]).splitlines()[-1].split()
    assert last == ["case", f"{ours:.2f}", f"{ours:.2f}", "1.00", "1.00", f"{ours:.2f}", *cells]


def test_row_without_a_reference():
    """A row without a reference has no ratio and misses no target."""
    podwire_only = Row("case", figures([5.0]), None, 0.5)
    assert (podwire_only.ratio, podwire_only.least_ratio, podwire_only.missed) == (None, None, False)
    assert timing_table([podwire_only]).splitlines()[-1].split() == ["case", "5.00", "5.00", "-", "0.50"]
    assert as_json(podwire_only)["reference"] is None


def test_floor_has_a_column_if_one_was_measured():
    """The last column is the kernel's time alone, in tables with at least one such row."""
    with_floor = row([1.0], [2.0])._replace(floor=figures([0.25]))
    text = timing_table([with_floor, row([1.0], [2.0])])
    assert text.splitlines()[0].endswith("kernel alone")
    assert text.splitlines()[2].endswith("0.25")
    assert "kernel alone" not in timing_table([row([1.0], [2.0])])


@pytest.mark.parametrize(
    ("case", "ratio"),
    [
        ("VERSION", 0.6),
        ("bridge ADD", 0.5),
        ("bridge, dual stack DEL", 0.35),
        ("masquerade, nftables ADD", 0.35),
        ("1 host port, iptables: DEL", 0.2),
        ("100 host ports, iptables: ADD", 0.02),
        ("masquerading bridge, 1 host port, 2 limits, iptables: DEL", 0.15),
        ("masquerading bridge, 1 host port, firewall, tuning, nftables: ADD", 0.3),
        ("full chain, iptables, 50 in parallel: ADD", 0.3),
        ("full chain, iptables, 8 in parallel: ADD", None),
        ("host-local CHECK, 10 in use", None),
        ("macvlan: DEL", 0.35),
        ("sbr: ADD", 0.5),
        ("sbr, dual stack: DEL", 0.35),
        ("2 limits: CHECK", 0.5),
        ("2 limits: ADD", None),
    ],
)
def test_target_of_a_case(case, ratio):
    """A title and a verb select the target; every title that ends with CHECK has one."""
    assert target_ratio(case) == ratio


def test_growth_compares_each_implementation_with_itself():
    """The growth table shows how many times longer the second row takes than the first."""
    text = growth_table([("verb", row([2.0], [1.0]), row([3.0], [8.0]))])
    assert text.splitlines()[-1].split() == ["verb", "1.50", "8.00"]


def test_sizes_are_shown_in_their_unit():
    """Sizes are divided by the unit's divisor, ratios are not."""
    text = size_table("MiB", 1024, [row([2048.0], [4096.0])])
    assert text.splitlines()[-1].split() == ["case", "2.0", "4.0", "0.50"]


def test_columns_are_aligned():
    """The first column is left-aligned, the others are right-aligned, and no line ends with a space."""
    assert table(("a", "n"), [("long", "1"), ("b", "100")]) == "a       n\n----  ---\nlong    1\nb     100"


def test_json_has_every_figure():
    """A row in JSON has both implementations' figures and both ratios."""
    assert as_json(row([1.0], [2.0], target=0.8)) == {
        "case": "case",
        "podwire": {"median": 1.0, "least": 1.0, "runs": 1, "faults": None},
        "reference": {"median": 2.0, "least": 2.0, "runs": 1, "faults": None},
        "floor": None,
        "ratio": 0.5,
        "ratio_of_least": 0.5,
        "wanted": 0.8,
    }
