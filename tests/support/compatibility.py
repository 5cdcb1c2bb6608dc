"""What docs/compatibility.md promises, as lists that can be compared: keys, names, options, documents, numbers.

python -m tests.support.compatibility        writes the present lists to tests/data/compatibility.json
"""

import json
import re
from collections.abc import Iterator

from cni import versions
from cni.errors import Code
from cni.keys import Key
from podwire import cli
from podwire.command import ExitStatus
from podwire.command_tree import CommandNode, command_tree
from podwire.main import PLUGINS
from tests.support.binaries import ROOT
from tests.support.markdown import DOCS, Document

RECORD = ROOT / "tests" / "data" / "compatibility.json"
_WORD = re.compile(r'"(\w+)"')


def current() -> dict[str, list[str]]:
    commands = list(command_tree(cli.build_parser()).leaves())
    return {
        "CNI versions": list(versions.SUPPORTED),
        "error codes": [f"{code.value} {code.name}" for code in Code],
        "exit statuses": [f"{status.value} {status.name}" for status in ExitStatus],
        **{f"keys of {name}": sorted(_keys(plugin.keys)) for name, plugin in PLUGINS.items()},
        **{f"capabilities of {name}": sorted(plugin.capabilities) for name, plugin in PLUGINS.items()},
        **{f"objects of {name}": sorted(_objects(name)) for name in PLUGINS},
        **{f"arguments of {command.words}": sorted(_arguments(command)) for command in commands},
        **{f"document of {command.words}": sorted(_words(command)) for command in commands},
    }


def record() -> dict[str, list[str]]:
    lists: dict[str, list[str]] = json.loads(RECORD.read_text())
    return lists


def _keys(keys: tuple[Key, ...], start: str = "") -> Iterator[str]:
    for key in keys:
        kinds = " or ".join(key.kinds) + (f" of {' or '.join(key.of)}" if key.of else "")
        yield f"{start}{key.name}: {kinds}" + (f" {', '.join(key.choices)}" if key.choices else "")
        yield from _keys(key.keys, f"{start}{key.name}.")


def _objects(name: str) -> Iterator[str]:
    """Yields the names on the host, from the table of a plugin's page."""
    for table in Document(DOCS / f"{name}.md").tables():
        for row in table:
            if "removed by" in row:
                object_, named, _ = row.values()
                yield f"{object_}: {named}" if "object" in row else object_


def _arguments(command: CommandNode) -> Iterator[str]:
    for action in (*command.options, *command.positionals):
        yield " ".join(action.option_strings) or str(action.metavar or action.dest)


def _words(command: CommandNode) -> set[str]:
    """Returns the words in the description of a command's document, which its --help prints after "--json"."""
    _, separator, text = (command.parser.description or "").partition("--json")
    return set(_WORD.findall(text)) if separator else set()


if __name__ == "__main__":
    RECORD.write_text(json.dumps({title: items for title, items in current().items() if items}, indent=1) + "\n")
