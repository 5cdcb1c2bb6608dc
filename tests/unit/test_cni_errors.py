"""What an error's text looks like where people read it."""

from cni.errors import one_line


def test_what_a_terminal_must_not_get_is_escaped():
    """Control characters, lone surrogates and what else cannot be printed are escaped as Python's literals are."""
    for code in (*range(0x300), 0x200B, 0x2028, 0xD800, 0xDCFF, 0xE000, 0xFEFF, 0xFFFF, 0x1F600, 0xE0001, 0x10FFFF):
        char = chr(code)
        expected = char if char.isprintable() else char.encode("unicode_escape").decode()
        assert one_line(f"a{char}b") == f"a{expected}b"
