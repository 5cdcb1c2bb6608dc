"""Adds subcommands that send requests to podwire-agent."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Mapping, Sequence

from podwire.cluster.agent_socket import SOCKET
from podwire.command import Context, ExitStatus, add_json, add_parser


def add_socket(parser: ArgumentParser) -> None:
    """Adds --socket, read as `options.socket`."""
    parser.add_argument("--socket", metavar="PATH", default=SOCKET, help=f"podwire-agent's Unix socket ({SOCKET})")


def add_command(
    commands: _SubParsersAction[ArgumentParser],
    name: str,
    summary: str,
    description: str,
    run: Callable[[Context, Namespace], ExitStatus],
    examples: Mapping[str, Sequence[tuple[str, str]]],
) -> ArgumentParser:
    """Adds a subcommand with --socket and --json, and returns its parser; `run` is read as `options.subcommand`.

    `examples` are those of all subcommands, by name.
    """
    parser = add_parser(commands, name, summary, description, examples[name])
    add_socket(parser)
    add_json(parser)
    parser.set_defaults(subcommand=run)
    return parser
