"""Reads the networks configured on this node from net.d, as the runtimes do.

The rules of libcni are implemented here once, for every command: which files count, in which order, and the
configuration that each plugin gets.

Kubernetes' runtimes (containerd, CRI-O) read *.conf, *.conflist and *.json in lexicographic order; the first usable
file is the pod network. libcni (podman, cnitool) looks for a name in *.conflist first, then in the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from cni import gojson, versions
from cni.conf import LISTED_AT, VALID_NAME, Attachment, NetConf
from cni.errors import CniError, Code, invalid_conf
from cni.fields import Fields
from podwire import multus
from podwire.lint import positions
from podwire.lint.known import nearest
from process import files

SUFFIXES = (".conf", ".conflist", ".json")


@dataclass(frozen=True)
class Network:
    """A network: its name, the CNI version for its plugins, and their configurations as in the file.

    `single_version`: "cniVersion" of the file; runtimes that do not know "cniVersions" use it.
    """

    name: str
    version: str
    plugins: tuple[Mapping[str, object], ...]
    disable_check: bool = False
    disable_gc: bool = False
    path: str = ""
    single_version: str = ""

    @property
    def capabilities(self) -> list[str]:
        """The capabilities that at least one of `plugins` declares, each once."""
        names = (name for plugin in self.plugins for name in _declared(plugin))
        return list(dict.fromkeys(names))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The types of its plugins and of their IPAM plugins, each once."""
        kinds = []
        for plugin in self.plugins:
            kinds.append(str(plugin["type"]))
            with suppress(CniError):
                kinds.append(Fields(plugin).section("ipam").string("type"))
        return tuple(dict.fromkeys(filter(None, kinds)))

    @property
    def is_loopback(self) -> bool:
        """Whether it only sets up lo."""
        return self.kinds == ("loopback",)

    @cached_property
    def segment(self) -> tuple[object, ...]:
        """The kind of its interfaces, and the host's bridge or master and the VLAN that connect them."""
        return tuple(self.plugins[0].get(key) for key in ("type", "bridge", "master", "vlan", "vlanId"))

    def build_config(
        self,
        plugin: Mapping[str, object],
        *,
        capability_args: Mapping[str, object] | None = None,
        prev_result: object = None,
        valid: Iterable[Attachment] | None = None,
        listed_at_ns: int = 0,
    ) -> dict[str, object]:
        """Returns the configuration that libcni passes to one of `plugins`, with the network's name and version.

        It has those of `capability_args` whose capability the plugin declares. `valid`: the attachments GC must keep;
        `listed_at_ns`: when they were listed, in nanoseconds since 1970.
        """
        config = {**plugin, "name": self.name, "cniVersion": self.version}
        declared = _declared(plugin)
        runtime = {key: value for key, value in (capability_args or {}).items() if key in declared}
        if runtime:
            config["runtimeConfig"] = runtime
        if prev_result is not None:
            config["prevResult"] = prev_result
        if valid is not None:
            listed = [{"containerID": one.container_id, "ifname": one.ifname} for one in sorted(valid)]
            config["cni.dev/valid-attachments"] = config["cni.dev/attachments"] = listed
            config[LISTED_AT] = listed_at_ns
        return config

    def net_conf(self, plugin: Mapping[str, object], *, capability_args: Mapping[str, object] | None = None) -> NetConf:
        """Returns the configuration of one of `plugins` for the parser of that plugin."""
        items = self.build_config(plugin, capability_args=capability_args)
        return NetConf(self.name, self.version, Fields(items), items)


@dataclass(frozen=True)
class NetworkFile:
    """A file of net.d: its network, or the problem that keeps runtimes from using it.

    `delegates` are the networks to which Multus attaches pods by this file, without those that are files of net.d.
    """

    path: str
    network: Network | None = None
    problem: CniError | None = field(default=None, compare=False)
    delegates: tuple[NetworkFile, ...] = ()

    @property
    def is_hidden(self) -> bool:
        """Whether this user may not read the file; a runtime, which is root, may."""
        return os.path.lexists(self.path) and not os.access(self.path, os.R_OK)


def read_directory(directory: str) -> tuple[NetworkFile, ...]:
    """Reads the files of `directory` that runtimes read, in lexicographic order; () if it does not exist.

    Raises CniError(5) for a directory that cannot be read.
    """
    try:
        paths = _list_files(directory)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise CniError(Code.IO_FAILURE, f"cannot read {directory}: {error.strerror}") from error
    network_files = tuple(map(read_file, paths))
    return tuple(
        replace(file, delegates=tuple(one for one in file.delegates if not _is_copy(one, network_files)))
        for file in network_files
    )


def with_delegates(network_files: Iterable[NetworkFile]) -> Iterator[NetworkFile]:
    """Yields the files, each followed by the delegates in it."""
    for file in network_files:
        yield file
        yield from file.delegates


def read_file(path: str) -> NetworkFile:
    """Reads one file, and what Multus delegates to; an error becomes its `problem`."""
    file = _read_alone(path)
    return replace(file, delegates=tuple(_read_delegates(file.network))) if file.network else file


def _read_alone(path: str) -> NetworkFile:
    try:
        return NetworkFile(path, parse(files.read(path, gojson.MAX_BYTES), path))
    except OSError as error:
        return NetworkFile(path, problem=CniError(Code.IO_FAILURE, f"cannot be read: {error.strerror}"))
    except ValueError as error:
        return NetworkFile(path, problem=CniError(Code.DECODING_FAILURE, str(error)))
    except CniError as error:
        return NetworkFile(path, problem=error)


def read_cluster_network(plugin: Mapping[str, object]) -> list[NetworkFile]:
    """Returns the file that "clusterNetwork" means; [] if there is none: then a NetworkAttachmentDefinition has it."""
    path, name = multus.find_cluster_network(plugin)
    if os.path.isfile(path):
        return [_read_alone(path)]
    with suppress(OSError):
        listed = [_read_alone(one) for one in _list_files(path)]
        return [file for file in listed if file.network and name in ("", file.network.name)][:1]
    return []


def parse(text: bytes, path: str) -> Network:
    """Parses a list, or the configuration of one plugin as a list of one; raises CniError(7), ValueError.

    Like libcni it refuses a list in a .conf or .json file, and a single plugin in a .conflist file.
    """
    return build(positions.loads(text), path)


def build(items: object, path: str) -> Network:
    """Returns the network of a parsed file, as `parse` does; raises CniError(7)."""
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
    single = items if "type" in items else {**items, "type": fields.string("type")}  # libcni ignores the case of keys
    plugins = _plugins(fields, name, path) if is_list or fields.has("plugins") else (single,)
    flags = _flag(fields, "disableCheck"), _flag(fields, "disableGC")
    return Network(name, _version(fields), plugins, *flags, path, fields.string("cniVersion"))


def get_network(directory: str, name: str) -> Network:
    """Returns the network `name` as libcni finds it: the first *.conflist of that name, then the first other file.

    Raises CniError(7) if there is none, with the existing networks and the unusable files.
    """
    network_files = read_directory(directory)
    network = by_name(network_files).get(name)
    if network is None:
        raise unknown_network(name, directory, network_files)
    return network


def by_name(network_files: Iterable[NetworkFile]) -> dict[str, Network]:
    """Returns a mapping of names to networks: Multus' delegates, then as libcni finds them, *.conflist first."""
    networks: dict[str, Network] = {}
    by_suffix = sorted(network_files, key=lambda file: not file.path.endswith(".conflist"))
    delegates = [delegate for file in by_suffix for delegate in file.delegates]
    for file in (*delegates, *by_suffix):
        if file.network:
            networks.setdefault(file.network.name, file.network)
    return networks


def unknown_network(name: str, directory: str, network_files: Iterable[NetworkFile]) -> CniError:
    """Returns the error for a network that does not exist, with the existing networks and the unusable files."""
    known = by_name(network_files)
    likely = nearest(name, [*known])
    guess = f'did you mean "{likely}"? ' if likely else ""
    broken = "".join(f"; {file.path}: {file.problem.msg}" for file in with_delegates(network_files) if file.problem)
    return invalid_conf(
        f'there is no network "{name}" in {directory}', f"{guess}networks there: {', '.join(known) or 'none'}{broken}"
    )


def _read_delegates(network: Network) -> Iterator[NetworkFile]:
    """Yields the networks to which Multus delegates, if one of the plugins is Multus."""
    plugin = multus.find_multus(network.plugins)
    if plugin is None:
        return
    yield from read_cluster_network(plugin)
    for number, items in multus.list_delegates(plugin):
        try:
            yield NetworkFile(network.path, replace(build(items, ""), path=network.path))
        except CniError as error:
            problem = CniError(error.code, f"delegates[{number}]: {error.msg}", error.details)
            yield NetworkFile(network.path, problem=problem)


def _list_files(directory: str) -> list[str]:
    return [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.endswith(SUFFIXES)]


def _is_copy(delegate: NetworkFile, network_files: Iterable[NetworkFile]) -> bool:
    """Returns whether a file defines the same network: Multus' daemon copies the cluster's into its configuration."""
    networks = [replace(file.network, path="") for file in network_files if file.network]
    return delegate.network is not None and replace(delegate.network, path="") in networks


def _declared(plugin: Mapping[str, object]) -> list[str]:
    """Returns the capabilities that a plugin declares: those that are true."""
    declared = plugin.get("capabilities")
    return [name for name, value in declared.items() if value is True] if isinstance(declared, dict) else []


def _plugins(fields: Fields, name: str, path: str) -> tuple[Mapping[str, object], ...]:
    """Returns the plugins of a list: inlined ones, then files beside it unless loadOnlyInlinedPlugins is set."""
    inline = fields.raw("plugins")
    if inline is not None and not (isinstance(inline, list) and all(isinstance(item, dict) for item in inline)):
        raise fields.error("plugins", "must be a list of objects")
    plugins: list[Mapping[str, object]] = list(inline or [])
    if path and not fields.boolean("loadOnlyInlinedPlugins"):  # a cached configuration has no files beside it
        beside = os.path.join(os.path.dirname(path), name)
        if os.path.isdir(beside):
            for file in sorted(os.listdir(beside)):
                if file.endswith(".conf"):
                    item = _beside(os.path.join(beside, file))
                    if not isinstance(item, dict):
                        raise CniError(Code.DECODING_FAILURE, f"{beside}/{file}: it is not a JSON object")
                    plugins.append(item)
    if not plugins:
        raise fields.error("plugins", "has no plugin", "list at least one")
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
    """Returns the version of a list: the highest supported one of `cniVersion` and `cniVersions`, as libcni does."""
    version = fields.string("cniVersion")
    listed = [item for item in (version, *fields.strings("cniVersions")) if item in versions.SUPPORTED]
    return max(listed, key=versions.parse, default=version or "0.1.0")


def _flag(fields: Fields, key: str) -> bool:
    """Returns a flag that may also be "true" or "false" in quotes (libcni)."""
    value = fields.raw(key)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return fields.boolean(key)
