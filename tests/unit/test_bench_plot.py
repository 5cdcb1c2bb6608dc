"""What `make bench` writes: the tables and the plot of docs/performance.md, from figures, no plugin is run."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import page, plot
from bench.figures import Row, as_json, figures
from bench.run import write
from tests.support.markdown import DOCS, Document

SVG = "{http://www.w3.org/2000/svg}"


def report(*cases: tuple[str, float, float], group: str = "ms") -> dict[str, Any]:
    rows = [as_json(Row(name, figures([ours]), figures([reference]))) for name, ours, reference in cases]
    return {"about": {"rounds": 3, "kernel": "6.1", "cpus": 2}, group: rows}


def dots(text: str, kind: str) -> list[float]:
    """Returns the x positions of an implementation's dots, without the one in the legend."""
    root = ElementTree.fromstring(text)
    return [float(dot.attrib["cx"]) for dot in root.iter(f"{SVG}circle") if dot.attrib["class"] == kind][1:]


def test_the_table_has_every_case():
    """Each case is a row with both medians and their ratio, below where it was measured."""
    text = page.markdown(report(("VERSION", 0.61234, 1.25), ("portmap DEL", 3, 512.4)))["bench"]
    assert "| VERSION | 0.612 | 1.25 | 0.49 |" in text
    assert "| portmap DEL | 3 | 512 | 0.006 |" in text
    assert "3 rounds, Linux 6.1, 2 processors" in text


def test_sizes_are_in_megabytes():
    """Memory is shown in MiB, files in MB."""
    assert "| bridge | 15 | 5 | 3.00 |" in page.markdown(report(("bridge", 15360, 5120), group="memory_kib"))["bench"]
    assert "| all | 25.2 | 12.6 | 2.00 |" in page.markdown(report(("all", 25.2e6, 12.6e6), group="size_bytes"))["bench"]


def test_the_aims_are_in_a_separate_table():
    """What has an aim stands by its title, with the ratio in bold where it is missed; the rest is not there."""
    rows = [
        Row("VERSION", figures([3]), figures([10]), 0.6),
        Row("bridge ADD", figures([1]), figures([2]), 0.5, figures([0.5])),
        Row("bridge CHECK", figures([3]), figures([4]), 0.5),
        Row("loopback ADD", figures([1]), figures([2])),
    ]
    about = {"rounds": 3, "kernel": "6.1", "cpus": 2}
    text = page.markdown({"about": about, "ms": [as_json(row) for row in rows]})["wanted"]
    assert "2 of 3 aims are reached" in text
    assert "| VERSION | 0.30 | 0.60 |  |  |  |  |  |  |" in text
    assert "| bridge | 0.50 | 0.50 | 0.25 | **0.75** | 0.50 |  |  |  |" in text
    assert "loopback" not in text


def test_what_is_missed_by_less_than_shows_is_shown_to_miss():
    """A ratio that rounds to its aim but misses it has one more digit."""
    row = as_json(Row("bridge ADD", figures([502]), figures([1000]), 0.5))
    text = page.markdown({"about": {"rounds": 1, "kernel": "6.1", "cpus": 2}, "ms": [row]})["wanted"]
    assert "| bridge | **0.502** | 0.50 |" in text


def test_what_the_reference_does_not_know_has_no_ratio():
    """A case of podwire alone is a row of the table, and a single dot."""
    alone = {"about": {"rounds": 1, "kernel": "6.1", "cpus": 1}, "ms": [as_json(Row("VERSION", figures([2]), None))]}
    assert "| VERSION | 2 | - |  |" in page.markdown(alone)["bench"]
    assert dots(plot.svg(alone), "reference") == []
    assert len(dots(plot.svg(alone), "ours")) == 1


def test_a_dot_is_placed_by_the_logarithm_of_its_time():
    """From one decade to the next each dot moves by the same distance, for both implementations."""
    text = plot.svg(report(("bridge ADD", 1, 10), ("bridge DEL", 100, 1000)))
    (first, third), (second, fourth) = dots(text, "ours"), dots(text, "reference")
    decade = (fourth - first) / 3
    assert (second - first, third - second, fourth - third) == pytest.approx((decade, decade, decade), abs=0.1)


def test_the_plot_says_how_to_read_it():
    """The plot has a title, names the reference's version, and says that lower is better."""
    shown = [element.text or "" for element in ElementTree.fromstring(plot.svg(report(("VERSION", 1, 2)))).iter()]
    assert any("lower is better" in text for text in shown)
    assert "reference plugins 1.1.1 (Go)" in shown


def test_only_what_was_measured_is_plotted():
    """A case that is missing in the run is not drawn; a run without any of them draws nothing."""
    text = plot.svg(report(("bridge ADD", 2, 4), ("something else", 1, 1)))
    assert "bridge + host-local: ADD" in text
    assert "something else" not in text
    assert "loopback" not in text
    with pytest.raises(ValueError, match="nothing that is plotted"):
        plot.svg(report(("something else", 1, 1)))


def test_figures_and_names_are_text():
    """Both figures stand beside their dots, and a name cannot end the drawing."""
    text = plot.svg(report(("podman's <list>", 1, 1), ("VERSION", 0.5, 150.4)))
    shown = [element.text for element in ElementTree.fromstring(text).iter(f"{SVG}text")]
    assert {"0.5", "150", "start-up (VERSION)"} <= set(shown)


def test_the_tables_replace_those_before():
    """What stood between the marks goes, what is around them stays; without marks it is an error."""
    text = "# Page\n\n<!-- a -->\nold\n<!-- end of a -->\n\n<!-- b -->\n<!-- end of b -->\nend\n"
    parts = {"a": "| new |\n", "b": "B"}
    once = page.inserted(text, parts)
    assert once == (
        "# Page\n\n<!-- a -->\n\n| new |\n\n<!-- end of a -->\n\n<!-- b -->\n\nB\n\n<!-- end of b -->\nend\n"
    )
    assert page.inserted(once, parts) == once
    with pytest.raises(ValueError, match="in the document"):
        page.inserted("# Page\n", parts)


def test_nothing_is_written_when_one_part_fails(tmp_path):
    """A run without what is plotted leaves the page as it was."""
    file = tmp_path / "performance.md"
    before = "".join(f"<!-- {name} -->\n<!-- end of {name} -->" for name in page.markdown(report(("a", 1, 1))))
    file.write_text(before)
    with pytest.raises(ValueError, match="nothing"):
        write(report(("something else", 1, 1)), tmp_path)
    assert file.read_text() == before
    assert write(report(("VERSION", 1, 2)), tmp_path) == [file, tmp_path / "bench.svg"]
    assert "| VERSION |" in file.read_text()


def test_the_page_and_the_plot_are_of_one_run():
    """The plot in docs/ shows the figures of the table beside it, and all that is to be plotted is measured."""
    tables = Document(DOCS / "performance.md").tables()
    rows = {row[head]: row for table in tables for row in table for head in row if head.startswith("ms")}
    drawn = ElementTree.fromstring((DOCS / "bench.svg").read_text())
    figures_drawn = [element.text or "" for element in drawn.iter(f"{SVG}text") if element.attrib.get("class")]
    expected = [rows[case][side] for case in plot.PLOTTED for side in ("podwire", "reference")]
    assert [text for text in figures_drawn if re.fullmatch(r"[\d.]+", text)] == expected
