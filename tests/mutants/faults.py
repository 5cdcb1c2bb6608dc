"""The faults of the product, found in the syntax trees of its files, and the seeded choice of some.

The choice is spread over the rooms by lines, and in a room over the kinds of faults. It depends on the seed and the
texts of the faults, so other changes of the source keep it.

One rule: a fault changes what the program does on a node: no docstring, annotation, decorator or text for readers.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.mutants.recording import PACKAGES, ROOT

_Located = ast.expr | ast.stmt | ast.keyword
_Fault = tuple[str, int, int, bytes]  # the kind, the first and the last place in the text, the new text
_SWAPS = {
    ast.Lt: (b"<", b"<="), ast.LtE: (b"<=", b"<"), ast.Gt: (b">", b">="), ast.GtE: (b">=", b">"),
    ast.Eq: (b"==", b"!="), ast.NotEq: (b"!=", b"=="), ast.In: (b"in", b"not in"), ast.NotIn: (b"not in", b"in"),
    ast.Is: (b"is", b"is not"), ast.IsNot: (b"is not", b"is"), ast.And: (b"and", b"or"), ast.Or: (b"or", b"and"),
}  # fmt: skip
_CONSTANT = re.compile(r"[A-Z]+_[A-Z0-9_]+|/[\w./-]+|ipv[46]/[\w./-]+")  # an attribute of netlink, a path
_FOR_READERS = re.compile(r"(.+\.)?(print|_?log\w*(\.\w+)?|warn\w*|\w*Error)$")
_READERS_KEYWORDS = ("help", "about", "description", "usage", "hint", "details", "msg", "title", "epilog")


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
        old, new = (text if len(text) <= 60 else f"{text[:40]} ... {text[-15:]}" for text in (old, new))
        return f"{self.kind}: {old} -> {new or 'nothing'}"


class Signatures:
    """The parameters of the product's functions and dataclasses, by name."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        self._optional: set[tuple[str, str | None]] = set()
        self._types: dict[str, list[list[str]]] = {}
        for node in (node for tree in trees for node in ast.walk(tree)):
            if isinstance(node, ast.FunctionDef):
                positional = [*node.args.posonlyargs, *node.args.args]
                every, defaults = [*positional, *node.args.kwonlyargs], [*node.args.defaults, *node.args.kw_defaults]
                optional = {name.arg for name, value in zip(reversed(every), reversed(defaults), strict=False) if value}
                types = [name.annotation for name in positional if name.annotation]  # not of self
            elif isinstance(node, ast.ClassDef):
                fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
                optional = {ast.unparse(field.target) for field in fields if field.value}
                types = [field.annotation for field in fields]
            else:
                continue
            self._optional |= {(node.name, name) for name in optional}
            self._types.setdefault(node.name, []).append([ast.unparse(each) for each in types])

    def is_optional(self, function: ast.expr, name: str | None) -> bool:
        """Returns whether a call without this keyword argument is valid."""
        return (_last(function), name) in self._optional

    def equal_neighbours(self, function: ast.expr) -> list[int]:
        """Returns the places of parameters whose right neighbour has the same type; none for an ambiguous name."""
        signatures = self._types.get(_last(function), [])
        types = signatures[0] if len(signatures) == 1 else []
        return [place for place in range(len(types) - 1) if types[place] == types[place + 1]]


def choose(count: int, seed: int) -> list[Fault]:
    """Returns `count` faults, at most one in each line."""
    files = {room: {path: path.read_bytes() for path in sorted((ROOT / room).rglob("*.py"))} for room in PACKAGES}
    signatures = Signatures(ast.parse(source) for room in files.values() for source in room.values())
    shares = _shares({room: sum(source.count(b"\n") for source in files[room].values()) for room in PACKAGES}, count)
    chosen = []
    for room, sources in files.items():
        every = [each for path, text in sources.items() for each in find(str(path.relative_to(ROOT)), text, signatures)]
        chosen += _spread(every, shares[room], seed)
    return chosen


def find(path: str, source: bytes, signatures: Signatures) -> list[Fault]:
    """Returns all faults of a file."""
    tree = ast.parse(source)
    text = _Text(source, tree, signatures)
    faults, numbers = [], Counter[str]()
    for function, node in _walk(tree, ""):
        for kind, start, end, new in text.faults(node):
            old = source[start:end].decode()
            name = f"{path} {function} {kind} {old} {new.decode()}"
            key = hashlib.sha256(f"{name} {numbers[name]}".encode()).hexdigest()[:12]
            numbers[name] += 1
            line = source.count(b"\n", 0, start) + 1
            faults.append(Fault(path, line, text.lines(start), kind, start, end, old, new.decode(), key))
    return faults


def _shares(lines: dict[str, int], count: int) -> dict[str, int]:
    """Divides the count by lines; the largest remainders are rounded up, and each room has one."""
    exact = {room: max(1.0, count * number / sum(lines.values())) for room, number in lines.items()}
    shares = {room: int(number) for room, number in exact.items()}
    by_remainder = sorted(exact, key=lambda room: shares[room] - exact[room])
    for room in by_remainder[: max(0, count - sum(shares.values()))]:
        shares[room] += 1
    return shares


def _spread(faults: list[Fault], count: int, seed: int) -> list[Fault]:
    """Takes a fault of each kind in turn, until there are `count`, at most one in each line."""
    queues: dict[str, list[Fault]] = {}
    for fault in sorted(faults, key=lambda fault: hashlib.sha256(f"{seed} {fault.key}".encode()).digest()):
        queues.setdefault(fault.kind, []).append(fault)
    kinds = sorted(queues, key=lambda kind: hashlib.sha256(f"{seed} {kind}".encode()).digest())
    chosen: dict[tuple[str, int], Fault] = {}
    while len(chosen) < count and any(queues.values()):
        for kind in kinds:
            while queues[kind] and len(chosen) < count:
                fault = queues[kind].pop(0)
                if (fault.path, fault.line) not in chosen:
                    chosen[fault.path, fault.line] = fault
                    break
    return list(chosen.values())


def _walk(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    """Yields the nodes that may have faults, with the name of the function that has them."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        function = f"{function}.{node.name}"
        is_protocol = any("Protocol" in ast.unparse(base) for base in getattr(node, "bases", ()))
        if node.name in ("__repr__", "__str__") or is_protocol:
            return
    is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.JoinedStr) or is_for_types or _is_for_readers(node):
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


class _Text:
    """The text of a file, with the places of nodes."""

    def __init__(self, source: bytes, tree: ast.Module, signatures: Signatures) -> None:
        self._source, self._signatures = source, signatures
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        statements = (node for node in ast.walk(tree) if isinstance(node, ast.stmt))
        self._statements = sorted(statements, key=self._start, reverse=True)

    def lines(self, place: int) -> range:
        """Returns the lines of the innermost statement at this place, of a compound statement those of its head."""
        node = next(node for node in self._statements if self._start(node) <= place < self._end(node))
        body: list[ast.stmt] = getattr(node, "body", [])
        return range(node.lineno, body[0].lineno if body else (node.end_lineno or 0) + 1)

    def faults(self, node: ast.AST) -> Iterator[_Fault]:
        """Yields the faults of a node."""
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                yield self._swap("comparison", operator, left, right)
            case ast.BoolOp(op=operator, values=[left, right, *_]):
                yield self._swap("connective", operator, left, right)
            case ast.Constant(value=bool(value)):
                yield self._replace("truth", node, str(not value).encode())
            case ast.Constant(value=int(value)):
                yield self._replace("number", node, str(value + (1 if value < 2 or value % 2 else -1)).encode())
            case ast.Constant(value=str(value)) if _CONSTANT.fullmatch(value):
                yield self._replace("name", node, repr(value + "x").encode())
            case ast.BinOp(op=ast.BitOr(), left=left, right=right) if _is_flag(right):
                yield self._replace("flag", node, self._of(left))
            case ast.Expr(value=ast.Call(func=function)):
                is_undo = _last(function) in ("push", "callback")
                yield self._replace("undo" if is_undo else "step", node, b"pass")
            case ast.FunctionDef(returns=ast.Constant(value=None)):
                for statement in [statement for statement in node.body if not _is_docstring(statement)][1:]:
                    yield self._replace("early end", statement, b"return")
            case ast.Raise():
                yield self._replace("error", node, b"pass")
            case ast.ExceptHandler(body=body) if not all(isinstance(n, ast.Pass) or _is_for_readers(n) for n in body):
                yield "error", self._start(body[0]), self._end(body[-1]), b"pass"
            case ast.For(iter=ast.expr() as items) if not isinstance(items, ast.Tuple):
                yield self._replace("loop", items, b"list(" + self._of(items) + b")[1:]")
            case ast.Continue():
                yield self._replace("loop", node, b"break")
            case ast.Call():
                yield from self._of_arguments(node)
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield from self._of_condition(test)

    def _of_condition(self, test: ast.expr) -> Iterator[_Fault]:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield self._replace("condition", test, self._of(test.operand))
        elif not isinstance(test, ast.Constant | ast.Compare) and not any(
            isinstance(child, ast.NamedExpr) for child in ast.walk(test)
        ):
            yield self._replace("condition", test, b"not (" + self._of(test) + b")")

    def _of_arguments(self, call: ast.Call) -> Iterator[_Fault]:
        """Drops an optional keyword argument, or swaps two arguments of the same type."""
        every: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        for place, keyword in enumerate(every[1:]):
            if not isinstance(keyword, ast.keyword) or keyword.arg in _READERS_KEYWORDS:
                continue
            if self._signatures.is_optional(call.func, keyword.arg):
                yield "argument", self._end(every[place]), self._end(keyword), b""
        if not any(isinstance(argument, ast.Starred) for argument in call.args):
            for place in self._signatures.equal_neighbours(call.func):
                if place + 1 < len(call.args):
                    left, right = call.args[place : place + 2]
                    between = self._source[self._end(left) : self._start(right)]
                    yield "order", self._start(left), self._end(right), self._of(right) + between + self._of(left)

    def _swap(self, kind: str, operator: ast.AST, left: ast.expr, right: ast.expr) -> _Fault:
        start, end = self._end(left), self._start(right)
        return kind, start, end, self._source[start:end].replace(*_SWAPS[type(operator)], 1)

    def _replace(self, kind: str, node: ast.expr | ast.stmt, new: bytes) -> _Fault:
        return kind, self._start(node), self._end(node), new

    def _of(self, node: ast.expr) -> bytes:
        return self._source[self._start(node) : self._end(node)]

    def _start(self, node: _Located) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: _Located) -> int:
        return self._lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)


def _is_for_readers(node: ast.AST) -> bool:
    """Returns whether a statement only prints or logs."""
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and bool(_FOR_READERS.match(ast.unparse(call.func)))


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_flag(node: ast.expr) -> bool:
    return _last(node).isupper() and "CLOEXEC" not in _last(node)  # which Python sets anyway


def _last(name: ast.expr) -> str:
    return ast.unparse(name).rpartition(".")[2]
