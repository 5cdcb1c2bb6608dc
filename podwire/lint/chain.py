"""A list of plugins as a whole: versions, order, and whether the plugins are there.

One rule: a list runs from its first plugin to its last, and each is told what those before it made.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from cni import versions
from podwire.lint.entry import PluginEntry
from podwire.lint.known import ALL, CHAINED, INTERFACES, IPAMS, nearest
from podwire.lint.source import Severity, SourceFile

_FIRST_VERSION = {"vrf": "0.3.1"}  # of plugins that are not ours
_POLICIES = ("same-bridge", "isolated")


def check(page: SourceFile, items: Sequence[PluginEntry], bin_dirs: Sequence[str]) -> None:
    """Checks one network; without `bin_dirs` it is not looked whether its plugins are installed."""
    _check_version(page, items)
    for item in items:
        _check_known(item, bin_dirs)
    _check_order(items)
    _check_backends(items)


def _check_version(page: SourceFile, items: Sequence[PluginEntry]) -> None:
    root = page.root
    if root is None:
        return
    value = root.value
    version = page.network.version if page.network else items[0].version if items else ""
    key = "cniVersions" if root.node.get("cniVersions") and not root.node.get("cniVersion") else "cniVersion"
    if root.node.get("cniVersion") is None and root.node.get("cniVersions") is None:
        root.add(Severity.NOTE, key, 'there is no "cniVersion": that means 0.1.0', 'add "cniVersion": "1.0.0"')
    elif version not in versions.SUPPORTED and isinstance(version, str) and page.network:
        listed = ", ".join(versions.SUPPORTED)
        hint = f'did you mean "{version}.0"?' if f"{version}.0" in versions.SUPPORTED else f"there are {listed}"
        root.add(Severity.ERROR, key, f'cniVersion "{version}" is unknown: every plugin refuses it', hint)
        return
    elif version == "1.1.0" and "cniVersions" not in value:
        hint = 'where it is needed, "cniVersions": ["1.0.0", "1.1.0"] lets each runtime choose'
        root.add(Severity.NOTE, key, "containerd 1.6 and podman 4 do not know cniVersion 1.1.0", hint)
    for item in items:
        _check_spoken(item, version)


def _check_spoken(item: PluginEntry, version: str) -> None:
    """Refuses a version that is too old for the plugin."""
    if version not in versions.SUPPORTED:
        return
    for plugin in item.parsers:
        if version not in plugin.versions:
            text = f"{plugin.name} does not know cniVersion {version}: it begins with {plugin.versions[0]}"
            item.error("type", text, f'set "cniVersion" of the network to {plugin.versions[0]} or later')
    first = _FIRST_VERSION.get(item.type)
    if first and not versions.at_least(version, first):
        item.error("type", f"{item.type} does not know cniVersion {version}", f"it begins with {first}")


def _check_known(item: PluginEntry, bin_dirs: Sequence[str]) -> None:
    for path, name in (("type", item.type), ("ipam.type", item.ipam_type)):
        if not name:
            continue
        likely = "" if name in ALL or (item.plugin and path == "type") else nearest(name, ALL)
        hint = f'did you mean "{likely}"?' if likely else ""
        if "/" in name or "\0" in name:
            item.error(path, f'"{name}" is no name of a plugin', "it is the name of a file, without a path")
        elif bin_dirs and not any(os.path.isfile(os.path.join(one, name)) for one in bin_dirs):
            where = ":".join(bin_dirs)
            # A name that contains a known one ("my-bridge") is no misspelling of it.
            report = item.error if likely and likely not in name else item.warn
            report(path, f'there is no plugin "{name}" in {where}', hint or "install it, or say --bin-dir")
        elif likely and not bin_dirs:
            report = item.warn if likely in name else item.error
            report(path, f'no plugin "{name}" is known', hint)


def _check_order(items: Sequence[PluginEntry]) -> None:
    if not items:
        return
    first = items[0]
    if first.type in CHAINED:
        text = f"{first.type} works on the interface that another plugin made, and none stands before it"
        first.error("type", text, 'put an interface plugin ("bridge", "ptp") first')
    seen: dict[str, PluginEntry] = {}
    makers = [item for item in items if item.type in INTERFACES or item.type == "flannel"]
    for item in items:
        if item.type in IPAMS:
            text = f"{item.type} gives addresses, and does nothing for a list"
            item.warn("type", text, f'put it into "ipam" of an interface plugin: "ipam": {{"type": "{item.type}"}}')
        elif item.type in seen and item.type in (*CHAINED, *INTERFACES) and item.type not in ("tuning", "sbr"):
            item.warn("type", f"{item.type} is in this list twice", "leave one")
        elif makers and item in makers[1:]:
            text = f"{item.type} makes a second interface of the same name, after {makers[0].type}"
            item.warn("type", text, "put it into a network of its own")
        seen[item.type] = item
    for item in items:
        if item.type == "firewall" and item.get("ingressPolicy") in _POLICIES and first.type == "ptp":
            text = f'"ingressPolicy": "{item.get("ingressPolicy")}" is about bridges, and there is none'
            item.warn("ingressPolicy", text, "leave it out, or use bridge")


def _check_backends(items: Sequence[PluginEntry]) -> None:
    """Tells of rules of both kinds for one network."""
    said = [(item, path) for item in items for path in ("ipMasqBackend", "backend") if item.plugin and item.get(path)]
    named = {str(item.get(path)) for item, path in said} & {"iptables", "nftables"}
    if len(named) > 1:
        item, path = said[-1]
        text = "rules are made with iptables and with nftables"
        item.note(path, text, "both work side by side; one of them is easier to look after")
