"""Parses the project's documents: headings, links, tables, code blocks.

One rule: it parses only the Markdown that these documents use: `#` headings, links in one line, tables with a rule
below their header, fenced blocks.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.support.binaries import ROOT

DOCS = ROOT / "docs"
_OURS = ("bench", "cni", "conf", "deploy", "docs", "ipam", "kernel", "pack", "plugins", "podwire", "tests")
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`+[^`\n]+`+")


def with_part(text: str, begin: str, part: str, end: str) -> str:
    """Returns a page's text with `part` in place of what is between two marks; raises ValueError if one is missing."""
    before, first, rest = text.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ValueError(f"no {begin.strip()} and {end} in the document")
    return f"{before}{begin}{part}{end}{after}"


def documents() -> list[Path]:
    """Returns every *.md of this project."""
    return sorted([*ROOT.glob("*.md"), *(path for room in _OURS for path in (ROOT / room).rglob("*.md"))])


@dataclass(frozen=True)
class Document:
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def prose(self) -> str:
        """The text without code blocks."""
        return _BLOCK.sub("", self.text)

    def blocks(self, language: str) -> list[str]:
        """Returns the fenced blocks of a language."""
        return [match[2] for match in _BLOCK.finditer(self.text) if match[1] == language]

    def headings(self) -> list[str]:
        return re.findall(r"^#{1,6} (.+)$", self.prose, re.MULTILINE)

    def anchors(self) -> set[str]:
        """Returns the anchors of the headings as forges derive them: lower case, no punctuation, spaces as hyphens."""
        plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in self.headings())
        return {text.replace(" ", "-") for text in plain}

    def links(self) -> Iterator[str]:
        """Yields the targets of links and images that are not URLs."""
        for target in re.findall(r"\]\(([^)\s]+)\)|<(?:img|source)[^>]* src(?:set)?=\"([^\"]+)\"", self.prose):
            link = "".join(target)
            if not re.match(r"\w+:", link):
                yield link

    def tables(self) -> Iterator[list[dict[str, str]]]:
        """Yields each table as rows: cells by column header."""
        for table in re.findall(r"(?:^\|.*\|\n)+", self.prose, re.MULTILINE):
            head, _, *rows = (_cells(line) for line in table.splitlines())
            yield [dict(zip(head, row, strict=True)) for row in rows]

    def code(self) -> Iterator[str]:
        """Yields inline code, lines of shell blocks, and commands typed in console sessions."""
        for code in _CODE.findall(self.prose):
            yield code.strip("`").strip()
        for block in self.blocks("sh"):
            yield from (line.strip() for line in block.splitlines())
        for block in self.blocks("console"):
            yield from (line.removeprefix("# ") for line in block.splitlines() if line.startswith("# "))


def _cells(line: str) -> list[str]:
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])]
