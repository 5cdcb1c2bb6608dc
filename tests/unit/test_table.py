"""The tool's output: tables that fit into a terminal and are not broken inside a word, hostile names, a full disk."""

import errno
import io
import json
import os
import termios

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from podwire import cli
from podwire.main import PLUGINS
from podwire.output import Output
from podwire.table import Cell, lay_out, wrap
from podwire.views import terminal

HEADERS = ("NETWORK", "CONTAINER", "POD", "ADDRESSES", "STATE")
ROWS = [
    ("podnet", "4f2c81a0b1c2", "default/web-0", "10.22.0.2/24 fd00:22::2/64", "ok"),
    ("podnet", "0123456789ab", "kube-system/coredns-5d78c9869d-x7k2p", "10.22.0.3/24", "check failed"),
]


def lines(width, rows=ROWS, **options):
    """Returns the lines of the table."""
    layout = lay_out(HEADERS, [[Cell(text) for text in row] for row in rows], width, **options)
    return ["".join(cell.text + " " * spaces for cell, spaces in line).rstrip() for line in layout.lines]


def test_wide_terminal_has_one_line_for_each_row():
    """Without a limit each row is a line, in columns as wide as their widest text."""
    assert lines(0) == lines(200)
    assert lines(0) == [
        "NETWORK  CONTAINER     POD                                   ADDRESSES                   STATE",
        "podnet   4f2c81a0b1c2  default/web-0                         10.22.0.2/24 fd00:22::2/64  ok",
        "podnet   0123456789ab  kube-system/coredns-5d78c9869d-x7k2p  10.22.0.3/24                check failed",
    ]


def test_optional_columns_are_left_out_first():
    """Optional columns are left out in their order, only as many as needed, and are reported."""
    cells = [[Cell(text) for text in row] for row in ROWS]
    layout = lay_out(HEADERS, cells, 90, optional=("CONTAINER", "NETWORK"))
    assert layout.left_out == ("CONTAINER",)
    assert lay_out(HEADERS, cells, 80, optional=("CONTAINER", "NETWORK")).left_out == ("CONTAINER", "NETWORK")
    assert lay_out(HEADERS, cells, 80, optional=("NETWORK", "ADDRESSES")).left_out == ("ADDRESSES",)  # which is enough
    assert lay_out(HEADERS, cells, 200, optional=("CONTAINER", "NETWORK")).left_out == ()


def test_column_with_a_fault_is_not_left_out():
    """A column with a cell in the style of a fault stays, whatever the width."""
    cells = [[Cell("podnet", "bad"), *map(Cell, row[1:])] for row in ROWS]
    assert lay_out(HEADERS, cells, 77, optional=("CONTAINER", "NETWORK")).left_out == ("CONTAINER",)


def test_cells_of_several_words_continue_below():
    """If a table is a little too wide, cells with several words continue in the next line."""
    assert lines(83) == [
        "NETWORK  CONTAINER     POD                                   ADDRESSES      STATE",
        "podnet   4f2c81a0b1c2  default/web-0                         10.22.0.2/24   ok",
        "                                                             fd00:22::2/64",
        "podnet   0123456789ab  kube-system/coredns-5d78c9869d-x7k2p  10.22.0.3/24   check",
        "                                                                            failed",
    ]


def test_narrow_terminal_has_a_block_for_each_row():
    """On a narrow terminal a row is a block with all columns; a word that is too long loses its middle."""
    assert lines(40, title="POD", optional=("CONTAINER",))[:5] == [
        "default/web-0",
        "  network: podnet",
        "  container: 4f2c81a0b1c2",
        "  addresses: 10.22.0.2/24 fd00:22::2/64",
        "  state: ok",
    ]
    assert "kube-system/cor\N{HORIZONTAL ELLIPSIS}78c9869d-x7k2p" in lines(30, title="POD")


@example([["aaaaaaaaaaa aaaaa aaa", "", "", "", "aaaaaaaa"]], 20)  # a title of several words
@given(st.lists(st.lists(st.text("ab /-", max_size=60), min_size=5, max_size=5), max_size=4), st.integers(20, 120))
def test_words_are_not_broken(rows, width):
    """For any cells every line fits, and each word that fits into a line is a whole word of the output."""
    printed = lines(width, rows)
    assert all(len(line) <= width for line in printed)
    words = {word for line in printed for word in line.split()}
    short = {
        word for row in rows for text in row if text not in ("", "-") for word in text.split() if len(word) < width // 3
    }
    assert short - words == set()


def test_text_is_wrapped_at_words():
    """A text continues in further lines at its spaces; without a width it is one line."""
    assert wrap("one two three", 8) == ["one two", "three"]
    assert wrap("one two three", 0) == ["one two three"]
    assert wrap("lost   one   two", 12) == ["lost   one", "two"]  # columns stay
    assert wrap("", 5) == [""]


def test_output_without_a_terminal_is_not_wrapped():
    """Into a file a text is one line; on a terminal further lines are indented."""
    for width, printed in ((0, "one two three\n"), (13, "one two three\n"), (9, "one two\n  three\n")):
        stream = io.StringIO()
        Output(stream, width=width).print_text("one two three", "  ")
        assert stream.getvalue() == printed


def test_first_words_have_a_style():
    """The words before a text may have a style of their own, and are indented; the text goes on below them."""
    stream = io.StringIO()
    Output(stream, colour=True, width=14).print_text("one two three", "    ", Cell("  fix:", "bold"))
    assert stream.getvalue() == "\033[1m  fix:\033[0m one\n    two three\n"


class FullDisk(io.StringIO):
    """A stream on a full disk, whose error is raised by flush."""

    def flush(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("text", ["\x1b[31m", "\x9b31m", "\u202eabc", "\x7f", "\U000e0041\U0001f980", "\udcff", "a\nb"])
def test_json_has_no_control_characters(text):
    """In a JSON document every unprintable character is escaped, and parsers read it unchanged."""
    stream = io.StringIO()
    Output(stream, as_json=True).print_json({"name": text, text: [text]})
    printed = stream.getvalue()
    assert printed.replace("\n", "").isprintable()
    assert json.loads(printed) == {"name": text, text: [text]}


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["show", "--json", "--conf-dir=/proc/self/mem"]])
def test_unwritable_output_is_a_failure(capsys, words):
    """If the output cannot be written, the command fails and prints the reason on stderr."""
    assert cli.run(words, {}, FullDisk(), PLUGINS) == 3
    assert capsys.readouterr().err == "podwire: a system call failed: No space left on device\n"


def test_closed_output_has_no_width(tmp_path):
    """An output that is closed has no columns, rather than an error; the variable sets a width there, too."""
    with (tmp_path / "closed").open("w") as stream:
        pass
    assert (cli.get_width({}, stream), cli.get_width({cli.COLUMNS_VARIABLE: "100"}, stream)) == (0, 100)


def test_full_screen_reads_keys_without_echo():
    """On the full screen keys arrive at once and are not printed over it; afterwards the terminal is as before."""
    user, program = os.openpty()
    before = termios.tcgetattr(program)
    with terminal.full_screen(program, io.StringIO()):
        assert not termios.tcgetattr(program)[3] & (termios.ICANON | termios.ECHO)
    assert termios.tcgetattr(program) == before
    os.close(user)
    os.close(program)
