"""Checks a list of plugins as a whole: versions, order, and that the plugins are installed.

Plugins run in the order of the list, and each gets the result of those before it.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Sequence

from cni import versions
from podwire.lint.entry import PluginEntry
from podwire.lint.known import ALL, CHAINED, INTERFACES, IPAMS, nearest
from podwire.lint.source import LintSeverity, SourceFile

_POLICIES = ("same-bridge", "isolated")


def check(source: SourceFile, items: Sequence[PluginEntry], bin_dirs: Sequence[str]) -> None:
    """Checks one network; without `bin_dirs` it does not check whether the plugins are installed."""
    _check_version(source, items)
    for item in items:
        _check_known(item, bin_dirs)
    _check_order(items)
    _check_backends(items)


def _check_version(source: SourceFile, items: Sequence[PluginEntry]) -> None:
    root = source.root
    if root is None:
        return
    value = root.value
    version = source.network.version if source.network else items[0].version if items else ""
    key = "cniVersions" if root.node.get("cniVersions") and not root.node.get("cniVersion") else "cniVersion"
    if root.node.get("cniVersion") is None and root.node.get("cniVersions") is None:
        root.add(LintSeverity.NOTE, key, '"cniVersion" is missing: that means 0.1.0', 'add "cniVersion": "1.0.0"')
    elif version not in versions.SUPPORTED and isinstance(version, str) and source.network:
        listed = ", ".join(versions.SUPPORTED)
        hint = f'did you mean "{version}.0"?' if f"{version}.0" in versions.SUPPORTED else f"supported: {listed}"
        root.add(LintSeverity.ERROR, key, f'cniVersion "{version}" is unknown: every plugin refuses it', hint)
        return
    elif value.get("cniVersion") == "1.1.0":
        both = '"cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"]'
        hint = f"if these runtimes read the file: {both} lets each runtime choose"
        root.add(
            LintSeverity.NOTE, key, "containerd 1 and podman 4 refuse each pod on a network with cniVersion 1.1.0", hint
        )
    for item in items:
        _check_supported(item, version)


def _check_supported(item: PluginEntry, version: str) -> None:
    """Adds an error if the version is too old for the plugin."""
    if version not in versions.SUPPORTED:
        return
    for plugin in item.parsers:
        if version not in plugin.versions:
            text = f"{plugin.name} does not support cniVersion {version}, only {plugin.versions[0]} or later"
            item.error("type", text, f'set "cniVersion" of the network to {plugin.versions[0]} or later')


def _programs(item: PluginEntry) -> Iterator[tuple[str, str]]:
    """Yields the plugins that run for an entry, with the key that names each; flannel runs bridge by default."""
    yield "type", item.type
    is_flannel = item.type == "flannel"
    if is_flannel:
        yield "delegate.type", str(item.get("delegate.type") or "bridge")
    yield "ipam.type", item.ipam_type or "host-local" * is_flannel


def _check_known(item: PluginEntry, bin_dirs: Sequence[str]) -> None:
    for path, name in filter(operator.itemgetter(1), _programs(item)):
        likely = "" if name in ALL or (item.plugin and path == "type") else nearest(name, ALL)
        hint = f'did you mean "{likely}"?' if likely else ""
        if "/" in name or "\0" in name:
            item.error(path, f'"{name}" is not a valid plugin name', "write the name of the file, without a path")
        elif bin_dirs and not any(os.path.isfile(os.path.join(one, name)) for one in bin_dirs):
            where = ":".join(bin_dirs)
            # A name that contains a known one ("my-bridge") is not a misspelling of it.
            report = item.error if likely and likely not in name else item.warn
            report(path, f'there is no plugin "{name}" in {where}', hint or "install it, or set --bin-dir")
        elif likely and not bin_dirs:
            report = item.warn if likely in name else item.error
            report(path, f'unknown plugin "{name}"', hint)


def _check_order(items: Sequence[PluginEntry]) -> None:
    if not items:
        return
    first = items[0]
    if first.type in CHAINED:
        text = f"{first.type} needs the interface that a plugin before it creates, but it is the first"
        first.error("type", text, 'put an interface plugin ("bridge", "ptp") first')
    seen: dict[str, PluginEntry] = {}
    creators = [item for item in items if item.type in INTERFACES or item.type == "flannel"]
    for item in items:
        if item.type in IPAMS:
            text = f"{item.type} is an IPAM plugin, which does nothing in a list"
            item.warn("type", text, f'put it into "ipam" of an interface plugin: "ipam": {{"type": "{item.type}"}}')
        elif item.type in seen and item.type in (*CHAINED, *INTERFACES) and item.type not in ("tuning", "sbr"):
            item.warn("type", f"{item.type} is in this list twice", "remove one")
        elif creators and item in creators[1:]:
            text = f"{item.type} creates a second interface with the same name as {creators[0].type}'s"
            item.warn("type", text, "put it into a separate network")
        seen[item.type] = item
        if item.type == "sbr" and first.type in ("bridge", "ptp") and not first.ipam_type:
            text = f'sbr routes by source addresses, but {first.type} has no "ipam" that allocates one'
            item.warn("type", text, 'add an "ipam", or remove sbr')
    for item in items:
        if item.type == "firewall" and item.get("ingressPolicy") in _POLICIES and first.type == "ptp":
            text = f'"ingressPolicy": "{item.get("ingressPolicy")}" needs a bridge, but this network has none'
            item.warn("ingressPolicy", text, "remove the key, or use bridge")
        if item.type == "tuning" and item.get("mac") and first.get("networkPolicy"):
            text = '"networkPolicy" drops what the pod sends from another MAC address than ADD has given it'
            item.error("mac", text, 'remove the key, or use bridge with "capabilities": {"mac": true}')


def _check_backends(items: Sequence[PluginEntry]) -> None:
    """Adds a note if one network uses both iptables and nftables."""
    configured = [
        (item, path) for item in items for path in ("ipMasqBackend", "backend") if item.plugin and item.get(path)
    ]
    named = {str(item.get(path)) for item, path in configured} & {"iptables", "nftables"}
    if len(named) > 1:
        item, path = configured[-1]
        text = "this network creates rules with iptables and with nftables"
        item.note(path, text, "both work side by side, but one backend is easier to maintain")
