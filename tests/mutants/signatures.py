"""What the faults in calls need: which parameters are optional, and which neighbours have the same type."""

from __future__ import annotations

import ast
from collections.abc import Iterable


class Signatures:
    """The parameters of the product's functions and values, by name."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        self._optional: set[tuple[str, str]] = set()
        self._types: dict[str, list[list[str]]] = {}
        for tree in trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef):
                    self._add_function(node)
                elif isinstance(node, ast.ClassDef):
                    self._add_fields(node)

    def is_optional(self, function: ast.expr, name: str | None) -> bool:
        """Returns whether a call without this keyword argument is valid."""
        return (_last(function), name) in self._optional

    def equal_neighbours(self, function: ast.expr) -> list[int]:
        """Returns the places of parameters whose right neighbour has the same type."""
        signatures = self._types.get(_last(function), [])
        if len(signatures) != 1:
            return []
        types = signatures[0]
        return [place for place in range(len(types) - 1) if types[place] == types[place + 1]]

    def _add_function(self, node: ast.FunctionDef) -> None:
        arguments = node.args.args
        defaults = node.args.defaults
        optional = arguments[len(arguments) - len(defaults) :]
        optional += [only for only, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value]
        self._optional |= {(node.name, argument.arg) for argument in optional}
        types = [ast.unparse(argument.annotation) for argument in arguments if argument.annotation]
        self._types.setdefault(node.name, []).append(types)

    def _add_fields(self, node: ast.ClassDef) -> None:
        fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
        self._optional |= {(node.name, ast.unparse(field.target)) for field in fields if field.value}
        self._types.setdefault(node.name, []).append([ast.unparse(field.annotation) for field in fields])


def _last(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]
