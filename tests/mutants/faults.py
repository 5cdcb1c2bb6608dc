"""The faults of one source file: found in its syntax tree, applied to its text.

One rule: a fault changes what the program does on a node: no docstring, annotation, decorator or text
for readers.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.mutants.signatures import Signatures

Edit = tuple[int, int, bytes]  # the first and the last place in the text, the new text
_COMPARISONS = {
    ast.Lt: (b"<", b"<="),
    ast.LtE: (b"<=", b"<"),
    ast.Gt: (b">", b">="),
    ast.GtE: (b">=", b">"),
    ast.Eq: (b"==", b"!="),
    ast.NotEq: (b"!=", b"=="),
    ast.In: (b"in", b"not in"),
    ast.NotIn: (b"not in", b"in"),
    ast.Is: (b"is", b"is not"),
    ast.IsNot: (b"is not", b"is"),
}
_CONSTANT = re.compile(r"[A-Z]+_[A-Z0-9_]+|/[\w./-]+|ipv[46]/[\w./-]+")  # an attribute of netlink, a path
_FOR_READERS = re.compile(r"(.+\.)?(print|_?log\w*(\.\w+)?|warn\w*|\w*Error)$")
_READERS_KEYWORDS = ("help", "about", "description", "usage", "hint", "details", "msg", "title", "epilog")
_NO_FUNCTIONS = ("__repr__", "__str__")


@dataclass(frozen=True)
class Fault:
    """A change of one place in a file; `key` stays the same when other lines of the file change.

    `lines` are those of the statement, of which Python executes the first ones or all.
    """

    path: str
    line: int
    lines: range
    kind: str
    start: int
    end: int
    old: str
    new: str
    key: str

    def apply(self, source: bytes) -> bytes:
        """Returns the text of the file with the fault."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    @property
    def words(self) -> str:
        """The fault for readers."""
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.kind}: {_cut(old)} -> {_cut(new) or 'nothing'}"


def find(path: str, source: bytes, signatures: Signatures) -> list[Fault]:
    """Returns all faults of a file."""
    tree = ast.parse(source)
    text = _Text(source, tree, signatures)
    faults, seen = [], set()
    for function, node in _walk(tree, ""):
        for kind, build in _KINDS.items():
            for start, end, new in build(node, text):
                old = source[start:end].decode()
                number, name = 0, f"{path} {function} {kind} {old} {new.decode()}"
                while f"{name} {number}" in seen:
                    number += 1
                seen.add(f"{name} {number}")
                key = hashlib.sha256(f"{name} {number}".encode()).hexdigest()[:12]
                line = source.count(b"\n", 0, start) + 1
                faults.append(Fault(path, line, text.lines(start), kind, start, end, old, new.decode(), key))
    return faults


class _Text:
    """The text of a file, with the places of nodes."""

    def __init__(self, source: bytes, tree: ast.Module, signatures: Signatures) -> None:
        self.source, self.signatures = source, signatures
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        statements = (node for node in ast.walk(tree) if isinstance(node, ast.stmt))
        self._statements = sorted(statements, key=self.start)

    def lines(self, place: int) -> range:
        """Returns the lines of the innermost statement at this place, of a compound statement those of its head."""
        node = next(node for node in reversed(self._statements) if self.start(node) <= place < self.end(node))
        body: list[ast.stmt] = getattr(node, "body", [])
        return range(node.lineno, body[0].lineno if body else (node.end_lineno or 0) + 1)

    def start(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        """Returns the place of a node's first byte."""
        return self._lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        """Returns the place after a node's last byte."""
        return self._lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def of(self, node: ast.expr | ast.stmt) -> bytes:
        """Returns a node's text."""
        return self.source[self.start(node) : self.end(node)]

    def replace(self, node: ast.expr | ast.stmt, new: bytes) -> Edit:
        """Returns the replacement of a node."""
        return self.start(node), self.end(node), new


def _walk(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    """Yields the nodes that may have faults, with the name of the function that has them."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        function = f"{function}.{node.name}"
        if node.name in _NO_FUNCTIONS or any("Protocol" in ast.unparse(base) for base in getattr(node, "bases", ())):
            return
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
        return
    if _is_for_readers(node):
        return
    yield function, node
    for_readers = isinstance(node, ast.Call) and _FOR_READERS.match(ast.unparse(node.func))
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment") or (for_readers and name != "func"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.keyword) and child.arg in _READERS_KEYWORDS:
                continue
            if isinstance(child, ast.AST) and not _is_docstring(child):
                yield from _walk(child, function)


def _is_for_readers(node: ast.AST) -> bool:
    """Returns whether a statement only prints or logs."""
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and bool(_FOR_READERS.match(ast.unparse(call.func)))


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _comparison(node: ast.AST, text: _Text) -> Iterator[Edit]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        start, end = text.end(node.left), text.start(node.comparators[0])
        old, new = _COMPARISONS[type(node.ops[0])]
        yield start, end, text.source[start:end].replace(old, new, 1)


def _connective(node: ast.AST, text: _Text) -> Iterator[Edit]:
    if isinstance(node, ast.BoolOp):
        old, new = (b"and", b"or") if isinstance(node.op, ast.And) else (b"or", b"and")
        start, end = text.end(node.values[0]), text.start(node.values[1])
        yield start, end, text.source[start:end].replace(old, new, 1)


def _condition(node: ast.AST, text: _Text) -> Iterator[Edit]:
    if isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(node.test, ast.Constant | ast.Compare):
        if isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not):
            yield text.replace(node.test, text.of(node.test.operand))
        elif not any(isinstance(child, ast.NamedExpr) for child in ast.walk(node.test)):
            yield text.replace(node.test, b"not (" + text.of(node.test) + b")")


def _number(node: ast.AST, text: _Text) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield text.replace(node, str(node.value + (1 if node.value < 2 or node.value % 2 else -1)).encode())


def _truth(node: ast.AST, text: _Text) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield text.replace(node, str(not node.value).encode())


def _name(node: ast.AST, text: _Text) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and _CONSTANT.fullmatch(node.value):
        yield text.replace(node, repr(node.value + "x").encode())


def _flag(node: ast.AST, text: _Text) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and _is_constant(node.right):
        yield text.replace(node, text.of(node.left))


def _is_constant(node: ast.expr) -> bool:
    name = ast.unparse(node).rpartition(".")[2]
    return name.isupper() and "CLOEXEC" not in name  # which Python sets anyway


def _step(node: ast.AST, text: _Text) -> Iterator[Edit]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _is_undo(node.value):
        yield text.replace(node, b"pass")


def _undo(node: ast.AST, text: _Text) -> Iterator[Edit]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _is_undo(node.value):
        yield text.replace(node, b"pass")


def _is_undo(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] in ("push", "callback")


def _early_end(node: ast.AST, text: _Text) -> Iterator[Edit]:
    if isinstance(node, ast.FunctionDef) and ast.unparse(node.returns or node) == "None":
        statements = [statement for statement in node.body if not _is_docstring(statement)]
        for statement in statements[1:]:
            yield text.replace(statement, b"return")


def _error(node: ast.AST, text: _Text) -> Iterator[Edit]:
    if isinstance(node, ast.Raise):
        yield text.replace(node, b"pass")
    if isinstance(node, ast.ExceptHandler) and not all(
        isinstance(n, ast.Pass) or _is_for_readers(n) for n in node.body
    ):
        yield text.start(node.body[0]), text.end(node.body[-1]), b"pass"


def _loop(node: ast.AST, text: _Text) -> Iterator[Edit]:
    if isinstance(node, ast.For) and not isinstance(node.iter, ast.Tuple):
        yield text.replace(node.iter, b"list(" + text.of(node.iter) + b")[1:]")
    if isinstance(node, ast.Continue):
        yield text.replace(node, b"break")


def _argument(node: ast.AST, text: _Text) -> Iterator[Edit]:
    """An optional keyword argument is dropped."""
    if isinstance(node, ast.Call):
        before: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
        for keyword in node.keywords:
            place = before.index(keyword)
            optional = keyword.arg not in _READERS_KEYWORDS and text.signatures.is_optional(node.func, keyword.arg)
            if place and optional:
                yield text.end(before[place - 1]), text.end(keyword), b""


def _order(node: ast.AST, text: _Text) -> Iterator[Edit]:
    """Two arguments of the same type are swapped."""
    if isinstance(node, ast.Call) and not any(isinstance(argument, ast.Starred) for argument in node.args):
        for place in text.signatures.equal_neighbours(node.func):
            if place + 1 < len(node.args):
                left, right = node.args[place], node.args[place + 1]
                between = text.source[text.end(left) : text.start(right)]
                yield text.start(left), text.end(right), text.of(right) + between + text.of(left)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:40]} ... {text[-15:]}"


_KINDS: dict[str, Callable[[ast.AST, _Text], Iterator[Edit]]] = {
    "comparison": _comparison,
    "connective": _connective,
    "condition": _condition,
    "number": _number,
    "truth": _truth,
    "name": _name,
    "flag": _flag,
    "step": _step,
    "undo": _undo,
    "early end": _early_end,
    "error": _error,
    "loop": _loop,
    "argument": _argument,
    "order": _order,
}
KINDS = tuple(_KINDS)
