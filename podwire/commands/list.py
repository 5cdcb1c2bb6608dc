"""`podwire list`: the plugins in this file."""

from __future__ import annotations

from argparse import Namespace

from podwire.command import Command, Context, ExitStatus, add_json


def _run(context: Context, options: Namespace) -> ExitStatus:
    names = sorted(context.plugins)
    context.out.print_json(names)
    context.out.print_block("\n".join(names))
    return ExitStatus.FINE


COMMAND = Command(
    "list",
    "the plugins in this file",
    "Prints the names of the plugins in this file, one per line: `podwire install` installs it under these names.",
    _run,
    add_json,
    (("podwire list", "print the plugins in this file"),),
)
