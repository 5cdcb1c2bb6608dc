"""tuning on a throwaway host, ours or the reference's, and what it changes.

One rule: a pod's container ID is its namespace's name, so that nothing but the pod need be remembered.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support import binaries, netstate
from tests.support.invocation import Outcome, run_plugin
from tests.support.namespaces import Namespace

ALL: Mapping[str, Any] = {
    "mac": "02:00:00:00:00:42",
    "promisc": True,
    "mtu": 1300,
    "allmulti": True,
    "txQLen": 500,
}
# As `now` tells it.
TUNED = {"mac": "02:00:00:00:00:42", "promisc": True, "mtu": 1300, "allmulti": True, "txQLen": 500}

_ALLOWLIST = "/etc/cni/tuning/allowlist.conf"
# A program that runs the plugin where the machine's list is hidden by one of the test's.
_WRAPPER = """#!/bin/sh
exec unshare --mount --propagation private sh -ec '
    cp {source} {copy}
    mount -t tmpfs podwire {hidden}
    mkdir -p {directory}
    {fill}
    exec {plugin}'
"""


@dataclass(frozen=True)
class Tuning:
    """A network's tuning on one host; `bin_dir` is the plugin's directory, ours unless given."""

    host: Namespace
    config: Mapping[str, Any]
    bin_dir: Path | None = None

    def having(self, **keys: Any) -> Tuning:
        """Returns the same with other top-level keys; None leaves a key out."""
        config = {**self.config, **keys}
        return replace(self, config={key: value for key, value in config.items() if value is not None})

    def by(self, bin_dir: Path | None) -> Tuning:
        """Returns the same with the tuning of another directory, None for ours."""
        return replace(self, bin_dir=bin_dir)

    def run(self, command: str, pod: Namespace | str | None = None, prev_result: object = None, **how: Any) -> Outcome:
        """Runs one verb; `how` as start_plugin takes it."""
        config = self.config if prev_result is None else {**self.config, "prevResult": prev_result}
        container_id = {"container_id": pod.name} if isinstance(pod, Namespace) else {}
        own = {"host": self.host, "bin_dir": self.bin_dir, "netns": pod, **container_id}
        return run_plugin("tuning", command, config, **{**own, **how})

    def add(self, pod: Namespace, prev_result: object, **how: Any) -> dict[str, Any]:
        """Runs ADD and returns the result; a failure fails the test."""
        return self.run("ADD", pod, prev_result, **how).result()

    def refused(self, pod: Namespace, prev_result: object, **how: Any) -> dict[str, Any]:
        """Runs ADD, which must fail and change neither pod nor host nor backup; returns its error."""
        before = self.everything(pod)
        error = self.run("ADD", pod, prev_result, **how).error()
        assert self.everything(pod) == before
        return error

    def check(self, pod: Namespace, prev_result: object, **how: Any) -> None:
        """Runs CHECK; a failure fails the test."""
        self.run("CHECK", pod, prev_result, **how).assert_silent()

    def delete(self, pod: Namespace | str | None, prev_result: object = None, **how: Any) -> str:
        """Runs DEL and returns what it says on stderr; a failure fails the test."""
        outcome = self.run("DEL", pod, prev_result, **how)
        outcome.assert_silent()
        return outcome.stderr

    def gc(self, *valid: tuple[str, str], **keys: Any) -> str:
        """Collects what is none of the `valid` (container ID, interface name); returns what is said on stderr."""
        attachments = [{"containerID": container_id, "ifname": ifname} for container_id, ifname in valid]
        asked = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": attachments, **keys}
        outcome = self.having(**asked).run("GC")
        outcome.assert_silent()
        return outcome.stderr

    @property
    def data_dir(self) -> Path:
        """Where the backups are."""
        return Path(self.config["dataDir"])

    def backups(self) -> dict[str, str]:
        """Returns the content of each file in the data directory."""
        return {file.name: file.read_text() for file in _files(self.data_dir)}

    def notes(self) -> dict[str, Any]:
        """Returns the notes beside the backups."""
        return {file.name: json.loads(file.read_text()) for file in _files(Path(f"{self.data_dir}.podwire"))}

    def backup(self, pod: Namespace) -> dict[str, Any]:
        """Returns what the backup of a pod's eth0 says."""
        found: dict[str, Any] = json.loads(self.backups()[f"{pod.name}_eth0.json"])
        return found

    def everything(self, pod: Namespace) -> dict[str, Any]:
        """Returns all that tuning can change, sysctls of IPv4 and of the core included."""
        notes = {name: {key: note[key] for key in note if key != "file"} for name, note in self.notes().items()}
        return {
            "host": netstate.state(self.host),
            "pod": netstate.state(pod),
            "sysctls": sysctls(pod),
            "backups": self.backups(),
            "notes": notes,
        }


def allowing(directory: Path, text: str | None) -> Path:
    """Returns a directory with a `tuning` that finds `text` as the machine's allow list, None for no list.

    The machine's own /etc is hidden from it, in a mount namespace of its own.
    """
    directory.mkdir()
    source, program = directory / "list", directory / "tuning"
    source.write_text(text or "")
    hidden = next(path for path in Path(_ALLOWLIST).parents if path.is_dir())
    copy = "/tmp/podwire-list.$$"
    fill = f"cp {copy} {_ALLOWLIST}; rm {copy}" if text is not None else f"rm {copy}"
    program.write_text(
        _WRAPPER.format(
            source=source,
            copy=copy,
            hidden=hidden,
            directory=Path(_ALLOWLIST).parent,
            fill=fill,
            plugin=binaries.directory() / "tuning",
        )
    )
    program.chmod(0o755)
    return directory


def now(namespace: Namespace, name: str = "eth0") -> dict[str, Any]:
    """Returns of an interface what tuning sets, by its keys."""
    shown = netstate.shown(namespace, name)
    return {
        "mac": shown["address"],
        "promisc": "PROMISC" in shown["flags"],
        "mtu": shown["mtu"],
        "allmulti": "ALLMULTI" in shown["flags"],
        "txQLen": shown.get("txqlen", 0),
    }


def sysctls(namespace: Namespace) -> list[str]:
    """Returns the settings of a namespace that tests change, and their like."""
    lines = namespace.run("sysctl", "-a", "-r", r"^net\.(core|ipv4)\.").splitlines()
    return [line for line in lines if not line.startswith(("net.ipv4.tcp_fastopen_key", "net.core.netdev_rss"))]


def mode(path: Path) -> str:
    """Returns the permissions of a file, as `stat -c %a` prints them."""
    return f"{stat.S_IMODE(path.stat().st_mode):o}"


def _files(directory: Path) -> Iterator[Path]:
    return directory.iterdir() if directory.is_dir() else iter(())
