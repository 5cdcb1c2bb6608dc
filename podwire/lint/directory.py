"""Checks single files, and a directory of configurations as the runtimes read it.

Files are taken in the runtimes' order: Kubernetes' runtimes use the first valid file by name; libcni (podman,
cnitool, nerdctl) finds a network by its name, in *.conflist files first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from cni.errors import CniError, Code
from cni.skel import Plugin
from podwire.lint import bridges, chain, entry, layers, masters, names, ranges, settings, source
from podwire.lint.entry import PluginEntry
from podwire.lint.layers import Delegate
from podwire.lint.source import LintSeverity, SourceFile
from podwire.networks import SUFFIXES

# Parts of the names of files that an administrator may take for configurations.
_LOOKS_LIKE = (".conf", ".json", ".yaml", ".yml")


@dataclass(frozen=True)
class LintResult:
    """All checked files, in order; `winner` is the file of a directory that Kubernetes' runtimes use."""

    files: tuple[SourceFile, ...]
    winner: SourceFile | None = None
    is_directory: bool = False
    path: str = ""


def lint_file(path: str, plugins: Mapping[str, Plugin], bin_dirs: Sequence[str]) -> LintResult:
    """Checks one file without regard to others."""
    file = source.read(path)
    if not path.endswith(SUFFIXES):
        file.add(LintSeverity.NOTE, "no runtime reads a file with this suffix", f"they read {', '.join(SUFFIXES)}")
    entries, drop_ins = _check(file, plugins, bin_dirs)
    delegates = layers.check(file, partial(_check, plugins=plugins, bin_dirs=bin_dirs))
    for one in (*entries, *(one for delegate in delegates for one in delegate.entries)):
        ranges.check(one)
    return LintResult(_sorted((file, *drop_ins)), path=path)


def lint_definitions(data: bytes, path: str, plugins: Mapping[str, Plugin], bin_dirs: Sequence[str]) -> LintResult:
    """Checks NetworkAttachmentDefinitions, as `kubectl get -o json` prints them; raises CniError(6) for other text."""
    files = layers.read_definitions(data, path)
    _check_together([one for file in files for one in _check(file, plugins, bin_dirs)[0]])
    return LintResult(_sorted(files), path=path)


def lint_directory(path: str, plugins: Mapping[str, Plugin], bin_dirs: Sequence[str]) -> LintResult:
    """Checks all files of a directory; raises CniError(5) if it cannot be read."""
    try:
        listed = sorted(os.listdir(path))
    except OSError as error:
        raise CniError(
            Code.IO_FAILURE,
            f"cannot read {path}: {error.strerror}",
            "name another directory with --conf-dir, or files and directories",
        ) from error
    files: list[SourceFile] = []
    others: list[SourceFile] = []
    entries: list[tuple[PluginEntry, ...]] = []
    delegates: list[Delegate] = []
    for name in listed:
        full = os.path.join(path, name)
        if name.endswith(SUFFIXES) and not os.path.isdir(full):
            file = source.read(full)
            of_file, drop_ins = _check(file, plugins, bin_dirs)
            entries.append(of_file)
            files.append(file)
            others += drop_ins
            delegates += layers.check(file, partial(_check, plugins=plugins, bin_dirs=bin_dirs))
        elif not os.path.isdir(full) and any(part in name.casefold() for part in _LOOKS_LIKE):
            unread = SourceFile(full)
            unread.add(LintSeverity.NOTE, "no runtime reads this file", f"they read {', '.join(SUFFIXES)}")
            others.append(unread)
    winner = next((one for one in files if one.network), None)
    _check_broken(files, winner)
    _check_winner(winner)
    hidden = _check_hidden(files)
    layers.check_order(files, winner)
    layers.check_cluster_network(files)
    used = [one for of_file, file in zip(entries, files, strict=True) if file not in hidden for one in of_file]
    _check_together([*used, *layers.list_unfiled_plugins(delegates, files)])
    return LintResult(_sorted((*files, *others)), winner, is_directory=True, path=path)


def _check(
    file: SourceFile, plugins: Mapping[str, Plugin], bin_dirs: Sequence[str]
) -> tuple[tuple[PluginEntry, ...], tuple[SourceFile, ...]]:
    """Runs the checks that need one file only."""
    names.check_network(file)
    entries, drop_ins = entry.read_entries(file, plugins)
    for one in entries:
        names.check_plugin(one)
        if "bridge" in plugins:
            names.check_delegate(one, plugins["bridge"].keys)
        settings.check(one)
    chain.check(file, entries, bin_dirs)
    if os.path.basename(file.path).startswith(".") and not file.top:
        file.add(LintSeverity.NOTE, "this file is hidden, but runtimes read it", "rename or remove the file")
    return entries, drop_ins


def _check_together(items: Sequence[PluginEntry]) -> None:
    pools = [pool for one in items for pool in ranges.check(one)]
    ranges.check_all(pools)
    bridges.check(items, pools)
    masters.check(items)


def _check_broken(files: Sequence[SourceFile], winner: SourceFile | None) -> None:
    """Adds a note to each invalid file that comes before the one that Kubernetes' runtimes use."""
    for one in files[: files.index(winner)] if winner else ():
        text = "containerd uses no network at all because of this file; CRI-O skips it"
        one.add(LintSeverity.NOTE, text, "correct or remove the file")


def _check_winner(winner: SourceFile | None) -> None:
    """Adds a warning if the pod network is only loopback: the network provider's file is missing."""
    if winner and winner.network and winner.network.is_loopback and winner.root:
        text = "this is the pod network, but its only plugin is loopback: pods get no address"
        winner.root.add(LintSeverity.WARNING, "name", text, "add a network whose file comes before this one by name")


def _check_hidden(files: Sequence[SourceFile]) -> set[SourceFile]:
    """Returns the files whose network libcni never finds because another file has its name; adds a warning to each."""
    first: dict[str, SourceFile] = {}
    hidden = set()
    for one in sorted(files, key=lambda one: not one.path.endswith(".conflist")):
        if not one.network or not one.root:
            continue
        before = first.setdefault(one.network.name, one)
        if before is not one:
            hidden.add(one)
            text = f'the network in {before.path} is also named "{one.network.name}", and is found first'
            one.root.add(LintSeverity.WARNING, "name", text, "rename one: both would share their addresses and rules")
    return hidden


def _sorted(files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
    for one in files:
        one.findings.sort(
            key=lambda finding: (finding.line, finding.column, list(LintSeverity).index(finding.severity))
        )
    return tuple(files)
