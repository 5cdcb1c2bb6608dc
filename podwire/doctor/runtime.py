"""Checks the installed runtimes: their plugin and configuration directories, the cache, its disk, and the clock.

A runtime that is not installed causes no finding.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from shlex import quote

from attachment.presence import Presence
from cni import delegate
from cni.errors import CniError
from ipam.host_local import listing
from ipam.host_local.store import ReservationStore
from podwire import attachments, runtimes
from podwire.doctor.finding import UNSEEN, Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.node import CheckedNode, InterfaceConf, find_disk_problem
from podwire.doctor.shell_command import ShellCommand
from podwire.layers import describe_caches
from podwire.node.leaks import HOST_VETH
from podwire.node.records import Reservation
from podwire.output import plural
from podwire.runtimes import Runtime

_GROUP = "runtime"
_SKEW_S = 60.0
_CURRENT = "1.1.0"

_ELSEWHERE = Fault(
    "runtime-looks-elsewhere",
    Severity.WARNING,
    "an installed runtime runs other plugin files than those that doctor checks, or reads networks from elsewhere; a "
    "note if its daemon does not run",
)
_UNREAD = Fault(
    "runtime-settings-unreadable",
    Severity.WARNING,
    "the settings of an installed runtime cannot be read, or are not TOML: the directories it uses are unknown",
)
_NO_CNI = Fault(
    "runtime-without-cni",
    Severity.NOTE,
    "an installed runtime runs no CNI plugins (podman with netavark, containerd with its CRI plugin disabled)",
)
_LISTED = f'"cniVersions": ["1.0.0", "{_CURRENT}"]'
_REFUSED = Fault(
    "runtime-refuses-version",
    Severity.PROBLEM,
    "containerd 1 does not know CNI 1.1.0: it loads a network of this version, and then refuses each pod; a note if "
    "containerd does not run",
)
_GONE = Fault(
    "dead-attachments",
    Severity.WARNING,
    "the cache has attachments whose namespaces no longer exist: their DEL was never run, or failed",
)
_UNSEEN = Fault(
    "namespaces-not-seen",
    Severity.WARNING,
    "network namespaces of attachments are missing here, which does not prove that the pods have stopped: podwire may "
    "see a different file system than the runtime, as in a container",
)
_DISK = Fault(
    "cache-full",
    Severity.PROBLEM,
    "the file system of the cache is full or read-only: runtimes cannot record attachments, and each ADD fails",
)
_CLOCK = Fault(
    "clock-set-back",
    Severity.NOTE,
    "files of the cache have a time in the future: the clock was set back, or is wrong",
)


def _directories(node: CheckedNode) -> Iterator[Finding]:
    for runtime in node.runtimes:
        if runtime.problem:
            yield _UNREAD.finding(runtime.name, runtime.problem.msg, runtime.problem.details)
        elif runtime.without_cni:
            yield _NO_CNI.finding(runtime.name, f"it runs no CNI plugins: {runtime.without_cni}")
        else:
            findings = [*_networks(node, runtime), *_plugins(node, runtime)]
            where = f"runs plugins from {':'.join(runtime.bin_dirs)}, reads networks from {runtime.conf_dir}"
            yield from findings or [ok_finding("directories", runtime.name, where)]


def _versions(node: CheckedNode) -> Iterator[Finding]:
    # Multus returns the result of the cluster's network; those of NetworkAttachmentDefinitions stay in its cache.
    refused = [one for one in node.networks if one.single_version == _CURRENT and one.name in node.configured_names]
    is_used = any(
        one.name == "containerd"
        and not (one.problem or one.without_cni)
        and os.path.realpath(one.conf_dir) == os.path.realpath(node.conf_dir)
        for one in node.runtimes
    )
    if not (refused and is_used):
        return
    version = runtimes.containerd_version(node.env)
    if version.startswith("1."):
        for network in refused:
            text = f'{network.path} has cniVersion "{_CURRENT}", whose results containerd {version} refuses'
            fix = f'in {network.path} set "cniVersion": "1.0.0"; for runtimes that know {_CURRENT} add {_LISTED}'
            yield _REFUSED.finding(network.name, text, fix, severity=_severity("containerd"))


def _networks(node: CheckedNode, runtime: Runtime) -> Iterator[Finding]:
    if os.path.realpath(runtime.conf_dir) != os.path.realpath(node.conf_dir):
        text = f"it reads networks from {runtime.conf_dir}, but doctor checks {node.conf_dir}"
        fix = f"podwire doctor --conf-dir {quote(runtime.conf_dir)}"
        yield _ELSEWHERE.finding(runtime.name, text, fix, severity=_severity(runtime.name))


def _severity(name: str) -> Severity | None:
    """Returns the severity of a finding about a runtime: only a note if it is installed, but does not run."""
    return None if runtimes.is_running(name) else Severity.NOTE


def _plugins(node: CheckedNode, runtime: Runtime) -> Iterator[Finding]:
    """Yields a finding for the first plugin of which the runtime runs a different file than the one doctor checks."""
    kinds = {kind for network in node.networks for kind in network.kinds} or set(node.plugins)
    for kind in sorted(kinds):
        theirs, ours = _find(kind, runtime.bin_dirs), _find(kind, node.bin_dirs)
        if theirs == ours or (theirs and ours and _is_same(theirs, ours)):
            continue  # without either, another check reports it
        runs = f"runs {theirs}" if theirs else f'finds no "{kind}" in {":".join(runtime.bin_dirs)}'
        text = f"it {runs}{_set_by(runtime)}, but doctor checks {ours or ':'.join(node.bin_dirs)}"
        fix, advice = f"podwire doctor --bin-dir {quote(':'.join(runtime.bin_dirs))}", ""
        directory = runtime.install_dir(node.plugins)
        if kind in node.plugins and _is_podwire(ours):
            fix = f"podwire install --bin-dir {quote(directory)}"
            if any(os.path.lexists(os.path.join(directory, each)) for each in node.plugins):
                advice = (
                    f"it replaces the plugins in {directory}, which may belong to a package: run it only if podwire "
                    "should replace them"
                )
            else:
                fix = ShellCommand(fix)
        elif not theirs:
            fix = f'install "{kind}" into {directory}'
        yield _ELSEWHERE.finding(runtime.name, text, fix, advice=advice, severity=_severity(runtime.name))
        return


def _find(kind: str, bin_dirs: tuple[str, ...]) -> str:
    """Returns the file of a plugin in directories, "" if it is in none."""
    try:
        return delegate.find(kind, bin_dirs)
    except CniError:
        return ""


def _set_by(runtime: Runtime) -> str:
    return f" ({runtime.source})" if runtime.source else ""


def _is_same(one: str, other: str) -> bool:
    """Returns whether two files are the same, or have the same size, as copies by `podwire install` have."""
    return os.path.samefile(one, other) or os.path.getsize(one) == os.path.getsize(other)


def _is_podwire(path: str) -> bool:
    """Returns whether a plugin's file is the `podwire` that `podwire install` puts beside it."""
    beside = os.path.join(os.path.dirname(path), "podwire")
    return bool(path) and os.path.isfile(beside) and _is_same(path, beside)


def _cache(node: CheckedNode) -> Iterator[Finding]:
    missing_delegates = attachments.describe_missing_delegates(node.cached)
    for text in missing_delegates:
        yield UNSEEN.finding("Multus", text, attachments.MISSING_DELEGATES_FIX)
    unread = _unread(node)
    for subject, text in unread.items():
        other = "name the runtime's cache with --cache-dir, or compare the addresses with: podwire ipam verify"
        yield UNSEEN.finding(subject, text, attachments.UNREAD_FIX if subject in node.unread else other)
    names = dict.fromkeys(one.network_name for one in node.known)
    gone = Counter(one.network_name for one in node.known if node.presence(one) is Presence.GONE)
    for name, number in gone.items():
        text = f"the namespace of {plural(number, 'attachment')} in {describe_caches(node.layers)} no longer exists"
        yield _GONE.finding(name, text, node.command("gc", name))
    unseen = {name: missing for name in names if (missing := node.unseen(name))}
    for name, missing in unseen.items():
        text = f"{plural(len(missing), 'attachment')} may be running, but {missing[0].netns} is missing here"
        yield _UNSEEN.finding(name, text, "run podwire on the node itself, not in a container")
    if node.known and not (gone or unseen or unread or missing_delegates):
        attachments_text = plural(len(node.known), "attachment")
        yield ok_finding("cache", describe_caches(node.layers), f"{attachments_text}, all running")


def _unread(node: CheckedNode) -> dict[str, str]:
    """Returns the reasons why attachments are unknown, by file or network; other checks leave these attachments out."""
    reasons = {}
    for path in node.unread:
        reasons[path] = "it cannot be read as an attachment (truncated, or from before CNI 0.8): its pod is not checked"
    names = {one.network_name for one in node.known}
    for item in node.interfaces:
        number = _reserved(item) or _ports(node, item)
        if number and item.network.name not in names:
            pods = f"{number} addresses or ports of its pods exist"
            reasons[item.network.name] = f"{pods}, but no attachment of it is in {describe_caches(node.layers)}"
    return reasons


def _reserved(item: InterfaceConf) -> int:
    """Returns the number of addresses in a network's store that are reserved for pods whose ADD has ended."""
    if not item.data_dir:
        return 0
    store = ReservationStore(item.data_dir, item.network.name)
    try:
        files = listing.list_reservations(store) if store.exists() else []
    except OSError:
        return 0  # the checks of the addresses report the store
    reservations = (Reservation(item.data_dir, item.network.name, file) for file in files)
    return sum(one.has_container and not one.is_recent for one in reservations)


def _ports(node: CheckedNode, item: InterfaceConf) -> int:
    """Returns the number of a bridge's ports that have the name of a host veth."""
    bridge = node.link(item.bridge) if item.bridge else None
    ports = (link for link in node.links if bridge and link.master == bridge.index and link.kind == "veth")
    shared = sum(other.bridge == item.bridge for other in node.interfaces) > 1
    return 0 if shared else sum(bool(HOST_VETH.fullmatch(port.name)) for port in ports)


def _disk(node: CheckedNode) -> Iterator[Finding]:
    for directory in dict.fromkeys(layer.cache_dir for layer in node.layers):
        if os.path.isdir(directory) and (problem := find_disk_problem(directory)):
            yield _DISK.finding(directory, *problem)


def _clock(node: CheckedNode) -> Iterator[Finding]:
    newest = max((os.lstat(one.path).st_mtime for one in node.known if os.path.lexists(one.path)), default=0.0)
    if newest > time.time() + _SKEW_S:
        text = f"the newest attachment's time is {newest - time.time():.0f} s in the future"
        yield _CLOCK.finding("clock", text, "set the clock (`timedatectl`)")


CHECKS = (
    Check(
        _GROUP,
        "directories",
        "all installed runtimes use these directories",
        _directories,
        (_ELSEWHERE, _UNREAD, _NO_CNI),
    ),
    Check(_GROUP, "versions", "the runtimes know the networks' cniVersion", _versions, (_REFUSED,)),
    Check(_GROUP, "cache", "the cache has no attachment", _cache, (_GONE, _UNSEEN)),
    Check(_GROUP, "disk", "the cache is writable", _disk, (_DISK,)),
    Check(_GROUP, "clock", "no file has a time in the future", _clock, (_CLOCK,)),
)
