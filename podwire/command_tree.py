"""The tree of the tool's commands, read from its argparse parser: for completion and the manual page.

There is no second list of commands and options. A word's position in the parser decides its completions, and
its metavar (NETWORK, NETNS, PLUGIN, FILE, DIR) where their names come from.
"""

from __future__ import annotations

import argparse
from argparse import Action, ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CommandNode:
    """A command, or the whole tool: its words ("podwire ipam list"), its parser, the commands below it."""

    words: str
    summary: str
    parser: ArgumentParser
    below: tuple[CommandNode, ...]

    @property
    def options(self) -> list[Action]:
        """The options, in the order of the help."""
        return [action for action in self.parser._actions if action.option_strings]

    @property
    def positionals(self) -> list[Action]:
        """The arguments that are neither options nor the commands below."""
        return [action for action in self.parser._actions if not action.option_strings and not _is_commands(action)]

    def leaves(self) -> Iterator[CommandNode]:
        """Yields the commands that can be run: this one, or those below it."""
        if not self.below:
            yield self
        for command in self.below:
            yield from command.leaves()


def command_tree(parser: ArgumentParser, summary: str = "") -> CommandNode:
    """Returns the tree of the commands that `parser` accepts."""
    below = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            below += [command_tree(child, summaries.get(name, "")) for name, child in action.choices.items()]
    return CommandNode(parser.prog, summary, parser, tuple(below))


def completions(
    line: CommandNode, words: Sequence[str], sources: Mapping[str, Callable[[], Sequence[str]]]
) -> Iterator[str]:
    """Yields the completions of the last of `words`: the arguments of podwire so far, the last perhaps "".

    `sources` lists the names for a metavar; without a source (FILE) the shell completes paths.
    """
    *before, last = words or [""]
    positionals = list(line.positionals)
    pending: Action | None = None  # the option whose value is next
    for word in before:
        below = {command.words.rpartition(" ")[2]: command for command in line.below}
        if pending is not None:
            pending = None
        elif word.startswith("-"):
            option = next((option for option in line.options if word in option.option_strings), None)
            pending = option if option is not None and option.nargs != 0 else None
        elif word in below:
            line = below[word]
            positionals = list(line.positionals)
        elif positionals and positionals[0].nargs not in ("*", "+"):
            positionals.pop(0)
    if pending is not None:
        values = _values(pending, sources)
    elif last.startswith("-"):
        values = [name for option in line.options for name in option.option_strings]
    else:
        below_words = [command.words.rpartition(" ")[2] for command in line.below]
        values = below_words + (_values(positionals[0], sources) if positionals else [])
    yield from (word for word in values if word.startswith(last))


def _is_commands(action: Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)


def _values(action: Action, sources: Mapping[str, Callable[[], Sequence[str]]]) -> list[str]:
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    source = sources.get(metavar)
    return list(source()) if source else []
