"""One plugin of a network's list, as the checks read it.

Values are read as plugins read them: keys in any case, and null as absent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cni import versions
from cni.conf import VALID_NAME
from cni.skel import Plugin
from podwire.lint import source as sources
from podwire.lint.source import JsonObject, LintSeverity, SourceFile


@dataclass(frozen=True, eq=False)
class PluginEntry:
    """A plugin's configuration; `plugin` and `ipam` are podwire's plugins that it names, if they are podwire's."""

    json_object: JsonObject
    value: Mapping[str, object]
    type: str
    ipam_type: str
    plugin: Plugin | None
    ipam: Plugin | None
    version: str
    network: str

    def get(self, path: str) -> object:
        """Returns the value of a key path ("ipam.subnet"), None if it is absent."""
        return _get(self.value, path)

    def is_set(self, path: str) -> bool:
        """Returns whether a flag is true."""
        return self.get(path) is True

    def note(self, path: str, text: str, hint: str = "") -> None:
        """Adds a note: something worth knowing."""
        self.json_object.add(LintSeverity.NOTE, path, text, hint)

    def warn(self, path: str, text: str, hint: str = "") -> None:
        """Adds a warning: it works, but not as intended."""
        self.json_object.add(LintSeverity.WARNING, path, text, hint)

    def error(self, path: str, text: str, hint: str = "") -> None:
        """Adds an error: a runtime or a plugin will refuse it."""
        self.json_object.add(LintSeverity.ERROR, path, text, hint)

    @property
    def parsers(self) -> Iterator[Plugin]:
        """Podwire's plugins that read this configuration."""
        return (plugin for plugin in (self.plugin, self.ipam) if plugin)


def read_entries(
    source: SourceFile, plugins: Mapping[str, Plugin]
) -> tuple[tuple[PluginEntry, ...], tuple[SourceFile, ...]]:
    """Returns the plugins of the network in a file, and the files that libcni adds to it, which it reads."""
    root = source.root
    if root is None:
        return (), ()
    value = root.value
    network = source.network
    raw_name = _text(_get(value, "name"))
    name = network.name if network else raw_name if VALID_NAME.fullmatch(raw_name) else "network"
    version = network.version if network else _text(_get(value, "cniVersion")) or versions.CURRENT
    drop_ins = _read_drop_ins(source, value, name)
    objects = [*_inline(root), *(file.root for file in drop_ins if file.root)]
    return tuple(_entry(json_object, plugins, version, name) for json_object in objects), drop_ins


def _inline(root: JsonObject) -> list[JsonObject]:
    listed = root.document.node("plugins", root.node)
    if listed is None or listed.elements is None:
        return [root] if root.node.get("type") and not listed else []
    elements = (root.below(f"plugins[{index}]") for index in range(len(listed.elements)))
    return [json_object for json_object in elements if json_object]


def _read_drop_ins(source: SourceFile, value: Mapping[str, object], name: str) -> tuple[SourceFile, ...]:
    """Reads the files that libcni adds to a list: DIR/NAME/*.conf."""
    if not source.path.endswith(".conflist") or _get(value, "loadOnlyInlinedPlugins") is True:
        return ()
    directory = os.path.join(os.path.dirname(source.path), name)
    try:
        names = sorted(item for item in os.listdir(directory) if item.endswith(".conf"))
    except OSError:
        return ()
    return tuple(sources.read_part(os.path.join(directory, item)) for item in names)


def _entry(json_object: JsonObject, plugins: Mapping[str, Plugin], version: str, network: str) -> PluginEntry:
    value = json_object.value
    kind, ipam = _text(_get(value, "type")), _text(_get(value, "ipam.type"))
    return PluginEntry(json_object, value, kind, ipam, plugins.get(kind), plugins.get(ipam), version, network)


def _get(value: object, path: str) -> object:
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return None
        folded = name.casefold()
        values = [item for key, item in value.items() if key.casefold() == folded and item is not None]
        value = values[-1] if values else None
    return value


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
