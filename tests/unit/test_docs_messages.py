"""The troubleshooting page quotes messages that exist in the source."""

from __future__ import annotations

import ast
import errno
import os
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.binaries import ROOT
from tests.support.markdown import DOCS, Document

ROOMS = ("process", "cni", "kernel", "attachment", "ipam", "plugins")
PAGE = Document(DOCS / "troubleshooting.md")
FILLED = "\0"  # stands for a value in a message
ANSWERS = {os.strerror(number).lower() for number in errno.errorcode}


def quoted() -> Iterator[str]:
    """Yields the messages of the page: the column `printed` of its tables."""
    for table in PAGE.tables():
        yield from (row["printed"].strip("`") for row in table if "printed" in row)


@cache
def messages() -> tuple[str, ...]:
    """Returns every text in the sources; texts joined by juxtaposition or + are one."""
    texts = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            texts += [text_of(node) for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.expr)]
    return tuple({text for text in texts if text})


def text_of(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = (text_of(part) if isinstance(part, ast.Constant) else FILLED for part in node.values)
        return "".join(parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left), text_of(node.right)
        return (left or FILLED) + (right or FILLED) if left or right else ""
    return ""


def occurs(message: str, texts: tuple[str, ...]) -> bool:
    """Returns whether one of the texts contains the message, in which `...` stands for values."""
    pattern = re.compile(f"{FILLED}+".join(map(re.escape, message.split("..."))))
    return any(pattern.search(text) for text in texts) or is_refusal(message, texts)


def is_refusal(message: str, texts: tuple[str, ...]) -> bool:
    """Returns whether it is a kernel error: "failed to <description of a request>: <text of errno>"."""
    parts = re.fullmatch("failed to (.+?): (.+)", message)
    if parts is None:
        return False
    description, answer = parts.groups()
    return (description == "..." or occurs(description, texts)) and (answer == "..." or answer in ANSWERS)


@pytest.mark.parametrize("message", sorted(set(quoted())))
def test_explained_messages_exist_in_the_source(message):
    """Each message on the page is in the source, to the letter."""
    assert occurs(message, messages())


@pytest.mark.parametrize(
    ("message", "is_there"),
    [
        ("no file in ...", True),
        ("no file in ..., today", False),
        ("no folder in ...", False),
        ("no file in /etc", False),
        ("failed to make it: no such file or directory", True),
        ("failed to make that: no such file or directory", False),
        ("failed to make it: no luck", False),
    ],
)
def test_dots_stand_for_values(message, is_there):
    """Dots stand for values, and other words, or a message without its dots, do not match."""
    assert occurs(message, (f"no file in {FILLED}", "make it")) is is_there


def test_page_has_enough_messages():
    """The page has a section for each plugin but loopback, and more than a hundred messages."""
    plugins = {
        "bridge",
        "ptp",
        "host-local",
        "dhcp",
        "dummy",
        "ipvlan",
        "macvlan",
        "vlan",
        "static",
        "portmap",
        "bandwidth",
        "firewall",
        "sbr",
        "tuning",
        "tap",
    }
    assert plugins - set(PAGE.headings()) == set()
    assert len(set(quoted())) > 100
