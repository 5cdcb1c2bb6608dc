"""Checks the names of keys and the types of their values against the plugins' key schemas (cni.keys).

An unknown key is reported with the most similar known one; the plugin's parser checks the content of strings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cni.keys import (
    ANY,
    BOOLEAN,
    CIDR,
    COMMON,
    INTEGER,
    IP,
    LIST,
    NETWORK,
    OBJECT,
    REQUEST,
    STRING,
    Key,
    merged,
)
from podwire.lint.entry import PluginEntry
from podwire.lint.known import RUNTIME_KEYS, UNREAD, nearest
from podwire.lint.positions import JsonValue, walk
from podwire.lint.source import JsonObject, LintSeverity, SourceFile

_WORDS = {
    STRING: "a string",
    BOOLEAN: "true or false",
    INTEGER: "an integer",
    IP: "an IP address in quotes",
    CIDR: "an address with prefix in quotes",
    OBJECT: "an object",
    LIST: "a list",
}
_NAMES = {
    STRING: "a string",
    BOOLEAN: "a boolean",
    INTEGER: "a number",
    "fraction": "a number with a fraction",
    OBJECT: "an object",
    LIST: "a list",
}
_COMMENTS = ("_", "//", "#", "$", "comment", "description")
# Keys whose content is free: users' own, or set by the runtime.
_OPEN = ("args", "runtimeconfig", "prevresult", "capabilities")
_INFINITE = float("inf")  # the parsed value of a number that is too large
_MAX_LISTED = 8  # known keys that a hint lists


@dataclass(frozen=True)
class _Table:
    """The key schema of an object; `reader` returns the plugin that reads a key path, "" where any key is allowed."""

    json_object: JsonObject
    keys: tuple[Key, ...]
    reader: Callable[[str], str]


def check_network(source: SourceFile) -> None:
    """Checks the keys beside a list of plugins, and faults of any JSON: duplicate names, numbers that are too large."""
    root = source.root
    if root is None:
        return
    _check_repeated(root)
    if root.node.get("plugins") is None and root.node.get("type"):
        return  # the configuration of one plugin: its keys are the plugin's
    for member in root.node.members or ():
        key = _key(NETWORK, member.name)
        if key:
            _check_member(_Table(root, (), lambda path: ""), member.name, member.node, key)
        elif member.name not in RUNTIME_KEYS and not _is_comment(member.name):
            _add_unknown_network_key(root, member.name)


def check_plugin(item: PluginEntry) -> None:
    """Checks the keys of one plugin's configuration."""
    groups = [COMMON, REQUEST, *(plugin.keys for plugin in item.parsers)]
    root = item.json_object.source.root
    if root and root.node is item.json_object.node:  # alone in its file
        groups.append(NETWORK)

    def reader(path: str) -> str:
        first = path.partition(".")[0].casefold()
        plugin = None if first in _OPEN else item.ipam if first == "ipam" else item.plugin
        return plugin.name if plugin else ""

    table = _Table(item.json_object, merged(*groups), reader)
    _check_object(table, "", item.json_object.node, table.keys)
    for key in REQUEST:
        if item.get(key.name) is not None:
            item.warn(key.name, f'"{key.name}" is set by the runtime', "remove the key")


def check_delegate(item: PluginEntry, bridge: tuple[Key, ...]) -> None:
    """Checks the configuration that flannel passes to bridge."""
    inner = item.json_object.below("delegate") if item.type == "flannel" else None
    if inner and item.get("delegate.type") in (None, "bridge"):
        table = _Table(inner, merged(COMMON, bridge), lambda path: "" if path in ("ipam", *_OPEN) else "bridge")
        _check_object(table, "", inner.node, table.keys)


def _check_object(table: _Table, path: str, node: JsonValue, keys: tuple[Key, ...]) -> None:
    for member in node.members or ():
        where = f"{path}.{member.name}" if path else member.name
        key = _key(keys, member.name)
        if key:
            _check_member(table, where, member.node, key)
        elif table.reader(where) and not _is_comment(member.name):
            _add_unknown_key(table, where, member.name, keys)


def _check_member(table: _Table, path: str, node: JsonValue, key: Key) -> None:
    if path.rpartition(".")[2] != key.name:
        table.json_object.add(
            LintSeverity.NOTE,
            path,
            f'"{path.rpartition(".")[2]}" is spelt "{key.name}"',
            "it works: case is ignored",
        )
    _check_value(table, path, node, key)


def _check_value(table: _Table, path: str, node: JsonValue, key: Key) -> None:
    kind = _kind(node)
    if kind == "null":
        return
    if not _fits(kind, key.kinds):
        _add_wrong_type(table.json_object, path, node, key.kinds)
    elif kind == STRING and key.choices and node.value and node.value not in key.choices:
        _add_unknown_value(table.json_object, path, str(node.value), key)
    elif kind == LIST and key.of:
        for index, element in enumerate(node.elements or ()):
            _check_value(table, f"{path}[{index}]", element, Key(key.name, key.of, _of_element(key), key.keys))
    elif kind == OBJECT and key.of:
        for member in node.members or ():
            if _kind(member.node) != "null" and not _fits(_kind(member.node), key.of):
                _add_wrong_type(table.json_object, f"{path}.{member.name}", member.node, key.of)
    elif kind == OBJECT and key.keys:
        _check_object(table, path, node, key.keys)


def _of_element(key: Key) -> tuple[str, ...]:
    """Returns the types that the elements of a list in a list have."""
    return (OBJECT,) if LIST in key.of else ()


def _check_repeated(root: JsonObject) -> None:
    for path, node in walk(root.node):
        if isinstance(node.value, float) and abs(node.value) == _INFINITE:
            root.add(
                LintSeverity.ERROR, path, "this number is too large for runtimes to read", "JSON numbers end at 1.8e308"
            )
        names = Counter(item.name for item in node.members or ())
        for name, times in names.items():
            if times > 1:
                where = f"{path}.{name}" if path else name
                root.add(
                    LintSeverity.WARNING,
                    where,
                    f'"{name}" is here {times} times',
                    "runtimes use the last one: remove the others",
                )


def _add_unknown_key(table: _Table, path: str, name: str, keys: tuple[Key, ...]) -> None:
    if name in UNREAD:
        table.json_object.add(LintSeverity.NOTE, path, f'{table.reader(path)} does not read "{name}"', UNREAD[name])
        return
    known = [key.name for key in keys]
    if likely := nearest(name, known):
        hint = f'did you mean "{likely}"?'
    elif elsewhere := [where for where in _paths(table.keys) if where.rpartition(".")[2].casefold() == name.casefold()]:
        around = min(elsewhere, key=lambda where: where.count(".")).rpartition(".")[0]
        hint = f'move it into "{around}"' if around else "move it to an outer object"
    elif _key(NETWORK, name):
        hint = 'move it beside "plugins"'
    else:
        hint = f"known here: {', '.join(known)}" if len(known) <= _MAX_LISTED else "it is ignored"
    table.json_object.add(
        LintSeverity.WARNING, path, f'unknown key "{name}": {table.reader(path)} does not read it', hint
    )


def _add_unknown_network_key(root: JsonObject, name: str) -> None:
    if likely := nearest(name, [key.name for key in NETWORK]):
        root.add(LintSeverity.WARNING, name, f'unknown key "{name}"', f'did you mean "{likely}"?')
    elif _key((*COMMON, *REQUEST), name):
        root.add(LintSeverity.WARNING, name, f'"{name}" has no effect here', 'move it into one of "plugins"')
    else:
        root.add(LintSeverity.NOTE, name, f'unknown key "{name}"', "no plugin gets it")


def _add_wrong_type(json_object: JsonObject, path: str, node: JsonValue, kinds: tuple[str, ...]) -> None:
    expected = " or ".join(dict.fromkeys(_WORDS[kind] for kind in kinds))
    text = str(node.value) if isinstance(node.value, str | int | float) else ""
    hint = f"write {expected}"
    if isinstance(node.value, str):
        if BOOLEAN in kinds and text.lower() in ("true", "false"):
            hint = f"write {text.lower()} without quotes"
        elif INTEGER in kinds and text.isascii() and text.isdigit():
            hint = f"write {text} without quotes"
        elif LIST in kinds:
            hint = "write it in brackets: [...]"
    elif STRING in kinds and text:
        hint = "write it in double quotes"
    json_object.add(LintSeverity.ERROR, path, f'"{path}" must be {expected}, not {_NAMES[_kind(node)]}', hint)


def _add_unknown_value(json_object: JsonObject, path: str, value: str, key: Key) -> None:
    likely = nearest(value, key.choices)
    hint = f'did you mean "{likely}"?' if likely else f"known: {', '.join(key.choices)}"
    json_object.add(LintSeverity.WARNING, path, f'"{path}" has an unknown value: "{value}"', hint)


def _kind(node: JsonValue) -> str:
    if node.members is not None:
        return OBJECT
    if node.elements is not None:
        return LIST
    value = node.value
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int):
        return INTEGER
    if isinstance(value, float):
        return "fraction"
    return "null" if value is None else STRING


def _fits(kind: str, kinds: tuple[str, ...]) -> bool:
    return ANY in kinds or kind in kinds or (kind == STRING and (IP in kinds or CIDR in kinds))


def _key(keys: Iterable[Key], name: str) -> Key | None:
    folded = name.casefold()
    return next((key for key in keys if key.name.casefold() == folded), None)


def _paths(keys: tuple[Key, ...], prefix: str = "") -> Iterator[str]:
    for key in keys:
        yield prefix + key.name
        yield from _paths(key.keys, f"{prefix}{key.name}.")


def _is_comment(name: str) -> bool:
    return name.casefold().startswith(_COMMENTS)
