"""What an error's text looks like where people read it."""

import ast

from process.stderr import one_line
from tests.support.binaries import ROOT


def test_what_a_terminal_must_not_get_is_escaped():
    """Control characters, lone surrogates and what else cannot be printed are escaped as Python's literals are."""
    for code in (*range(0x300), 0x200B, 0x2028, 0xD800, 0xDCFF, 0xE000, 0xFEFF, 0xFFFF, 0x1F600, 0xE0001, 0x10FFFF):
        char = chr(code)
        expected = char if char.isprintable() else char.encode("unicode_escape").decode()
        assert one_line(f"a{char}b") == f"a{expected}b"


def test_details_are_read_behind_a_semicolon():
    """Libcni prints "msg; details": no details begin with a preposition, as if they went on with the message."""
    found = []
    for path in (
        path
        for room in ("process", "cni", "kernel", "attachment", "ipam", "plugins")
        for path in (ROOT / room).rglob("*.py")
    ):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            for details in call.args[1:] if name in ("CniError", "_wrong") else ():
                words = ast.unparse(details).strip("f'\"").split(" ", 1)
                if isinstance(details, ast.JoinedStr | ast.Constant) and words[0] in ("in", "at", "of", "one", "from"):
                    found.append(f"{path}:{call.lineno}: {' '.join(words)}")
    assert found == []
