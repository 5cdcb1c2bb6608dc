"""The Python sources of this project, each parsed once, and what the rules for code look at.

One rule: no tree is kept, since the trees of all files slow down each collection of garbage.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support.binaries import ROOT

PRODUCT = ("agent", "attachment", "cni", "ipam", "kernel", "plugins", "podwire", "process")
ROOMS = (*PRODUCT, "bench", "conf", "docs", "pack", "tests")

FILLED = "\0"  # stands for a value in a message


class Function(NamedTuple):
    """A function: its lines are those from `def` to its end, without those of its docstring, which is not cleaned."""

    name: str
    lines: int
    docstring: str | None


class Public(NamedTuple):
    """A public function, property or class, and the first line of its docstring."""

    line: int
    kind: str
    about: str


class Source(NamedTuple):
    """A module: the names that it defines, its strings, and the texts that are put together, with FILLED for values."""

    text: str
    docstring: str | None
    functions: tuple[Function, ...]
    public: tuple[Public, ...]
    names: frozenset[str]
    strings: frozenset[str]
    templates: frozenset[str]


def files(*rooms: str, suffixes: tuple[str, ...] = (".py",)) -> Iterator[Path]:
    """Yields the files of directories of the project, except generated ones."""
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in suffixes and "__pycache__" not in path.parts:
                yield path


@cache
def sources() -> dict[str, Source]:
    """Returns every module, by its path in the project."""
    return {str(path.relative_to(ROOT)): parse(path.read_text()) for path in files(*ROOMS)}


def parse(text: str) -> Source:
    """Returns what the rules look at of a module with this text."""
    tree = ast.parse(text)
    functions: list[Function] = []
    names: set[str] = set()
    strings: set[str] = set()
    templates: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):  # the most frequent nodes first; patterns would be slow
            if isinstance(node.ctx, ast.Store):
                names.add(node.id)
        elif isinstance(node, ast.Attribute):
            if isinstance(node.ctx, ast.Store):
                names.add(node.attr)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                strings.add(node.value)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.JoinedStr | ast.BinOp):
            templates.add(_text_of(node))
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
            functions.append(_function(node))
    return Source(
        text,
        ast.get_docstring(tree),
        tuple(functions),
        tuple(_public(tree)),
        frozenset(names),
        frozenset(strings),
        frozenset(templates),
    )


def _public(node: ast.Module | ast.ClassDef) -> Iterator[Public]:
    """Yields the public functions and classes of a module or class, and the public members of these classes."""
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not child.name.startswith("_"):
            is_property = any("property" in ast.unparse(decorator) for decorator in child.decorator_list)
            kind = "class" if isinstance(child, ast.ClassDef) else "property" if is_property else "function"
            yield Public(child.lineno, kind, (ast.get_docstring(child) or "").partition("\n")[0])
            if isinstance(child, ast.ClassDef):
                yield from _public(child)


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    docstring, lines = ast.get_docstring(node, clean=False), (node.end_lineno or 0) - node.lineno + 1
    if docstring is not None:
        lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
    return Function(node.name, lines, docstring)


def messages(*rooms: str) -> frozenset[str]:
    """Returns every text in the sources; texts joined by juxtaposition or + are one, and FILLED stands for values."""
    starts = tuple(f"{room}/" for room in rooms)
    chosen = (source for name, source in sources().items() if name.startswith(starts))
    return frozenset().union(*(source.strings | source.templates for source in chosen)) - {""}


def _text_of(node: ast.AST) -> str:
    """Returns the text of an expression, "" for an expression that is none."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text_of(part) if isinstance(part, ast.Constant) else FILLED for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text_of(node.left), _text_of(node.right)
        return (left or FILLED) + (right or FILLED) if left or right else ""
    return ""
