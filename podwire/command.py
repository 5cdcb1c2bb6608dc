"""A command of the operator's tool, its input, its exit status, and the options that commands share.

A command uses only its arguments: environment, plugins and output are passed in, so that tests can replace
them.
"""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter, _SubParsersAction
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from shlex import quote
from typing import TypeVar

from cni.errors import CniError, Code
from cni.skel import Plugin
from ipam.host_local.conf import DATA_DIR
from podwire import runtimes
from podwire.layers import CACHE_DIR, Layer, read_layers
from podwire.node.records import Directories
from podwire.output import Output, Progress
from podwire.table import wrap

# The runtimes' default directories, and cnitool's variables.
CONF_DIR, CONF_DIR_VARIABLE = "/etc/cni/net.d", "NETCONFPATH"
BIN_DIR, BIN_DIR_VARIABLE = "/opt/cni/bin", "CNI_PATH"
_Parser = TypeVar("_Parser", bound=ArgumentParser)
_COLUMNS = re.compile(r".*\S {2,}| *")  # of a line: what stands before its last column


class ExitStatus(IntEnum):
    """The exit status of the tool, for scripts."""

    FINE = 0  # done, and all is in order
    WRONG = 1  # something is wrong on the node or in a file, and was printed; or a verb failed
    USAGE = 2  # the command line is wrong (argparse's own number)
    FAILED = 3  # the command failed: no permission, no such network, a file that cannot be read
    INCOMPLETE = 4  # no fault was detected, but not everything could be inspected


def exit_status(*, wrong: bool, complete: bool) -> ExitStatus:
    """Returns the exit status of a command that searches for faults.

    A fault takes precedence over incompleteness, as it needs repair. The key `complete` of the JSON document says
    whether everything was inspected.
    """
    if wrong:
        return ExitStatus.WRONG
    return ExitStatus.FINE if complete else ExitStatus.INCOMPLETE


class HelpFormatter(RawDescriptionHelpFormatter):
    """Prints descriptions as they are written, on a narrow terminal wrapped; examples, which are pasted, are not."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.splitlines()
        if text.startswith("examples:") or max(map(len, lines), default=0) <= width:
            return super()._fill_text(text, width, indent)
        rows: list[tuple[str, str]] = []  # the columns before the last one, and that one's text
        for line in lines:
            before = match[0] if (match := _COLUMNS.match(line)) else ""
            if rows and rows[-1][1] and line and before == " " * len(rows[-1][0]):
                rows[-1] = rows[-1][0], f"{rows[-1][1]} {line[len(before) :]}"
            else:
                rows.append((before, line[len(before) :]))
        return "\n".join(
            before + f"\n{' ' * len(before)}".join(wrap(rest, width - len(before))) for before, rest in rows
        )


class UsageError(CniError):
    """A value on the command line that cannot be used: exit status 2, as for a wrong option."""


@dataclass(frozen=True)
class Context:
    """A command's input: the plugins in this file, the environment, the output, the tool's parser.

    `arguments` are the arguments of the command line, `progress` is for commands that may take seconds.
    """

    plugins: Mapping[str, Plugin]
    env: Mapping[str, str]
    out: Output
    parser: ArgumentParser
    arguments: Sequence[str] = ()
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True)
class Command:
    """A command: `podwire NAME ...`.

    `summary` is its line in the list of commands, `description` the text of --help; each of `examples` is a command
    line with its purpose. `arguments` adds the command's arguments to a parser. `run` runs it: a CniError is printed
    on stderr (with --json on stdout), and the exit status is then Status.FAILED.
    """

    name: str
    summary: str
    description: str
    run: Callable[[Context, Namespace], ExitStatus]
    arguments: Callable[[ArgumentParser], None] = lambda parser: None
    examples: tuple[tuple[str, str], ...] = ()


def add_parser(
    commands: _SubParsersAction[_Parser], name: str, summary: str, description: str, examples: Iterable[tuple[str, str]]
) -> _Parser:
    """Adds the parser of a command, whose help ends with the examples: command lines with their purposes."""
    lines = [f"  {line}\n      {purpose}" for line, purpose in examples]
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog="\n".join(["examples:", *lines]),
        formatter_class=HelpFormatter,
    )
    parser.set_defaults(parser=parser)
    return parser


def add_conf_dir(parser: ArgumentParser) -> None:
    """Adds --conf-dir; `conf_dir` reads it."""
    parser.add_argument(
        "--conf-dir", metavar="DIR", help=f"the directory of network configurations ({CONF_DIR}; ${CONF_DIR_VARIABLE})"
    )


def conf_dir(context: Context, options: Namespace) -> str:
    """Returns the directory of network configurations."""
    return options.conf_dir or context.env.get(CONF_DIR_VARIABLE) or CONF_DIR


def add_bin_dir(parser: ArgumentParser) -> None:
    """Adds --bin-dir; `bin_dirs` reads it."""
    parser.add_argument(
        "--bin-dir",
        metavar="DIR[:DIR]",
        help=f"directories of plugins, the first match wins ({BIN_DIR}, then the directories of installed runtimes; "
        f"${BIN_DIR_VARIABLE})",
    )


def bin_dirs(context: Context, options: Namespace) -> tuple[str, ...]:
    """Returns the directories of plugins, in search order."""
    text = getattr(options, "bin_dir", None) or context.env.get(BIN_DIR_VARIABLE)
    directories = text.split(":") if text else (BIN_DIR, *runtimes.list_bin_dirs(context.env))
    return tuple(dict.fromkeys(directory for directory in directories if directory))


def add_cache_dir(parser: ArgumentParser) -> None:
    """Adds --cache-dir, the directory that has libcni's `results`; `layers` reads it."""
    parser.add_argument(
        "--cache-dir",
        metavar="DIR",
        action="append",
        default=[],
        help=f"a runtime's cache, whose `results` lists its attachments; repeatable ({CACHE_DIR}). That of Multus is "
        "read in addition, if the directory of network configurations has one",
    )


def layers(context: Context, options: Namespace) -> tuple[Layer, ...]:
    """Returns the layers that attach this node's pods; the first one's cache is written by `podwire add`."""
    return read_layers(conf_dir(context, options), options.cache_dir or [CACHE_DIR])


def places(context: Context, options: Namespace) -> Directories:
    """Returns the directories to read."""
    data_dir = getattr(options, "data_dir", DATA_DIR)
    return Directories(conf_dir(context, options), layers(context, options), data_dir)


def add_json(parser: ArgumentParser) -> None:
    """Adds --json: one JSON document on stdout instead of text (`context.out.as_json`)."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_options(parser: ArgumentParser) -> None:
    """Adds the options that most commands have: --conf-dir, --bin-dir, --cache-dir, --json."""
    add_conf_dir(parser)
    add_bin_dir(parser)
    add_cache_dir(parser)
    add_json(parser)


def require_root(context: Context, command: str) -> None:
    """Raises CniError(4) if the user is not root; its hint is the whole command line with sudo."""
    if os.geteuid() != 0:
        # sudo clears the environment
        variables = [name for name in (CONF_DIR_VARIABLE, BIN_DIR_VARIABLE) if context.env.get(name)]
        settings = [f"{name}={quote(context.env[name])}" for name in variables]
        line = " ".join(["sudo", *settings, "podwire", *map(quote, context.arguments)])
        raise CniError(Code.INVALID_ENVIRONMENT, f"podwire {command} needs root", f"run it with sudo: {line}")


def run_subcommand(context: Context, options: Namespace) -> ExitStatus:
    """Runs the function that the parser of a subcommand has set as `subcommand`."""
    run: Callable[[Context, Namespace], ExitStatus] = options.subcommand
    return run(context, options)
