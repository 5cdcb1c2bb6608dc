"""The tool's completion and manual page, which are derived from its parser."""

import io
import re
import shlex
from argparse import ArgumentParser

import pytest

from podwire import cli, manual
from podwire.command_tree import command_tree, completions
from podwire.commands import COMMANDS, completion
from tests.support.binaries import ROOT

SOURCES = {"NETWORK": lambda: ["pods", "storage"]}


def some_parser() -> ArgumentParser:
    """Returns the parser of a tool with two commands, one of which has subcommands."""
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
def test_completions_depend_on_the_position(words, expected):
    """The completions of a word depend on the words before it."""
    assert [word for word in completions(command_tree(some_parser()), words, SOURCES) if word != "-h"] == expected


def test_manual_page_has_every_command():
    """The manual page has each command, option and example, and only the expected roff requests."""
    top = cli.build_parser()
    page = manual.render(command_tree(top), top.epilog or "")
    plain = page.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")
    for command in COMMANDS:
        assert f'.SS "podwire {command.name}' in plain
        assert all(line in plain for line, _ in command.examples)
    for leaf in command_tree(top).leaves():
        assert all(name in plain for option in leaf.options for name in option.option_strings if name != "-h")
    requests = set(re.findall(r"^[.'](\S*)", page, re.MULTILINE))
    assert requests == {"TH", "SH", "HP", "SS", "TP", "PP", "nf", "fi"}


def test_help_lists_the_commands_that_may_be_incomplete():
    """The list of exit statuses names each command that can return 4, and no other."""
    incomplete = re.compile(r"complete=(?!True|complete: bool)|Status\.INCOMPLETE")
    sources = (ROOT / "podwire" / "commands").glob("*.py")
    able = {path.stem.partition("_")[0] for path in sources if incomplete.search(path.read_text())}
    listed = (cli.build_parser().epilog or "").partition("; 4 ")[2]
    assert {word for group in re.findall(r"\((.*?)\)", listed, re.DOTALL) for word in group.split(", ")} == able


def test_roff_requests_in_texts_are_escaped():
    """A dot at the beginning of a help text and a backslash are printed literally."""
    parser = ArgumentParser(prog="tool")
    parser.add_subparsers().add_parser("odd", description=".so /etc/passwd\n'\\n")
    page = manual.render(command_tree(parser), "")
    assert "\n\\&.so /etc/passwd\n\\&'\\en\n" in page


def test_every_command_has_a_complete_help():
    """Each command has a summary of one line, a description and an example."""
    for command in COMMANDS:
        assert command.summary
        assert "\n" not in command.summary
        assert command.description.strip().endswith(".")
        assert command.examples


def test_usage_without_a_command():
    """A command line without a command is wrong usage."""
    assert cli.run([], {}, io.StringIO(), {}) == 2


def test_fish_completes_files_only_where_no_word_fits():
    """If the next word is a namespace or a network, fish proposes these and no files."""
    lines = [line.strip() for line in completion._SCRIPTS["fish"].splitlines()]
    (call,) = [shlex.split(line) for line in lines if line.startswith("complete ")]
    assert "-f" in call  # otherwise fish adds files to all words
    _, words, otherwise, paths, end = lines[lines.index("if set -q found[1]") :][:5]
    assert (words, otherwise, end) == ("string join \\n -- $found", "else", "end")
    assert paths.startswith("__fish_complete_path")
    assert [line for line in lines if "__fish_complete_path" in line] == [paths]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_help_fits_the_terminal(monkeypatch, columns):
    """No line of a help text, but for the examples, is wider than the terminal; on a wide one all lines stay."""
    monkeypatch.setenv("COLUMNS", str(columns))
    tree = command_tree(cli.build_parser())
    for command in (tree, *tree.leaves()):
        text = command.parser.format_help().partition("\nexamples:\n")[0]
        assert max(map(len, text.splitlines())) <= columns
        assert columns < 200 or (command.parser.description or "") in text
