"""The operator's tool: its command line, read by argparse, and the way from there to a command.

One rule: everything the tool says about itself (help, completion, the manual page) is made of the same parser.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from cni import skel
from cni.errors import CniError
from cni.skel import Plugin
from podwire import __version__
from podwire.command import Command, Context, Status, UsageError
from podwire.commands import COMMANDS
from podwire.lint.known import nearest
from podwire.output import Output, print_error
from process.signals import Terminated
from process.stderr import one_line

_ABOUT = f"podwire {__version__}: CNI network plugins in one file, and the tool of who looks after them"
_EPILOG = """\
A container runtime runs this file under the name of a plugin (`podwire list`), with the CNI_* variables set and the
network configuration on standard input. Under its own name it is the operator's tool.

Exit status: 0 all in order; 1 something is wrong, and the output says what; 2 wrong usage; 3 the command could not do
its work (rights, files); 4 nothing wrong was found, but not everything could be looked at (doctor, show, ipam)."""


def run(arguments: Sequence[str], env: Mapping[str, str], stdout: TextIO, plugins: Mapping[str, Plugin]) -> int:
    """Runs one command and returns the exit status (`Status`); usage errors and --help end in SystemExit."""
    top = build_parser()
    options, unknown = top.parse_known_args(arguments)
    if unknown:
        own: argparse.ArgumentParser = getattr(options, "parser", top)
        own.error(one_line(f"unrecognized: {' '.join(unknown)}{_guess(own, unknown)}; see {own.prog} --help"))
    command: Command | None = getattr(options, "command", None)
    if command is None:
        top.print_help(sys.stderr)
        return Status.USAGE
    out = Output(stdout, getattr(options, "json", False), _is_coloured(options.color, env, stdout))
    status = Status.FAILED
    try:
        status = command.run(Context(plugins, env, out, top, tuple(arguments)), options)
    except BrokenPipeError:
        return Status.FAILED
    except UsageError as error:
        print_error(error, out)
        status = Status.USAGE
    except (Exception, Terminated) as error:
        print_error(error if isinstance(error, CniError) else skel.as_cni_error(error), out)
    try:
        stdout.flush()  # fails for a full disk and for a pipe that nobody reads any more
    except BrokenPipeError:
        return Status.FAILED
    except OSError as error:
        print_error(skel.as_cni_error(error), Output(stdout))  # on stderr also with --json: stdout takes nothing
        return Status.FAILED
    return status


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole tool; each command's own is a choice of its one group of subparsers."""
    top = _Parser(
        prog="podwire", description=_ABOUT, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--version", action="version", version=f"podwire {__version__}")
    _add_color(top, "auto")
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        own = commands.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog=_examples(command),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.arguments(own)
        _add_color(own, argparse.SUPPRESS)  # what is said before the command holds
        own.set_defaults(command=command, parser=own)
    return top


class _Parser(argparse.ArgumentParser):
    """Takes no abbreviated options, which a new option would make ambiguous, and guesses at a misspelt word."""

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
    """Returns a question that names the known option nearest to the first unknown one, "" if none is near."""
    known = [name for action in parser._actions for name in action.option_strings]
    likely = nearest(words[0].partition("=")[0], known) if words[0].startswith("-") else ""
    return f"; did you mean {likely}?" if likely else ""


def _add_color(parser: argparse.ArgumentParser, default: str) -> None:
    choices = ("auto", "always", "never")
    about = "colour: auto is on a terminal, not with NO_COLOR"
    parser.add_argument("--color", choices=choices, default=default, help=about)


def _examples(command: Command) -> str:
    lines = [f"  {line}\n      {purpose}" for line, purpose in command.examples]
    return "\n".join(["examples:", *lines]) if lines else ""


def _is_coloured(when: str, env: Mapping[str, str], stdout: TextIO) -> bool:
    if when == "auto":
        return stdout.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"
    return when == "always"
