"""`podwire man`: the manual page."""

from __future__ import annotations

from argparse import Namespace

from podwire import manual
from podwire.command import Command, Context, ExitStatus
from podwire.command_tree import command_tree


def _manual(context: Context, options: Namespace) -> ExitStatus:
    context.out.print_block(manual.render(command_tree(context.parser), context.parser.epilog or ""))
    return ExitStatus.FINE


MANUAL = Command(
    "man",
    "the manual page",
    "Prints the manual page podwire(1), which has the texts of --help.",
    _manual,
    examples=(
        ("podwire man | man -l -", "read it"),
        ("podwire man > /usr/local/share/man/man1/podwire.1", "install it for `man podwire`"),
    ),
)
