"""The vocabulary of docs/glossary.md: names, docstrings, comments and messages avoid the words that it replaced."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.binaries import ROOT

# Words that identifiers must not contain, and their replacements.
IDENTIFIERS = {
    "apart": "background",
    "asked": "the noun: options, requested",
    "claims": "port conflicts",
    "cure": "fix, hint",
    "cures": "fixes, hints",
    "doing": "description",
    "fitted": "the effect: compute_mtu, ensure_mac",
    "found": "existing_rules, or the noun",
    "given": "the noun: ipam_result, options",
    "inside": "container_veth, container_link",
    "leads": "forwards, target",
    "living": "running",
    "made": "created",
    "mend": "repair",
    "outside": "host_veth, host_link",
    "own": "conf (the plugin's), net_conf (the network's), or the noun",
    "pick": "get_attributes, attribute offsets",
    "picks": "get_attributes, attribute offsets",
    "rehearse": "warm_up, try",
    "rehearsal": "warm_up, dry_run",
    "retract": "remove_rules",
    "scenes": "scenarios",
    "settled": "the effect: ensure_mac",
    "taken": "used, allocated",
    "tell": "report, log, describe",
    "tells": "reports, describes",
    "told": "description, reported",
    "wanted": "desired, or the noun",
    "whose": "owner",
}

# Patterns that sentences must not contain, and their replacements.
PROSE = {
    r"\b(tell|tells|told|telling)\b": "reports, logs, prints, describes, returns whether",
    r"\b(mend|mends|mended|mending)\b": "repair",
    r"\b(cure|cures|cured)\b": "fix",
    r"\b(rehears\w+|cardboard|scenes?)\b": "warm-up, dry run, scenario",
    r"\b(nobody|anybody|somebody|whoever)\b": "the noun: no process, a caller, another plugin",
    r"\b(for|of|by|to|from|with|and|or|than) who\b": "a noun before 'who': for node operators",
    r"(?:^|[.:;] )[Ww]ho(se)?\b(?!.*\?)": "a noun: the container that ..., the plugin that ...",
    r"\b(taken|takes?|took|taking) (it |them |that |this )?back\b": "roll back (ADD), reclaim (leases)",
    r"\bleads? (a |ports? |host ports? |it )?(of the host )?to (a |the )?pods?\b": "forwards, publishes",
}

# Exceptions: texts of the reference plugins, quotations and JSON keys, as a part of the reported line, by file.
ALLOWED: dict[str, tuple[str, ...]] = {
    "podwire/commands/doctor.py": ('"cure',),  # a JSON key, and the label before a fix
    "podwire/commands/ipam.py": ('"cure"',),  # a JSON key
    "podwire/node/model.py": ('"cure"',),  # a JSON key
    "tests/unit/test_vocabulary.py": ("who is gone is told",),  # the example of the second test
}

# The files and directories that are checked.
ROOMS: tuple[str, ...] = (
    "agent",
    "attachment",
    "bench",
    "cni",
    "docs/figures.py",
    "ipam",
    "kernel",
    "pack",
    "plugins",
    "podwire",
    "process",
    "tests",
)


def sources() -> Iterator[Path]:
    """Yields the Python files of ROOMS."""
    for room in ROOMS:
        path = ROOT / room
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Yields the names that a module defines: functions, classes, parameters, variables, attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def sentences(text: str) -> Iterator[str]:
    """Yields the comments and strings of a module, except strings of one word."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield token.string.removeprefix("#").strip()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.value


def retired_in(text: str) -> list[str]:
    """Returns the retired words of a module, each with its replacement."""
    words = {word for name in identifiers(ast.parse(text)) for word in re.split(r"_+", name.lower())}
    names = [f"{word}: use {IDENTIFIERS[word]}" for word in sorted(words & IDENTIFIERS.keys())]
    return names + [
        f"{match[0].strip()!r} in {sentence[max(0, match.start() - 30) : match.end() + 30]!r}: use {replacement}"
        for sentence in sentences(text)
        for pattern, replacement in PROSE.items()
        if (match := re.search(pattern, sentence, re.MULTILINE))
    ]


@pytest.mark.parametrize("path", [str(path.relative_to(ROOT)) for path in sources()] or ["cni/versions.py"])
def test_no_retired_word_is_used(path: str):
    """Identifiers, docstrings, comments and messages use the words of the glossary."""
    allowed = ALLOWED.get(path, ())
    retired = [line for line in retired_in((ROOT / path).read_text()) if not any(part in line for part in allowed)]
    assert retired == []


def test_retired_words_are_reported():
    """Retired words are reported in names, docstrings, comments and messages."""
    text = 'def own_ips(found):\n    """Tells whose it is."""\n    raise E("who is gone is told")  # for who looks\n'
    assert len(retired_in(text)) == 5
