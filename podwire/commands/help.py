"""`podwire help`: the help of a command."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from podwire.command import Command, Context, ExitStatus


def _help(context: Context, options: Namespace) -> ExitStatus:
    context.parser.parse_args([*options.words, "--help"])  # prints, and ends in SystemExit
    return ExitStatus.FINE


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("words", metavar="COMMAND", nargs="*", help="the command (default: all of them, one line each)")


HELP = Command(
    "help",
    "the help of a command",
    "Prints what COMMAND --help prints.",
    _help,
    _arguments,
    (("podwire help ipam free", "the same as podwire ipam free --help"),),
)
