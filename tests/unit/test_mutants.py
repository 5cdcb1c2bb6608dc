"""The faults of `make mutants`: each kind changes the place that it names, and texts for readers stay."""

import ast

import pytest

from tests.mutants import faults
from tests.mutants.faults import Fault, Signatures

SIGNATURES = Signatures(
    [
        ast.parse(
            "def send(first: int, second: int, *, ack=True, details=None) -> None: ...\n"
            "class Route:\n    target: str\n    via: str\n    metric: int = 0\n"
        )
    ]
)


def find(source: str) -> list[Fault]:
    return faults.find("cni/example.py", source.encode(), SIGNATURES)


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("comparison", "x = a < b", "x = a <= b"),
        ("comparison", "x = a not in b", "x = a in b"),
        ("comparison", "x = a is None", "x = a is not None"),
        ("connective", "x = a and b", "x = a or b"),
        ("condition", "if ready():\n    y = x", "if not (ready()):\n    y = x"),
        ("condition", "x = a if not b else c", "x = a if b else c"),
        ("number", "x = range(1)", "x = range(2)"),
        ("number", "prefix = 24", "prefix = 23"),
        ("truth", "x = f(True)", "x = f(False)"),
        ("name", 'x = ("IFLA_MTU", b)', "x = ('IFLA_MTUx', b)"),
        ("name", 'x = "/proc/sys"', "x = '/proc/sysx'"),
        ("flag", "x = a | NLM_F_EXCL", "x = a"),
        ("step", "delete(a)", "pass"),
        ("undo", "undo.push(a, b)", "pass"),
        ("early end", "def f() -> None:\n    a = 1\n    b = a", "def f() -> None:\n    a = 1\n    return"),
        ("error", "raise AnError", "pass"),
        ("error", "try:\n    x = y\nexcept E:\n    x = z\n    y = z", "try:\n    x = y\nexcept E:\n    pass"),
        ("loop", "for x in y:\n    z = x", "for x in list(y)[1:]:\n    z = x"),
        ("loop", "for x in y, z:\n    continue", "for x in y, z:\n    break"),
        ("argument", "x = send(a, b, ack=c)", "x = send(a, b)"),
        ("argument", "x = Route(a, b, metric=c)", "x = Route(a, b)"),
        ("order", "x = send(a, b)", "x = send(b, a)"),
        ("order", "x = Route(a, b, c)", "x = Route(b, a, c)"),
    ],
)
def test_a_fault_changes_one_place(kind, before, after):
    """A fault of each kind changes the source to the expected one, which is valid Python."""
    changed = [fault.apply(before.encode()).decode() for fault in find(before) if fault.kind == kind]
    assert changed == [after]
    ast.parse(after)


@pytest.mark.parametrize(
    "source",
    [
        '"""A text with /a/path."""',
        "x: Final[1 | NO_NAME]",
        "@dataclass(frozen=True)\nclass A:\n    x: int",
        "def f(x: 1 | A) -> 1 | A: ...",
        'print("/a/path", 1)',
        'log.write("ABC_DEF", True)',
        'x = CniError(Code.A_B, "/a/path", 1)',
        'add(help="/a/path")',
        "class A(Protocol):\n    x = 1",
        "def __repr__(self):\n    return 1",
        "if TYPE_CHECKING:\n    x = 1",
        'x = f"{1} /a/path"',
        "x = a | O_CLOEXEC",
        "send(a, b=c)",
        "send(a, details=c)",
    ],
)
def test_texts_for_readers_have_no_faults(source):
    """Docstrings, annotations, decorators, messages and flags that Python sets anyway have no faults."""
    assert [fault for fault in find(source) if fault.kind != "step"] == []


def test_a_key_survives_other_changes():
    """The key of a fault stays the same when other lines of its file change, and equal texts have different keys."""
    first, second = find("def f():\n    x = 1\n    y = 1")
    assert [fault.key for fault in find("z = a\ndef f():\n    x = 1\n    y = 1")] == [first.key, second.key]
    assert first.key != second.key


def test_the_lines_of_a_fault_are_those_of_its_statement():
    """A fault in a condition has the lines of the condition only, one in a call all lines of the call."""
    all_faults = find("if (\n    a\n    and b\n):\n    x = send(\n        c,\n        1,\n    )")
    lines = {fault.kind: fault.lines for fault in all_faults}
    assert lines == {"connective": range(1, 5), "condition": range(1, 5), "number": range(5, 9), "order": range(5, 9)}
