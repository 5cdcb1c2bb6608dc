"""The manual page podwire(1), written in man(7) from the parser.

The page has the text of every command's --help.
"""

from __future__ import annotations

import re
from argparse import SUPPRESS, Action
from collections.abc import Iterator

from podwire.command_tree import CommandNode
from process.version import __version__

_FILES = (
    ("/etc/cni/net.d", "the networks; the first file by name is the pod network of Kubernetes' runtimes"),
    ("/opt/cni/bin", "the plugins; this file is installed there under all its names"),
    ("/var/lib/cni/results", "libcni's cache: every attachment, with its configuration and result"),
    ("/var/lib/cni/networks", "host-local's reservations, a directory for each network"),
)
_VARIABLES = (
    ("NETCONFPATH", "the directory of networks, unless --conf-dir is set"),
    ("CNI_PATH", "the directories of plugins, unless --bin-dir is set"),
    ("NO_COLOR", "if set, output has no colour"),
    ("PODWIRE_LOG, PODWIRE_LOG_LEVEL", "where the plugins log to (a file, stderr, journald), and how much"),
)


def render(line: CommandNode, status: str) -> str:
    """Returns the page; `status` is the text about the exit status."""
    return "\n".join(_page(line, status)) + "\n"


def _page(line: CommandNode, status: str) -> Iterator[str]:
    yield f'.TH PODWIRE 1 "" "podwire {__version__}" "CNI plugins"'
    yield from (".SH NAME", r"podwire \- CNI network plugins in one file, and a tool for node operators")
    yield ".SH SYNOPSIS"
    for command in line.leaves():
        yield from (".HP", rf"\fB{escaped(command.words)}\fR {escaped(_usage(command))}".rstrip())
    yield ".SH DESCRIPTION"
    yield from (
        "A container runtime runs this file under the name of a plugin, with the CNI_* variables set and the network",
        "configuration on standard input. Under its own name it is the operator's tool.",
    )
    yield ".SH OPTIONS"
    yield from _options(line.options)
    yield ".SH COMMANDS"
    for command in line.below:
        yield from _command(command)
    yield from (".SH EXIT STATUS", *_lines(status))
    for title, entries in (("FILES", _FILES), ("ENVIRONMENT", _VARIABLES)):
        yield f".SH {title}"
        for name, meaning in entries:
            yield from (".TP", rf"\fB{escaped(name)}\fR", escaped(meaning))


def _command(command: CommandNode) -> Iterator[str]:
    title = f"{command.words} {_usage(command)}".strip()
    yield f'.SS "{escaped(title)}"'
    yield from _lines(command.parser.description or command.summary)
    yield from _options([*command.positionals, *command.options])
    if command.parser.epilog:
        yield from (".PP", ".nf", *_lines(command.parser.epilog), ".fi")
    for below in command.below:
        yield from _command(below)


def _options(actions: list[Action]) -> Iterator[str]:
    for action in actions:
        if action.help == SUPPRESS or action.dest == "help":
            continue
        names = ", ".join(action.option_strings) or _value(action)
        value = f" {_value(action)}" if action.option_strings and action.nargs != 0 else ""
        yield from (".TP", rf"\fB{escaped(names)}\fR{escaped(value)}", *_lines(action.help or ""))


def _usage(command: CommandNode) -> str:
    """Returns the arguments in the command's usage line."""
    text = re.sub(r"\s+", " ", command.parser.format_usage()).strip()
    return text.removeprefix("usage: ").removeprefix(command.words).replace(" [-h]", "").strip()


def _value(action: Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest if not action.option_strings else action.dest.upper()


def _lines(text: str) -> list[str]:
    return [escaped(line) for line in text.splitlines()]


def escaped(text: str) -> str:
    """Returns a text with backslashes, hyphens, and a leading dot or quote escaped for man(7)."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped
