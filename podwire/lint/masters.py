"""Checks networks of macvlan and ipvlan that share a master.

A conflict between two networks is reported at the later one, and names the earlier.
"""

from __future__ import annotations

from collections.abc import Sequence

from podwire.lint.bridges import pairs
from podwire.lint.entry import PluginEntry

_DEFAULT_MODE = "l2"


def check(items: Sequence[PluginEntry]) -> None:
    """Adds findings about networks on one master that the kernel does not support together."""
    sharing: dict[str, list[PluginEntry]] = {}
    networks = set()
    for item in items:
        is_first = item.network not in networks
        networks.add(item.network)
        # A chained ipvlan has the interface of prevResult as its master.
        if (
            item.type in ("ipvlan", "macvlan")
            and (item.get("master") or is_first)
            and not item.is_set("linkInContainer")
        ):
            sharing.setdefault(str(item.get("master") or ""), []).append(item)
    for master, sharers in sharing.items():
        described = f'"{master}"' if master else "the interface of the default route"
        for one, two in pairs(sharers):
            _check_shared(described, one, two)


def _check_shared(master: str, one: PluginEntry, two: PluginEntry) -> None:
    where = f'network "{one.network}" in {one.json_object.source.path}'
    if one.type != two.type:
        text = f"{master} is the master of {two.type} here, but of {one.type} in {where}"
        hint = f"use {one.type} in both, or two masters: a master cannot have interfaces of both kinds"
        two.warn("master" if two.get("master") else "type", text, hint)
    elif one.type == "ipvlan" and _mode(one) != _mode(two):
        text = f"ipvlan on {master} has mode {_mode(two)} here, but {_mode(one)} in {where}"
        hint = "set the same mode in both: the kernel has one mode for all interfaces on a master, that of the last ADD"
        two.warn("mode" if two.get("mode") else "type", text, hint)


def _mode(item: PluginEntry) -> object:
    return item.get("mode") or _DEFAULT_MODE
