"""Checks the networks to which Multus delegates: in its file of net.d, and in NetworkAttachmentDefinitions.

A delegate is checked as the file of a network is. Multus passes on only what the runtime passes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from cni import gojson
from cni.errors import CniError, Code
from podwire import multus, networks
from podwire.lint import source
from podwire.lint.entry import PluginEntry
from podwire.lint.source import LintSeverity, SourceFile
from podwire.networks import Network

_COMMAND = "kubectl get net-attach-def -A -o json"
_LOST = {"portMappings": "host ports are", "bandwidth": "rate limits are"}

_Check = Callable[[SourceFile], tuple[tuple[PluginEntry, ...], tuple[SourceFile, ...]]]


class Delegate(NamedTuple):
    """A network to which Multus delegates, and its plugins."""

    file: SourceFile
    entries: tuple[PluginEntry, ...]


def check(file: SourceFile, check_network: _Check) -> list[Delegate]:
    """Checks the delegates in a file, each with `check_network`; returns them."""
    delegates = [Delegate(one, check_network(one)[0]) for one in source.list_delegates(file)]
    plugin = multus.find_multus(file.network.plugins) if file.network else None
    if plugin is not None:
        if plugin["type"] == "multus" and not (plugin.get("delegates") or plugin.get("clusterNetwork")):
            text = 'it has neither "delegates" nor "clusterNetwork": Multus refuses every pod'
            file.add(LintSeverity.ERROR, text, 'write the network of eth0 into "delegates"')
        listed = [delegate.file.network for delegate in delegates]
        listed += [one.network for one in networks.read_cluster_network(plugin)]
        _check_capabilities(file, listed[0] if listed else None)
    return delegates


def _check_capabilities(file: SourceFile, cluster: Network | None) -> None:
    """Adds a warning for each capability that only the cluster's network declares: it alone gets the runtime's."""
    for name in cluster.capabilities if cluster else ():
        if file.network and file.root and name not in file.network.capabilities:
            text = f'the delegate declares the capability "{name}", and Multus does not'
            hint = f'the runtime passes it to Multus only; write "capabilities": {{"{name}": true}} here, too'
            lost = _LOST.get(name, "its arguments are")
            file.root.add(LintSeverity.WARNING, "capabilities", f"{text}: {lost} silently lost", hint)


def check_order(files: Sequence[SourceFile], winner: SourceFile | None) -> None:
    """Adds a warning to each file of Multus that Kubernetes' runtimes do not use, as another one is the first."""
    for one in files:
        if _is_multus(one.network) and one is not winner and winner and one.root:
            what = "two files are Multus'" if _is_multus(winner.network) else "pods get no second network"
            text = f"Kubernetes' runtimes use {winner.path}, the first file by name, and not this one: {what}"
            hint = "move one out of the directory" if _is_multus(winner.network) else "rename it to 00-multus.conf"
            one.root.add(LintSeverity.WARNING, "name", text, hint)


def check_cluster_network(files: Iterable[SourceFile]) -> None:
    """Adds a finding to each file of Multus whose "clusterNetwork" is no network on this node."""
    for file in files:
        plugin = multus.find_multus(file.network.plugins) if file.network else None
        if plugin is None or not plugin.get("clusterNetwork") or networks.read_cluster_network(plugin):
            continue
        value = f'"clusterNetwork" is {plugin["clusterNetwork"]}'
        is_path = str(plugin["clusterNetwork"]).startswith("/")
        if is_path and plugin["type"] == "multus":  # a daemon in a container may see other directories
            hint = "name a file or directory that has the network of eth0"
            file.add(LintSeverity.WARNING, f"{value}, which has no network: Multus refuses every pod", hint)
        else:
            where = "this node does not have it" if is_path else 'no file in "confDir" has it'
            hint = "if it is a NetworkAttachmentDefinition, check it with --nad"
            file.add(LintSeverity.NOTE, f"{value}, and {where}: the network of eth0 is not checked", hint)


def list_unfiled_plugins(delegates: Iterable[Delegate], files: Iterable[SourceFile]) -> Iterator[PluginEntry]:
    """Yields the plugins of the delegates without a file of their name; adds a warning if that file differs."""
    by_name = {file.network.name: file for file in files if file.network}
    for file, entries in delegates:
        same = by_name.get(file.network.name) if file.network else None
        if same is None or same.network is None or file.network is None:
            yield from entries
        elif replace(same.network, path="") != replace(file.network, path="") and file.root:
            text = f'pods get this network, which differs from "{file.network.name}" in {same.path}'
            file.root.add(LintSeverity.WARNING, "name", text, "make both equal, or give the other one another name")


def read_definitions(data: bytes, path: str) -> tuple[SourceFile, ...]:
    """Returns the networks of NetworkAttachmentDefinitions, each under its name; raises CniError(6) for other text."""
    try:
        document = gojson.loads(data)
    except ValueError as error:
        raise CniError(Code.DECODING_FAILURE, f"{path} is not JSON: {error}", f"write it by: {_COMMAND}") from error
    listed = document.get("items", [document]) if isinstance(document, dict) else None
    if not isinstance(listed, list) or not all(map(_is_definition, listed)):
        msg = f"{path} has something else than NetworkAttachmentDefinitions"
        raise CniError(Code.DECODING_FAILURE, msg, f"write it by: {_COMMAND}")
    return tuple(_read_definition(item) for item in listed)


def _is_definition(item: object) -> bool:
    if not isinstance(item, dict) or item.get("kind") != "NetworkAttachmentDefinition":
        return False
    return isinstance(item.get("metadata"), dict)


def _read_definition(item: dict[str, dict[str, object]]) -> SourceFile:
    name = str(item["metadata"].get("name"))
    path = f"{item['metadata'].get('namespace') or 'default'}/{name}"
    spec = item.get("spec")
    config = spec.get("config") if isinstance(spec, dict) else None
    if not isinstance(config, str) or not config.strip():
        file = SourceFile(path)
        file.add(LintSeverity.NOTE, 'it has no "spec.config": Multus reads the file of this name in its "confDir"')
        return file
    return source.read_text(path, _with_name(config, name).encode("utf-8", "replace"))


def _with_name(config: str, name: str) -> str:
    """Returns a configuration with the name that Multus adds where it is missing: that of the definition."""
    try:
        items = gojson.loads(config.encode("utf-8", "replace"))
    except ValueError:
        return config
    if not isinstance(items, dict) or items.get("name"):
        return config
    return config.replace("{", f'{{"name": "{name}"{", " if items else ""}', 1)


def _is_multus(network: Network | None) -> bool:
    return network is not None and multus.find_multus(network.plugins) is not None
