"""Runs tuning's verbs on a temporary host, podwire's or the reference plugin's, and reads the state that they change.

A pod's container ID is the name of its namespace.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support import mount_wrapper, netstate
from tests.support.attaching import Network
from tests.support.namespaces import Namespace

ALL: dict[str, Any] = {"mac": "02:00:00:00:00:42", "promisc": True, "mtu": 1300, "allmulti": True, "txQLen": 500}

_ALLOWLIST = "/etc/cni/tuning/allowlist.conf"


class Tuning(Network):
    """A network's tuning on one host."""

    @property
    def data_dir(self) -> Path:
        """The directory of the backups."""
        return Path(self.config["dataDir"])

    def backups(self) -> dict[str, str]:
        """Returns the content of each file in the data directory."""
        return {file.name: file.read_text() for file in _files(self.data_dir)}

    def notes(self) -> dict[str, Any]:
        """Returns the notes beside the backups."""
        return {file.name: json.loads(file.read_text()) for file in _files(Path(f"{self.data_dir}.podwire"))}

    def backup(self, pod: Namespace) -> dict[str, Any]:
        """Returns the backup of a pod's eth0."""
        backup: dict[str, Any] = json.loads(self.backups()[f"{pod.name}_eth0.json"])
        return backup

    def everything(self, pod: Namespace) -> dict[str, Any]:
        """Returns all state that tuning can change, with the sysctls of IPv4 and of the core."""
        notes = {name: {key: note[key] for key in note if key != "file"} for name, note in self.notes().items()}
        sysctls = pod.run("sysctl", "-a", "-r", r"^net\.(core|ipv4)\.").splitlines()
        unsteady = ("net.ipv4.tcp_fastopen_key", "net.core.netdev_rss")
        return {
            "host": netstate.state(self.host),
            "pod": netstate.state(pod),
            "sysctls": [line for line in sysctls if not line.startswith(unsteady)],
            "backups": self.backups(),
            "notes": notes,
        }


def install_with_allow_list(directory: Path, text: str | None) -> Path:
    """Installs a `tuning` whose allow list is `text`, None for no list, into a new directory; returns the directory.

    It runs in a mount namespace that hides the machine's list.
    """
    directory.mkdir()
    source, copy = directory / "list", "/tmp/podwire-list.$$"
    source.write_text(text or "")
    allow_list = Path(_ALLOWLIST)
    hidden = next(path for path in allow_list.parents if path.is_dir())
    fill = f"cp {copy} {allow_list}; rm {copy}" if text is not None else f"rm {copy}"
    hide = f"cp {source} {copy}; mount -t tmpfs podwire {hidden}; mkdir -p {allow_list.parent}; {fill}"
    return mount_wrapper.install(directory, "tuning", hide)


def get_attributes(namespace: Namespace, name: str = "eth0") -> dict[str, Any]:
    """Returns the attributes of an interface that tuning can set, by tuning's keys."""
    shown = netstate.shown(namespace, name)
    return {
        "mac": shown["address"],
        "promisc": "PROMISC" in shown["flags"],
        "mtu": shown["mtu"],
        "allmulti": "ALLMULTI" in shown["flags"],
        "txQLen": shown.get("txqlen", 0),
    }


def _files(directory: Path) -> Iterator[Path]:
    return directory.iterdir() if directory.is_dir() else iter(())
