"""The networks configured on this node: the files of net.d, read as the runtimes read them.

One rule: what libcni does with a file and its keys is done here once, for every command: which files count, in which
order, what a plugin is asked.

Kubernetes' runtimes (containerd, CRI-O) take *.conf, *.conflist and *.json in lexicographic order, and the first that
can be used is the pod network. libcni (podman, cnitool) looks for a name in *.conflist first, then in the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cni import gojson, versions
from cni.conf import VALID_NAME, Attachment
from cni.errors import CniError, Code
from cni.fields import Fields
from podwire.lint import positions
from podwire.lint.known import nearest
from process import files

SUFFIXES = (".conf", ".conflist", ".json")


@dataclass(frozen=True)
class Network:
    """One network: its name, the version its plugins are asked in, their configurations as they stand in the file."""

    name: str
    version: str
    plugins: tuple[Mapping[str, object], ...]
    disable_check: bool = False
    disable_gc: bool = False
    path: str = ""

    @property
    def capabilities(self) -> list[str]:
        """The capabilities that at least one of `plugins` declares, each once."""
        names = (name for plugin in self.plugins for name in _declared(plugin))
        return list(dict.fromkeys(names))

    def build_config(
        self,
        plugin: Mapping[str, object],
        *,
        capability_args: Mapping[str, object] | None = None,
        prev_result: object = None,
        valid: Iterable[Attachment] | None = None,
    ) -> dict[str, object]:
        """Returns what libcni asks one of `plugins`: with the network's name and version, and what is given.

        Of `capability_args` a plugin gets those whose capability it declares. `valid` are the attachments GC must keep.
        """
        asked = {**plugin, "name": self.name, "cniVersion": self.version}
        declared = _declared(plugin)
        runtime = {key: value for key, value in (capability_args or {}).items() if key in declared}
        if runtime:
            asked["runtimeConfig"] = runtime
        if prev_result is not None:
            asked["prevResult"] = prev_result
        if valid is not None:
            listed = [{"containerID": one.container_id, "ifname": one.ifname} for one in sorted(valid)]
            asked["cni.dev/valid-attachments"] = asked["cni.dev/attachments"] = listed
        return asked


@dataclass(frozen=True)
class NetworkFile:
    """One file of net.d: the network in it, or the problem for which no runtime can use it."""

    path: str
    network: Network | None = None
    problem: CniError | None = field(default=None, compare=False)

    @property
    def is_hidden(self) -> bool:
        """Tells whether we may not read the file: a runtime, which is root, may."""
        return os.path.lexists(self.path) and not os.access(self.path, os.R_OK)


def read_directory(directory: str) -> tuple[NetworkFile, ...]:
    """Reads all files of `directory` that runtimes look at, in lexicographic order; no directory has none.

    Raises CniError(5) for a directory that cannot be read.
    """
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIXES))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise CniError(Code.IO_FAILURE, f"cannot read {directory}: {error.strerror}") from error
    return tuple(read_file(os.path.join(directory, name)) for name in names)


def read_file(path: str) -> NetworkFile:
    """Reads one file; what is wrong with it is its `problem`."""
    try:
        text = files.read(path, gojson.MAX_BYTES)
        return NetworkFile(path, parse(text, path))
    except OSError as error:
        return NetworkFile(path, problem=CniError(Code.IO_FAILURE, f"cannot be read: {error.strerror}"))
    except ValueError as error:
        return NetworkFile(path, problem=CniError(Code.DECODING_FAILURE, str(error)))
    except CniError as error:
        return NetworkFile(path, problem=error)


def parse(text: bytes, path: str) -> Network:
    """Reads a list, or the configuration of one plugin, which is a list of one; raises CniError(7), ValueError.

    A list whose name ends in .conf or .json is refused, as by libcni; the other way round, too.
    """
    items = positions.loads(text)
    if not isinstance(items, dict):
        raise CniError(Code.DECODING_FAILURE, "it is not a JSON object")
    fields = Fields(items, context="network configuration")
    name = fields.string("name")
    if not name:
        raise fields.error("name", "is missing", "every network has a name")
    if not VALID_NAME.fullmatch(name):
        raise fields.error("name", f"has characters that are not allowed: {name}", "letters, digits, . _ - are")
    is_list = path.endswith(".conflist")
    if not is_list and path.endswith(SUFFIXES) and not fields.string("type"):
        raise fields.error("type", "is missing", "a list of plugins belongs into a file named *.conflist")
    if is_list and not fields.has("plugins") and fields.has("type"):
        raise fields.error("plugins", "is missing", "the configuration of one plugin belongs into a file named *.conf")
    plugins = _plugins(fields, name, path) if is_list or fields.has("plugins") else (items,)
    return Network(name, _version(fields), plugins, _flag(fields, "disableCheck"), _flag(fields, "disableGC"), path)


def get_network(directory: str, name: str) -> Network:
    """Returns the network `name` as libcni finds it: the first *.conflist of that name, then the first other file.

    Raises CniError(7) when there is none, naming those that there are and the files that cannot be used.
    """
    found = read_directory(directory)
    network = by_name(found).get(name)
    if network is None:
        raise unknown_network(name, directory, found)
    return network


def by_name(found: Iterable[NetworkFile]) -> dict[str, Network]:
    """Returns the network that libcni finds by each name, those of *.conflist first."""
    networks: dict[str, Network] = {}
    for file in sorted(found, key=lambda file: not file.path.endswith(".conflist")):
        if file.network:
            networks.setdefault(file.network.name, file.network)
    return networks


def unknown_network(name: str, directory: str, found: Iterable[NetworkFile]) -> CniError:
    """Returns what every command says of a network that there is not: which there are, which files cannot be used."""
    known = by_name(found)
    likely = nearest(name, [*known])
    guess = f'did you mean "{likely}"? ' if likely else ""
    broken = "".join(f"; {file.path}: {file.problem.msg}" for file in found if file.problem)
    return CniError(
        Code.INVALID_NETWORK_CONFIG,
        f'there is no network "{name}" in {directory}',
        f"{guess}networks there: {', '.join(known) or 'none'}{broken}",
    )


def _declared(plugin: Mapping[str, object]) -> list[str]:
    """Returns the capabilities that a plugin declares: those that are true."""
    declared = plugin.get("capabilities")
    return [name for name, value in declared.items() if value is True] if isinstance(declared, dict) else []


def _plugins(fields: Fields, name: str, path: str) -> tuple[Mapping[str, object], ...]:
    """Returns the plugins of a list: those in it, then those beside it, unless it says that it is whole."""
    inline = fields.raw("plugins")
    if inline is not None and not (isinstance(inline, list) and all(isinstance(item, dict) for item in inline)):
        raise fields.error("plugins", "must be a list of objects")
    plugins: list[Mapping[str, object]] = list(inline or [])
    if path and not fields.boolean("loadOnlyInlinedPlugins"):  # beside what is cached is nothing
        beside = os.path.join(os.path.dirname(path), name)
        if os.path.isdir(beside):
            for file in sorted(os.listdir(beside)):
                if file.endswith(".conf"):
                    item = _beside(os.path.join(beside, file))
                    if not isinstance(item, dict):
                        raise CniError(Code.DECODING_FAILURE, f"{beside}/{file}: it is not a JSON object")
                    plugins.append(item)
    if not plugins:
        raise fields.error("plugins", "has no plugin", "list one at least")
    for index, plugin in enumerate(plugins):
        if not isinstance(plugin.get("type"), str) or not plugin["type"]:
            raise fields.error(f"plugins[{index}].type", "is missing", "it is the file name of a plugin")
    return tuple(plugins)


def _beside(path: str) -> object:
    try:
        return positions.loads(files.read(path, gojson.MAX_BYTES))
    except ValueError as error:
        raise CniError(Code.DECODING_FAILURE, f"{path}: {error}") from error


def _version(fields: Fields) -> str:
    """Returns the version of a list: of `cniVersion` and `cniVersions` the highest that we know (libcni)."""
    own = fields.string("cniVersion")
    listed = [version for version in (own, *fields.strings("cniVersions")) if version in versions.SUPPORTED]
    return max(listed, key=versions.parse, default=own or "0.1.0")


def _flag(fields: Fields, key: str) -> bool:
    """Returns a flag that may also be "true" or "false" in quotes (libcni)."""
    value = fields.raw(key)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return fields.boolean(key)
