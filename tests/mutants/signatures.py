"""What the faults in calls need: which parameters are optional, and which neighbours have the same type."""

from __future__ import annotations

import ast
from collections.abc import Iterable

Parameter = tuple[str, ast.expr | None, ast.expr | None]  # name, type, default


class Signatures:
    """The parameters of the product's functions and dataclasses, by name."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        self._optional: set[tuple[str, str | None]] = set()
        self._types: dict[str, list[list[str]]] = {}
        for node in (node for tree in trees for node in ast.walk(tree)):
            if isinstance(node, ast.FunctionDef):
                arguments = node.args
                positional = [*arguments.posonlyargs, *arguments.args]
                names = [*positional, *arguments.kwonlyargs]
                defaults = [*arguments.defaults, *arguments.kw_defaults]
                defaults = [*[None] * (len(names) - len(defaults)), *defaults]
                parameters = [(name.arg, name.annotation, value) for name, value in zip(names, defaults, strict=True)]
                self._add(node.name, parameters, len(positional))
            elif isinstance(node, ast.ClassDef):
                fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
                self._add(node.name, [(ast.unparse(field.target), field.annotation, field.value) for field in fields])

    def is_optional(self, function: ast.expr, name: str | None) -> bool:
        """Returns whether a call without this keyword argument is valid."""
        return (_last(function), name) in self._optional

    def equal_neighbours(self, function: ast.expr) -> list[int]:
        """Returns the places of parameters whose right neighbour has the same type; none for an ambiguous name."""
        signatures = self._types.get(_last(function), [])
        types = signatures[0] if len(signatures) == 1 else []
        return [place for place in range(len(types) - 1) if types[place] == types[place + 1]]

    def _add(self, name: str, parameters: list[Parameter], positional: int | None = None) -> None:
        self._optional |= {(name, parameter) for parameter, _, default in parameters if default}
        types = [ast.unparse(annotation) for _, annotation, _ in parameters[:positional] if annotation]  # not of self
        self._types.setdefault(name, []).append(types)


def _last(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]
