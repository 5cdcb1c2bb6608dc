"""Manual pages for man(7), written from the pages of docs/: one for each plugin, one for the node agent.

One rule: the text is that of docs/, so there is no second description. Only the Markdown that those pages use is
converted; a row of a table becomes an entry of a list, because the columns are wider than a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from pack.build import ROOT
from podwire.manual import escaped

SECTION = 8  # programs of an administrator

_PIECE = re.compile(r"`([^`]+)`|\*\*(.+?)\*\*|!?\[([^\]]*)\]\(([^)]*)\)|(?<![\w*])\*([^*\s][^*]*)\*")
_ITEM = re.compile(r"(?:- |\d+\. )")
_CELL = re.compile(r"(?<!\\)\|")


def plugin_page(name: str, version: str) -> str:
    """Returns podwire-NAME(8), the page of a plugin, and below it what is common to all plugins."""
    text = (ROOT / "docs" / f"{name}.md").read_text()
    _, heading, common = (ROOT / "docs" / "README.md").read_text().partition("\n## Common to all plugins\n")
    return page(f"podwire-{name}", text + heading + common.partition("\n## ")[0], summaries()[name], version)


def agent_page(version: str) -> str:
    """Returns podwire-agent(8)."""
    summary = "node agent: the pod network of a Kubernetes cluster"
    return page("podwire-agent", (ROOT / "docs" / "agent.md").read_text(), summary, version)


def summaries() -> dict[str, str]:
    """Returns the sentence about each plugin, from the table in docs/README.md."""
    rows = re.findall(
        r"^\| \[([\w-]+)\]\(\1\.md\) \| (.*) \|$", (ROOT / "docs" / "README.md").read_text(), re.MULTILINE
    )
    return {name: _plain(text) for name, text in rows}


def page(name: str, markdown: str, summary: str, version: str) -> str:
    """Returns a page of Markdown, which begins with a title, as a manual page."""
    body = markdown.partition("\n")[2].split("\n")
    lines = [
        f'.TH {name.upper()} {SECTION} "" "podwire {version}" "CNI plugins"',
        *(".ad l", ".nh"),  # neither gaps between words nor hyphens in names
        ".SH NAME",
        rf"{escaped(name)} \- {escaped(summary)}",
        ".SH DESCRIPTION",
        *_blocks(body),
        ".SH SEE ALSO",
        r"\fBpodwire\fR(1)",
    ]
    return "\n".join(lines) + "\n"


def _blocks(lines: Sequence[str]) -> Iterator[str]:
    """Yields the lines of roff for lines of Markdown."""
    at = 0
    while at < len(lines):
        line, end = lines[at], at + 1
        if line.startswith("```"):
            end = next(number for number in range(at + 1, len(lines)) if lines[number].startswith("```")) + 1
            yield from (".PP", ".RS 4", ".nf", *map(escaped, lines[at + 1 : end - 1]), ".fi", ".RE")
        elif heading := re.match(r"(##+) (.*)", line):
            yield _heading(len(heading[1]), heading[2])
        elif line.startswith("|"):
            end = _end(lines, at, lambda text: text.startswith("|"))
            yield from _table(lines[at:end])
        elif _ITEM.match(line):
            end = _end(lines, at, lambda text: not text or text.startswith("  "))
            yield from _item(lines[at:end])
        elif line.strip():
            end = _end(
                lines, at, lambda text: bool(text) and not _ITEM.match(text) and not text.startswith(("|", "#", "```"))
            )
            yield from _paragraph(".PP", lines[at:end])
        at = end


def _end(lines: Sequence[str], start: int, continues: Callable[[str], bool]) -> int:
    """Returns the number of the first line after `start` that does not belong to its block."""
    end = start + 1
    while end < len(lines) and continues(lines[end]):
        end += 1
    return end


def _heading(level: int, text: str) -> str:
    plain = escaped(_plain(text)).replace('"', r"\(dq")
    return f'.SH "{plain.upper()}"' if level == 2 else f'.SS "{plain}"'


def _item(lines: Sequence[str]) -> Iterator[str]:
    """Yields an item of a list: its first paragraph, and indented what follows."""
    marker = lines[0].partition(" ")[0]
    indent = len(marker) + 1
    content = [lines[0][indent:], *(line[min(indent, len(line) - len(line.lstrip())) :] for line in lines[1:])]
    end = _end(
        content, 0, lambda text: bool(text.strip()) and not _ITEM.match(text) and not text.startswith(("|", "```"))
    )
    sign = r"\(bu" if marker == "-" else escaped(marker)
    yield from _paragraph(f'.IP "{sign}" {indent + 1}', content[:end])
    if any(line.strip() for line in content[end:]):
        yield f".RS {indent + 1}"
        yield from _blocks(content[end:])
        yield ".RE"


def _table(lines: Sequence[str]) -> Iterator[str]:
    """Yields an entry for each row: the first cell, and below it the others with the names of their columns."""
    names, *rows = ([cell.strip() for cell in _CELL.split(line.strip())[1:-1]] for line in lines)
    for row in rows[1:]:
        yield from (".TP", _text(row[0]) or r"\(em")
        cells = [(name, cell) for name, cell in zip(names[1:], row[1:], strict=True) if cell]
        for number, (name, cell) in enumerate(cells):
            title = f"{_text(name)}: " if name and len(names) > 2 else ""
            yield from ([".br"] if number or len(cells) > 1 else [])
            yield title + _text(cell)


def _paragraph(request: str, lines: Sequence[str]) -> Iterator[str]:
    text = _text(" ".join(line.strip() for line in lines))
    if text:
        yield from (request, text)


def _text(markdown: str) -> str:
    """Returns a text with the fonts of roff: code, file names and strong text bold, emphasis italic."""
    result, at = "", 0
    for match in _PIECE.finditer(markdown):
        code, strong, label, target, emphasis = match.groups()
        result += _literal(markdown[at : match.start()])
        at = match.end()
        if code:
            result += rf"\fB{_literal(code)}\fR"
        elif strong:
            result += rf"\fB{_text(strong)}\fR"
        elif emphasis:
            result += rf"\fI{_text(emphasis)}\fR"
        elif not match[0].startswith("!"):
            result += _text(label) + (f" <{_literal(target)}>" if "://" in target else "")
    result += _literal(markdown[at:])
    return rf"\&{result}" if result.startswith((".", "'")) else result


def _literal(text: str) -> str:
    return escaped(text.replace(r"\|", "|")).removeprefix(r"\&")


def _plain(markdown: str) -> str:
    """Returns a text without the marks of Markdown."""
    return _PIECE.sub(lambda match: match[1] or match[2] or match[3] or match[5] or "", markdown)
