"""The operator's tool: parses the command line with argparse and runs the command.

Help, completion and the manual page are derived from the same parser.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from cni import skel
from cni.errors import CniError
from cni.skel import Plugin
from podwire.command import Command, Context, ExitStatus, HelpFormatter, UsageError, add_parser
from podwire.commands import COMMANDS
from podwire.lint.known import nearest
from podwire.output import Output, Progress, print_error
from process.signals import Terminated
from process.stderr import one_line
from process.version import __version__

COLUMNS_VARIABLE = "PODWIRE_COLUMNS"
_LEAST_COLUMNS = 20
_STDERR = 2
_ABOUT = f"podwire {__version__}: CNI network plugins in one file, and a tool for node operators"
_EPILOG = """\
A container runtime runs this file under the name of a plugin (`podwire list`), with the CNI_* variables set and the
network configuration on standard input. Under its own name it is the operator's tool.

Exit status: 0 all in order; 1 a fault, which the output describes; 2 wrong usage; 3 the command failed (permissions,
files); 4 no fault was detected, but not everything could be inspected (doctor, show, test, ipam, policy, selftest), or
a part is missing (bugreport)."""


def run(arguments: Sequence[str], env: Mapping[str, str], stdout: TextIO, plugins: Mapping[str, Plugin]) -> int:
    """Runs one command and returns the exit status (`Status`); usage errors and --help end in SystemExit."""
    top = build_parser()
    options = parse(top, arguments)
    command: Command | None = getattr(options, "command", None)
    if command is None or getattr(options, "subcommand", command) is None:
        getattr(options, "parser", top).print_help(sys.stderr)
        return ExitStatus.USAGE
    out = Output(
        stdout, getattr(options, "json", False), _is_coloured(options.color, env, stdout), get_width(env, stdout)
    )
    status = ExitStatus.FAILED
    progress = Progress(is_on=os.isatty(_STDERR))  # sys.stderr is a stream of podwire's own in the executable
    try:
        status = command.run(Context(plugins, env, out, top, tuple(arguments), progress), options)
    except BrokenPipeError:
        return ExitStatus.FAILED
    except UsageError as error:
        print_error(error, out)
        status = ExitStatus.USAGE
    except (Exception, Terminated) as error:
        print_error(error if isinstance(error, CniError) else skel.as_cni_error(error), out)
    progress.clear()
    try:
        stdout.flush()  # fails on a full disk and on a pipe without a reader
    except BrokenPipeError:
        return ExitStatus.FAILED
    except OSError as error:
        print_error(skel.as_cni_error(error), Output(stdout))  # on stderr also with --json: stdout is broken
        return ExitStatus.FAILED
    return status


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the options; a wrong command line ends in SystemExit, with a suggestion for an unknown option."""
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        used: argparse.ArgumentParser = getattr(options, "parser", parser)
        used.error(one_line(f"unrecognized: {' '.join(unknown)}{_guess(used, unknown)}; see {used.prog} --help"))
    return options


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole tool, with a subparser for each command."""
    top = Parser(prog="podwire", description=_ABOUT, epilog=_EPILOG, formatter_class=HelpFormatter)
    top.add_argument("--version", action="version", version=f"podwire {__version__}")
    _add_color(top, "auto")
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        subparser = add_parser(commands, command.name, command.summary, command.description, command.examples)
        command.arguments(subparser)
        _add_color(subparser, argparse.SUPPRESS)  # a value before the command stays
        subparser.set_defaults(command=command)
    return top


def get_width(env: Mapping[str, str], stdout: TextIO) -> int:
    """Returns the columns of the terminal, 0 without one; PODWIRE_COLUMNS sets another width, also into a pipe.

    COLUMNS is not enough for a pipe: some environments export it to every program.
    """
    try:
        size = os.get_terminal_size(stdout.fileno()).columns if stdout.isatty() else 0
    except (OSError, ValueError):
        size = 0
    variable = env.get(COLUMNS_VARIABLE, "")
    size = int(variable) if variable.isdecimal() else size
    return size and max(size, _LEAST_COLUMNS)  # a serial console may report 0


class Parser(argparse.ArgumentParser):
    """Accepts no abbreviated options, which a new option could make ambiguous; suggests a word for a misspelt one."""

    def __init__(self, *args: Any, **options: Any) -> None:  # type: ignore[explicit-any]  # argparse's own arguments
        super().__init__(*args, **{**options, "allow_abbrev": False})

    def _check_value(self, action: argparse.Action, value: object) -> None:
        choices = [str(choice) for choice in action.choices or ()]
        likely = nearest(str(value), choices)
        if likely and value not in choices:
            metavar = str(action.metavar or action.dest)
            self.error(one_line(f'{metavar}: there is no "{value}"; did you mean "{likely}"?'))
        super()._check_value(action, value)


def _guess(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """Returns a suggestion for the first unknown option, "" if no known one is similar."""
    known = [name for action in parser._actions for name in action.option_strings]
    likely = nearest(words[0].partition("=")[0], known) if words[0].startswith("-") else ""
    return f"; did you mean {likely}?" if likely else ""


def _add_color(parser: argparse.ArgumentParser, default: str) -> None:
    choices = ("auto", "always", "never")
    about = "colour: auto means on a terminal, unless NO_COLOR is set"
    parser.add_argument("--color", choices=choices, default=default, help=about)


def _is_coloured(when: str, env: Mapping[str, str], stdout: TextIO) -> bool:
    if when == "auto":
        return stdout.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"
    return when == "always"
