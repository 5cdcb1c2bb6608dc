"""The tables and the plot of docs/performance.md, generated from figures; no plugin runs."""

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import page, plot
from bench.figures import Row, as_json, figures
from bench.run import write
from tests.support.markdown import DOCS, Document

SVG = "{http://www.w3.org/2000/svg}"
HEAD = "reference 1.1.1"


def report(*cases: tuple[str, float, float], group: str = "ms") -> dict[str, Any]:
    rows = [Row(case, figures([ours]), figures([reference])) for case, ours, reference in cases]
    about = {"rounds": 3, "kernel": "6.1.0-9", "cpus": 2, "version": "1.9.1", "load": 2.04}
    return {"about": about, group: [as_json(row) for row in rows]}


def test_tables_have_every_case():
    """Verbs are side by side with ratio and medians, below a line about the machine; sizes have their units."""
    text = page.times(report(("bridge ADD", 1, 2), ("bridge DEL", 2, 200.4), ("VERSION", 0.61234, 1.25)))
    assert "3 rounds, Linux 6.1, 2 processors. The load was up to 2.0: trust the ratios" in text
    assert "| reference 1.9.1 | ADD | CHECK | DEL |" in text
    assert "| bridge | 0.50 (1 / 2) |  | 0.010 (2 / 200) |" in text
    assert "| VERSION | 0.49 (0.612 / 1.25) |  |  |" in text
    text = page.markdown(report(("ADD", 15360, 5120), group="memory_kib"))["costs"]
    assert "| ADD | 15 MiB | 5 MiB | 3.00 |" in text
    text = page.markdown(report(("all", 25.2e6, 12.6e6), group="size_bytes"))["costs"]
    assert "| all | 25.2 MB | 12.6 MB | 2.00 |" in text


def test_the_newest_reference_has_a_separate_table(tmp_path):
    """Its run replaces only its part of the page."""
    file = tmp_path / "performance.md"
    file.write_text("before <!-- newest -->\nold\n<!-- end of newest --> after")
    run = report(("bridge ADD", 1, 2))
    assert write(run, tmp_path, newest=True) == [file]
    assert file.read_text() == f"before <!-- newest -->\n\n{page.ratios(run)}\n\n<!-- end of newest --> after"


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
    (rows,) = (table for table in Document(DOCS / "performance.md").tables() if next(iter(table[0])) == HEAD)
    by_title = {row[HEAD]: row for row in rows}
    drawn = ElementTree.fromstring((DOCS / "bench.svg").read_text())
    figures_drawn = [element.text or "" for element in drawn.iter(f"{SVG}text") if element.attrib.get("class")]
    cells = [by_title[case]["ADD"] if case in by_title else by_title[case[:-4]][case[-3:]] for case in plot.PLOTTED]
    expected = [figure for cell in cells for figure in re.findall(r"[\d.]+", cell)[1:]]
    assert [text for text in figures_drawn if re.fullmatch(r"[\d.]+", text)] == expected
