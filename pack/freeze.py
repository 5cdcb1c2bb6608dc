"""Compiles Python sources into bundles, from which the image builder imports instead of from directories.

One rule: a bundle depends only on the sources' bytes, not on their paths, their times or the order of a directory.
"""

from __future__ import annotations

import ast
import marshal
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

# Matches Record in image_builder.c: size of the name with its NUL, size of the code, 1 for a package.
_RECORD = struct.Struct("=III")

# The last version of marshal's format without references, which depend on reference counts of the compiling process.
_MARSHAL_VERSION = 2


class Module(NamedTuple):
    """A module to freeze: its dotted name, its source, and its file name in tracebacks."""

    name: str
    source: bytes
    filename: str
    is_package: bool


def modules_under(
    directory: Path, *, package: str = "", shown: str = "", without: frozenset[str] = frozenset()
) -> Iterator[Module]:
    """Yields the modules in a directory, sorted by path: those of `package`, or top-level modules.

    Tracebacks show `shown` instead of the directory. Skips the modules and packages named in `without`.
    """
    for path in sorted(directory.rglob("*.py")):
        relative = path.relative_to(directory)
        is_package = relative.name == "__init__.py"
        parts = relative.parent.parts if is_package else relative.with_suffix("").parts
        if all(part.isidentifier() and part not in without for part in parts):
            name = ".".join((package, *parts) if package else parts)
            yield Module(name, path.read_bytes(), str(Path(shown or directory) / relative), is_package)


def imported_by(roots: Iterable[Module], modules: Iterable[Module]) -> list[Module]:
    """Returns those of `modules`, in their order, that the roots import: directly or not, also inside functions."""
    by_name = {module.name: module for module in modules}
    needed: set[str] = set()
    waiting = [name for root in roots for name in _imports(root)]
    while waiting:
        parts = waiting.pop().split(".")
        for name in (".".join(parts[: size + 1]) for size in range(len(parts))):  # with its packages
            if name in by_name and name not in needed:
                needed.add(name)
                waiting += _imports(by_name[name])
    return [module for name, module in by_name.items() if name in needed]


def _imports(module: Module) -> Iterator[str]:
    """Yields the names of the modules that a module imports, and of attributes that may be modules."""
    for node in ast.walk(ast.parse(module.source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def bootstrap(stdlib: Path) -> Iterator[Module]:
    """Yields the modules of the import system, under the names by which Python imports them."""
    for name, part in (("_frozen_importlib", "_bootstrap"), ("_frozen_importlib_external", "_bootstrap_external")):
        yield Module(name, (stdlib / "importlib" / f"{part}.py").read_bytes(), f"<frozen importlib.{part}>", False)


def write_bundle(out: Path, modules: Iterable[Module]) -> None:
    """Compiles the modules, without docstrings, asserts and annotations of functions, and writes them to one file."""
    with out.open("wb") as bundle:
        for module in modules:
            name = module.name.encode() + b"\0"
            filename = sys.intern(module.filename)  # interned: one string in the image, not one for each function
            tree = _Unannotated().visit(ast.parse(module.source, filename))
            code = marshal.dumps(compile(tree, filename, "exec", dont_inherit=True, optimize=2), _MARSHAL_VERSION)
            bundle.write(_RECORD.pack(len(name), len(code), module.is_package) + name + code)


class _Unannotated(ast.NodeTransformer):
    """Removes the annotations of functions, which no code reads at run time. Those of classes define dataclasses."""

    def visit_FunctionDef(self, function: ast.FunctionDef) -> ast.AST:
        function.returns = None
        return self.generic_visit(function)

    def visit_AsyncFunctionDef(self, function: ast.AsyncFunctionDef) -> ast.AST:
        function.returns = None
        return self.generic_visit(function)

    def visit_arg(self, argument: ast.arg) -> ast.AST:
        argument.annotation = None
        return argument
