"""A directory of configurations as the runtimes read it, and files alone.

One rule: the order is the runtimes': Kubernetes' take the first file by name that can be used; libcni (podman, cnitool,
nerdctl) finds a network by its name, in *.conflist before the others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cni.errors import CniError, Code
from cni.skel import Plugin
from podwire.lint import bridges, chain, entry, names, ranges, settings, source
from podwire.lint.entry import PluginEntry
from podwire.lint.source import Severity, SourceFile
from podwire.networks import SUFFIXES

# In the names of files that somebody may take for configurations.
_LOOKS_LIKE = (".conf", ".json", ".yaml", ".yml")


@dataclass(frozen=True)
class LintResult:
    """All files that were looked at, in order; `winner` is the one that Kubernetes' runtimes use, of a directory."""

    pages: tuple[SourceFile, ...]
    winner: SourceFile | None = None
    is_directory: bool = False
    path: str = ""


def lint_file(path: str, plugins: Mapping[str, Plugin], bin_dirs: Sequence[str]) -> LintResult:
    """Checks one file by itself."""
    found = source.read(path)
    if not path.endswith(SUFFIXES):
        found.add(Severity.NOTE, "no runtime reads a file of this name", f"they read {', '.join(SUFFIXES)}")
    items, beside = _check(found, plugins, bin_dirs)
    for one in items:
        ranges.check(one)
    return LintResult(_sorted((found, *beside)), path=path)


def lint_directory(path: str, plugins: Mapping[str, Plugin], bin_dirs: Sequence[str]) -> LintResult:
    """Checks a directory; raises CniError(5) when it cannot be read."""
    try:
        listed = sorted(os.listdir(path))
    except OSError as error:
        raise CniError(
            Code.IO_FAILURE,
            f"cannot read {path}: {error.strerror}",
            "name another with --conf-dir, or files and directories",
        ) from error
    pages: list[SourceFile] = []
    others: list[SourceFile] = []
    items: list[tuple[PluginEntry, ...]] = []
    for name in listed:
        full = os.path.join(path, name)
        if name.endswith(SUFFIXES) and not os.path.isdir(full):
            found = source.read(full)
            own, beside = _check(found, plugins, bin_dirs)
            items.append(own)
            pages.append(found)
            others += beside
        elif not os.path.isdir(full) and any(part in name.casefold() for part in _LOOKS_LIKE):
            unread = SourceFile(full)
            unread.add(Severity.NOTE, "no runtime reads this file", f"they read {', '.join(SUFFIXES)}")
            others.append(unread)
    winner = next((one for one in pages if one.network), None)
    _check_broken(pages, winner)
    _check_winner(winner)
    hidden = _check_hidden(pages)
    _check_together([one for own, found in zip(items, pages, strict=True) if found not in hidden for one in own])
    return LintResult(_sorted((*pages, *others)), winner, is_directory=True, path=path)


def _check(
    found: SourceFile, plugins: Mapping[str, Plugin], bin_dirs: Sequence[str]
) -> tuple[tuple[PluginEntry, ...], tuple[SourceFile, ...]]:
    """Checks what one file says for itself."""
    names.check_network(found)
    items, beside = entry.read_entries(found, plugins)
    for one in items:
        names.check_plugin(one)
        if "bridge" in plugins:
            names.check_delegate(one, plugins["bridge"].keys)
        settings.check(one)
    chain.check(found, items, bin_dirs)
    if os.path.basename(found.path).startswith("."):
        found.add(Severity.NOTE, "this file is hidden, and runtimes read it all the same", "rename or remove it")
    return items, beside


def _check_together(items: Sequence[PluginEntry]) -> None:
    pools = [pool for one in items for pool in ranges.check(one)]
    ranges.check_all(pools)
    bridges.check(items, pools)


def _check_broken(pages: Sequence[SourceFile], winner: SourceFile | None) -> None:
    """Tells what a file that cannot be used does to the one that would be used."""
    for one in pages[: pages.index(winner)] if winner else ():
        text = "containerd uses no network at all because of this file; CRI-O passes over it"
        one.add(Severity.NOTE, text, "correct the file or remove it")


def _check_winner(winner: SourceFile | None) -> None:
    """Tells of a node whose pods have nothing but `lo`: the network provider's file is missing."""
    if winner and winner.network and winner.root:
        types = {plugin.get("type") for plugin in winner.network.plugins}
        if types == {"loopback"}:
            text = "this is the pod network, and it has nothing but loopback: pods get no address"
            winner.root.add(Severity.WARNING, "name", text, "add a network whose file comes before this one by name")


def _check_hidden(pages: Sequence[SourceFile]) -> set[SourceFile]:
    """Returns the files whose network libcni never finds, as another one has its name, and tells so."""
    first: dict[str, SourceFile] = {}
    hidden = set()
    for one in sorted(pages, key=lambda one: not one.path.endswith(".conflist")):
        if not one.network or not one.root:
            continue
        before = first.setdefault(one.network.name, one)
        if before is not one:
            hidden.add(one)
            text = f'"{one.network.name}" is the name of the network in {before.path}, too, which is found first'
            one.root.add(Severity.WARNING, "name", text, "rename one: they would share their addresses and rules")
    return hidden


def _sorted(pages: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
    for one in pages:
        one.findings.sort(key=lambda found: (found.line, found.column, list(Severity).index(found.severity)))
    return tuple(pages)
