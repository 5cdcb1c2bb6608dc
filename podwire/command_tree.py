"""What may come next on the tool's command line, and what the tool has to say about itself, read off its parser.

One rule: nobody keeps a second list of commands and options; a word's place in the parser says what it may be, and its
metavar (NETWORK, NETNS, PLUGIN, FILE, DIR) where such words come from.
"""

from __future__ import annotations

import argparse
from argparse import Action, ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CommandNode:
    """One command, or the whole tool: its words ("podwire ipam list"), its parser, the commands below it."""

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
        """The words that are no options, but for the commands below."""
        return [action for action in self.parser._actions if not action.option_strings and not _is_commands(action)]

    def leaves(self) -> Iterator[CommandNode]:
        """Yields this one and all below it that do something themselves."""
        if not self.below:
            yield self
        for command in self.below:
            yield from command.leaves()


def command_tree(parser: ArgumentParser, summary: str = "") -> CommandNode:
    """Returns what `parser` reads."""
    below = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            below += [command_tree(own, summaries.get(name, "")) for name, own in action.choices.items()]
    return CommandNode(parser.prog, summary, parser, tuple(below))


def completions(
    line: CommandNode, words: Sequence[str], sources: Mapping[str, Callable[[], Sequence[str]]]
) -> Iterator[str]:
    """Yields what the last of `words` (those behind "podwire", the last perhaps empty) may be made into.

    `sources` has the words for a metavar; for one that it does not know (a file) the shell has its own.
    """
    *before, last = words or [""]
    positionals = list(line.positionals)
    given: Action | None = None  # the option whose value is next
    for word in before:
        below = {command.words.rpartition(" ")[2]: command for command in line.below}
        if given is not None:
            given = None
        elif word.startswith("-"):
            option = next((option for option in line.options if word in option.option_strings), None)
            given = option if option is not None and option.nargs != 0 else None
        elif word in below:
            line = below[word]
            positionals = list(line.positionals)
        elif positionals and positionals[0].nargs not in ("*", "+"):
            positionals.pop(0)
    if given is not None:
        found = _values(given, sources)
    elif last.startswith("-"):
        found = [name for option in line.options for name in option.option_strings]
    else:
        below_words = [command.words.rpartition(" ")[2] for command in line.below]
        found = below_words + (_values(positionals[0], sources) if positionals else [])
    yield from (word for word in found if word.startswith(last))


def _is_commands(action: Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)


def _values(action: Action, sources: Mapping[str, Callable[[], Sequence[str]]]) -> list[str]:
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    source = sources.get(metavar)
    return list(source()) if source else []
