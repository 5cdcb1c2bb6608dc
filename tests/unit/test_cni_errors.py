"""Texts of errors in terminals and logs."""

import ast

from process.stderr import one_line
from tests.support.sources import files


def test_unprintable_characters_are_escaped():
    """Control characters, lone surrogates and other unprintable characters are escaped as in Python's literals."""
    for code in (*range(0x300), 0x200B, 0x2028, 0xD800, 0xDCFF, 0xE000, 0xFEFF, 0xFFFF, 0x1F600, 0xE0001, 0x10FFFF):
        char = chr(code)
        expected = char if char.isprintable() else char.encode("unicode_escape").decode()
        assert one_line(f"a{char}b") == f"a{expected}b"


def test_details_do_not_continue_the_message():
    """Libcni prints "msg; details", so no details begin with a preposition."""
    continuing = []
    for path in files("process", "cni", "kernel", "attachment", "ipam", "plugins"):
        text = path.read_text()
        tree = ast.parse(text if "CniError(" in text or "_wrong(" in text else "")
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            for details in call.args[1:] if name in ("CniError", "_wrong") else ():
                words = ast.unparse(details).strip("f'\"").split(" ", 1)
                if isinstance(details, ast.JoinedStr | ast.Constant) and words[0] in ("in", "at", "of", "one", "from"):
                    continuing.append(f"{path}:{call.lineno}: {' '.join(words)}")
    assert continuing == []
