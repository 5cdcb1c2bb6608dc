"""Repairs attachments: each plugin of a list restores its missing rules while the pod is running.

No rules remain for a deleted attachment. If a runtime deletes it at the same time, the restored rules are
removed again: its cache file and its namespace are checked before, right after, and until the settling time is over,
since libcni removes the file only after the DEL of the last plugin.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from attachment.presence import Presence
from cni import conf as cni_conf
from cni import gojson, skel
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, Code
from cni.skel import Plugin
from kernel.netns import Netns
from podwire import attachments
from podwire.attachments import CachedAttachment
from process.record import recording
from process.signals import unblocked

# States of an attachment.
FINE, REPAIRED, MISSING, FAILED = "fine", "repaired", "missing", "failed"
GONE, UNSEEN, UNKNOWN, RETRACTED, UNTRIED = "gone", "unseen", "unknown", "retracted", "untried"
_POLL_S = 0.05  # checks two files per attachment; no single event covers both


@dataclass(frozen=True)
class PluginRepair:
    """The outcome of one plugin: `changes` in words; `foreign` means that it is not in this file."""

    plugin: str
    changes: tuple[str, ...] = ()
    error: CniError | None = None
    foreign: bool = False


@dataclass(frozen=True)
class RepairOutcome:
    """The outcome of one attachment."""

    known: CachedAttachment
    state: str
    parts: tuple[PluginRepair, ...] = ()

    @property
    def touched(self) -> bool:
        """Whether rules were restored, or may have been."""
        return any(part.changes or part.error for part in self.parts)


@dataclass
class Repairer:
    """Repairs attachments with `plugins`, a mapping by type; `path` is CNI_PATH. With `planned` it changes nothing."""

    plugins: Mapping[str, Plugin]
    path: tuple[str, ...]
    env: Mapping[str, str]
    planned: bool = False
    _seen: dict[str, _Identity] = field(default_factory=dict)

    def repair(self, known: Iterable[CachedAttachment]) -> Iterator[RepairOutcome]:
        """Repairs attachments in the order of their ADDs, so that the first owner of a host port stays first.

        After one timeout on the packet filter's lock, the remaining attachments are not tried.
        """
        lock_timed_out = False
        for path in [one.path for one in sorted(known, key=attachments.age_key)]:
            with unblocked():  # signals are delivered here, between two attachments
                identity = _identity(path)
            fresh = attachments.read(path)
            if fresh is not None:
                outcome = RepairOutcome(fresh, UNTRIED) if lock_timed_out else self._one(fresh, identity)
                lock_timed_out |= any(part.error and part.error.code == Code.TRY_AGAIN_LATER for part in outcome.parts)
                yield outcome

    def settle(self, outcomes: Iterable[RepairOutcome], seconds: float) -> Iterator[RepairOutcome]:
        """Watches repaired attachments for `seconds`; yields those removed again or repaired once more.

        A container restarted under its name has rules of the same names: they are restored once more.
        """
        watched = {one.known.path: one for one in outcomes if one.touched and one.known.path in self._seen}
        deadline = time.monotonic() + seconds
        while watched and not self.planned:
            for path, outcome in list(watched.items()):
                if _identity(path) == self._seen[path]:
                    continue
                del watched[path]
                yield self._remove_rules(outcome)
                identity, again = _identity(path), attachments.read(path)
                if again is not None and identity is not None:
                    watched[path] = self._one(again, identity)
                    yield watched[path]
            if time.monotonic() >= deadline:
                return
            with unblocked():
                time.sleep(_POLL_S)

    def _one(self, known: CachedAttachment, identity: _Identity | None) -> RepairOutcome:
        """Repairs one attachment; removes the rules again if it was deleted meanwhile."""
        if known.network is None or known.result is None or not known.netns:
            return RepairOutcome(known, UNKNOWN)
        if identity is None or not _is_running(known):
            if known.presence in (Presence.ELSEWHERE, Presence.UNKNOWN):
                return RepairOutcome(known, UNSEEN)
            return self._reclaim(known)
        self._seen[known.path] = identity
        parts = tuple(self._part(known, plugin) for plugin in known.network.plugins)
        outcome = RepairOutcome(known, self._state(parts), parts)
        if outcome.touched and not self.planned and _identity(known.path) != identity:
            return self._remove_rules(outcome)
        return outcome

    def _reclaim(self, known: CachedAttachment) -> RepairOutcome:
        """Makes plugins restore the devices that the kernel moved to the host when it deleted the namespace."""
        parts = []
        for config in known.network.plugins if known.network else ():
            plugin = self.plugins.get(str(config["type"]))
            if plugin and plugin.cmd_reclaim:
                with recording(dry_run=self.planned) as record:
                    error = self._run(plugin.cmd_reclaim, "DEL", known, config)
                parts.append(PluginRepair(plugin.name, tuple(record.changes), error))
        return RepairOutcome(known, FAILED if any(part.error for part in parts) else GONE, tuple(parts))

    def _part(self, known: CachedAttachment, config: Mapping[str, object]) -> PluginRepair:
        name = str(config["type"])
        plugin = self.plugins.get(name)
        if plugin is None:
            return PluginRepair(name, foreign=True)
        if plugin.cmd_repair is None:
            return PluginRepair(name)
        with recording(dry_run=self.planned) as record:
            error = self._run(plugin.cmd_repair, "CHECK", known, config)
        return PluginRepair(name, tuple(record.changes), error)

    def _state(self, parts: tuple[PluginRepair, ...]) -> str:
        if any(part.error for part in parts):
            return FAILED
        return (MISSING if self.planned else REPAIRED) if any(part.changes for part in parts) else FINE

    def _remove_rules(self, outcome: RepairOutcome) -> RepairOutcome:
        """Removes the restored rules, those of the last plugin first."""
        known = outcome.known
        parts = []
        for config in reversed(known.network.plugins if known.network else ()):
            plugin = self.plugins.get(str(config["type"]))
            if plugin and plugin.cmd_remove_rules:
                parts.append(PluginRepair(plugin.name, error=self._run(plugin.cmd_remove_rules, "DEL", known, config)))
        return RepairOutcome(known, FAILED if any(part.error for part in parts) else RETRACTED, tuple(parts))

    def _run(
        self,
        verb: Callable[[CmdArgs, NetConf], None],
        command: str,
        known: CachedAttachment,
        config: Mapping[str, object],
    ) -> CniError | None:
        """Runs a plugin's function in this process, with a runtime's input; returns its error."""
        assert known.network
        try:
            result = known.typed_result.to_json(known.network.version)
            config_json = known.network.build_config(config, capability_args=known.capability_args, prev_result=result)
            stdin = gojson.dumps(config_json).encode("utf-8", "replace")
            args = CmdArgs(
                command,
                known.attachment.container_id,
                known.netns,
                known.attachment.ifname,
                known.cni_args,
                self.path,
                self.env,
                stdin,
                self.plugins,
            )
            verb(args, cni_conf.parse(stdin))
        except Exception as error:
            return skel.as_cni_error(error)
        return None


# The file in the cache (inode, time, size) and the namespace (device, inode): what a DEL or another ADD changes.
_Identity = tuple[int, ...]


def _identity(path: str) -> _Identity | None:
    """Returns a value that differs for the next attachment of the same name; None if it no longer exists."""
    try:
        file = os.stat(path)
        known = attachments.read(path)
        if known is None:
            return None
        netns = os.stat(known.netns)
    except (OSError, ValueError):
        return None
    return file.st_ino, file.st_mtime_ns, file.st_size, netns.st_dev, netns.st_ino


def _is_running(known: CachedAttachment) -> bool:
    """Returns whether its path is a namespace other than the host's (a reused PID may lead to the host's)."""
    try:
        with Netns(known.netns) as namespace:
            return not namespace.is_current()
    except CniError:
        return False
