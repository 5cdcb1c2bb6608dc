"""The tool's completion and manual page, made of a parser."""

import io
import re
import shlex
from argparse import ArgumentParser

import pytest

from podwire import cli, manual
from podwire.command_tree import command_tree, completions
from podwire.commands import COMMANDS, completion

SOURCES = {"NETWORK": lambda: ["pods", "storage"]}


def some_parser() -> ArgumentParser:
    """Returns the parser of a tool with two commands, one of which has commands of its own."""
    top = ArgumentParser(prog="tool")
    top.add_argument("--level", choices=("low", "high"))
    commands = top.add_subparsers()
    add = commands.add_parser("add", help="adds it")
    add.add_argument("network", metavar="NETWORK")
    add.add_argument("netns", metavar="NETNS")
    add.add_argument("--json", action="store_true", help="one document")
    below = commands.add_parser("ipam").add_subparsers()
    below.add_parser("list").add_argument("networks", nargs="*", metavar="NETWORK")
    return top


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([""], ["add", "ipam"]),
        (["a"], ["add"]),
        (["--l"], ["--level"]),
        (["--level", "h"], ["high"]),
        (["--level", "high", "i"], ["ipam"]),
        (["add", ""], ["pods", "storage"]),
        (["add", "--json", "p"], ["pods"]),
        (["add", "pods", ""], []),
        (["add", "--"], ["--help", "--json"]),
        (["ipam", ""], ["list"]),
        (["ipam", "list", "pods", "s"], ["storage"]),
        ([], ["add", "ipam"]),
    ],
)
def test_a_word_is_completed_by_its_place(words, expected):
    """What a word may be made into follows from the words before it."""
    assert [word for word in completions(command_tree(some_parser()), words, SOURCES) if word != "-h"] == expected


def test_every_command_is_on_the_manual_page():
    """The manual page has each command, option and example, and no request of roff that is not ours."""
    top = cli.build_parser()
    page = manual.render(command_tree(top), top.epilog)
    plain = page.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")
    for command in COMMANDS:
        assert f'.SS "podwire {command.name}' in plain
        assert all(line in plain for line, _ in command.examples)
    for command in command_tree(top).leaves():
        assert all(name in plain for option in command.options for name in option.option_strings if name != "-h")
    requests = set(re.findall(r"^[.'](\S*)", page, re.MULTILINE))
    assert requests == {"TH", "SH", "HP", "SS", "TP", "PP", "nf", "fi"}


def test_text_is_no_request_to_roff():
    """A help text that begins with a dot, or has a backslash, is printed as it stands."""
    parser = ArgumentParser(prog="tool")
    parser.add_subparsers().add_parser("odd", description=".so /etc/passwd\n'\\n")
    page = manual.render(command_tree(parser), "")
    assert "\n\\&.so /etc/passwd\n\\&'\\en\n" in page


def test_every_command_has_a_help_that_teaches():
    """Each command has a summary of one line, a description and an example, and asks for help without failing."""
    for command in COMMANDS:
        assert command.summary
        assert "\n" not in command.summary
        assert command.description.strip().endswith(".")
        assert command.examples


def test_without_a_command_usage_is_told():
    """No command is wrong usage, told on stderr."""
    assert cli.run([], {}, io.StringIO(), {}) == 2


def test_fish_completes_files_only_where_no_word_fits():
    """Where a namespace or a network is the next word, fish proposes those and no files of the directory."""
    lines = [line.strip() for line in completion._SCRIPTS["fish"].splitlines()]
    (call,) = [shlex.split(line) for line in lines if line.startswith("complete ")]
    assert "-f" in call  # else fish adds files to all words
    _, words, otherwise, paths, end = lines[lines.index("if set -q found[1]") :][:5]
    assert (words, otherwise, end) == ("string join \\n -- $found", "else", "end")
    assert paths.startswith("__fish_complete_path")
    assert [line for line in lines if "__fish_complete_path" in line] == [paths]
