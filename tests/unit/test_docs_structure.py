"""READMEs are complete and short: a table of files for each plugin's folder, and the project on a few screens."""

import re
from xml.etree import ElementTree

import pytest

from podwire.main import PLUGINS
from tests.support.binaries import ROOT
from tests.support.markdown import Document

FOLDERS = sorted(path.parent for room in ("plugins", "ipam") for path in (ROOT / room).glob("*/README.md"))
FOLDERS += [ROOT / "agent", ROOT / "agent" / "pools"]
MAX_README_LINES = 147  # without the table of plugins, which has a row for each
SVG = "{http://www.w3.org/2000/svg}"
CHARACTER_PX = 7.0  # the average at 13 px


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_readme_of_a_folder_lists_its_files(folder):
    """The table in a README names each module of its folder once, and no other file there."""
    (table,) = Document(folder / "README.md").tables()
    named = [name for row in table for name in re.findall(r"`([^`/]*\.py)`", row["file"])]
    assert sorted(named) == sorted(path.name for path in folder.glob("*.py") if path.name != "__init__.py")


def test_readme_is_short():
    """README has at most 147 lines, besides a row for each plugin."""
    assert len((ROOT / "README.md").read_text().splitlines()) - len(PLUGINS) <= MAX_README_LINES


@pytest.mark.parametrize("name", ["add", "image"])
def test_texts_fit_into_the_figures(name):
    """No text of a figure extends beyond the right edge, in a font as wide as DejaVu Sans."""
    root = ElementTree.fromstring((ROOT / "docs" / f"{name}.svg").read_text())
    texts = [item for item in root.iter(f"{SVG}text") if item.attrib.get("text-anchor") != "middle"]
    ends = [float(item.attrib["x"]) + CHARACTER_PX * len(item.text or "") for item in texts]
    assert max(ends) <= float(root.attrib["width"])
