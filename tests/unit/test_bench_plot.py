"""The tables and the plot of docs/performance.md, generated from figures; no plugin runs."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import page, plot
from bench.figures import Row, as_json, figures
from bench.run import write, write_newest
from tests.support.markdown import DOCS, Document

SVG = "{http://www.w3.org/2000/svg}"


def report(*cases: tuple[str, float, float] | Row, group: str = "ms") -> dict[str, Any]:
    rows = [case if isinstance(case, Row) else Row(case[0], figures([case[1]]), figures([case[2]])) for case in cases]
    return {"about": {"rounds": 3, "kernel": "6.1", "cpus": 2}, group: [as_json(row) for row in rows]}


def test_table_has_every_case():
    """Each case is a row with both medians and their ratio, below a line about the machine; sizes are in MiB and MB."""
    text = page.markdown(report(("VERSION", 0.61234, 1.25), ("portmap DEL", 3, 512.4)))["bench"]
    assert "| VERSION | 0.612 | 1.25 | 0.49 |" in text
    assert "| portmap DEL | 3 | 512 | 0.006 |" in text
    assert "3 rounds, Linux 6.1, 2 processors" in text
    assert "| ADD | 2 | 4 | 0.50 |" in page.markdown(report(("ADD", 2048, 4096), group="shared_kib"))["bench"]
    assert "| bridge | 15 | 5 | 3.00 |" in page.markdown(report(("bridge", 15360, 5120), group="memory_kib"))["bench"]
    assert "| all | 25.2 | 12.6 | 2.00 |" in page.markdown(report(("all", 25.2e6, 12.6e6), group="size_bytes"))["bench"]


def test_the_newest_reference_has_a_separate_table(tmp_path):
    """Ratios and times of the verbs are side by side; the rest of the page stays."""
    quick = report(("bridge ADD", 1, 2), ("bridge DEL", 2, 20), ("VERSION", 1, 4))
    quick["about"] |= {"version": "1.9.1", "load": 2.04}
    page_file = tmp_path / "performance.md"
    page_file.write_text("before <!-- newest -->\nold\n<!-- end of newest --> after")
    assert write_newest(quick, tmp_path) == [page_file]
    text = page_file.read_text()
    assert text.startswith("before <!-- newest -->\n")
    assert text.endswith("<!-- end of newest --> after")
    assert "| podwire divided by reference 1.9.1 | ADD | CHECK | DEL |" in text
    assert "| bridge | 0.50 (1 / 2) |  | 0.10 (2 / 20) |" in text
    assert "| VERSION | 0.25 (1 / 4) |  |  |" in text
    assert "The load was up to 2.0: trust the ratios" in text
    assert "old" not in text


def test_tables_replace_the_previous_ones():
    """Text between the marks is replaced, other text stays, and missing marks are an error."""
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
    """A run without the plotted cases does not change the page."""
    file = tmp_path / "performance.md"
    before = "".join(f"<!-- {name} -->\n<!-- end of {name} -->" for name in page.markdown(report(("a", 1, 1))))
    file.write_text(before)
    with pytest.raises(ValueError, match="none of the plotted cases"):
        write(report(("something else", 1, 1)), tmp_path)
    assert file.read_text() == before
    assert write(report(("VERSION", 1, 2)), tmp_path) == [file, tmp_path / "bench.svg"]
    assert "| VERSION |" in file.read_text()


def test_page_and_plot_are_from_one_run():
    """The plot in docs/ shows the figures of the table on the page, and every plotted case is in the table."""
    tables = Document(DOCS / "performance.md").tables()
    rows = {row[head]: row for table in tables for row in table for head in row if head.startswith("ms")}
    drawn = ElementTree.fromstring((DOCS / "bench.svg").read_text())
    figures_drawn = [element.text or "" for element in drawn.iter(f"{SVG}text") if element.attrib.get("class")]
    expected = [rows[case][side] for case in plot.PLOTTED for side in ("podwire", "reference 1.1.1")]
    assert [text for text in figures_drawn if re.fullmatch(r"[\d.]+", text)] == expected
