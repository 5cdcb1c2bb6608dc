"""The whole chain on a throwaway host, bridge with host-local to tuning, and ptp, loopback, static: each verb alone.

One rule: everything that any of them makes is in `everything()`, so that "as before" means all of it.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import bandwidth_network, binaries, netstate
from tests.support.hostports import ports
from tests.support.invocation import Outcome, environment
from tests.support.namespaces import Namespace

CHAIN = ("bridge", "portmap", "bandwidth", "firewall", "tuning")  # in the order of ADD
_TIMEOUT_S = 60.0
_SETTING = Path("/proc/sys/net/ipv4/conf/eth0/arp_filter")
_GUARD = re.compile(r"^table ip mangle \{$.*?^\}$\n?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Chain:
    """One network's chain on `host`, with the leases in `store`; `backend` is whose rules there are."""

    host: Namespace
    store: Path
    backend: str
    published: tuple[str, ...] = ("8080:80", "8053:53/udp")

    def config(self, plugin: str, prev_result: object = None, **keys: Any) -> dict[str, Any]:
        """Returns what a plugin of the chain reads on stdin; None leaves a key out."""
        config = {"cniVersion": "1.0.0", "name": "net", "type": plugin, **self._own(plugin), "prevResult": prev_result}
        return {key: value for key, value in {**config, **keys}.items() if value is not None}

    def run(
        self, plugin: str, command: str, pod: Namespace, prev_result: object = None, *before: str, **keys: Any
    ) -> Outcome:
        """Runs one verb of one plugin for eth0 of `pod`; `before` are the words of a program that starts it."""
        return self.finish(self.start(plugin, command, pod, *before), self.config(plugin, prev_result, **keys))

    def start(self, plugin: str, command: str, pod: Namespace, *before: str) -> subprocess.Popen[bytes]:
        """Starts it and returns at once; `finish` gives it its configuration and waits for the end."""
        ifname = "lo" if plugin == "loopback" else "eth0"
        names = {"CNI_CONTAINERID": pod.name, "CNI_NETNS": pod.path, "CNI_IFNAME": ifname}
        with self.host.entered():
            return subprocess.Popen(
                [*before, str(binaries.directory() / plugin)],
                env=environment(command, CNI_PATH=str(binaries.directory()), **names),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )

    @staticmethod
    def finish(process: subprocess.Popen[bytes], config: Mapping[str, Any]) -> Outcome:
        """Gives a started verb its configuration and waits for its end; kills it after a minute."""
        try:
            stdout, stderr = process.communicate(json.dumps(config).encode(), timeout=_TIMEOUT_S)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return Outcome(process.returncode, stdout, stderr.decode(errors="replace"))

    def add(self, pod: Namespace, *plugins: str, prev_result: Any = None) -> Any:
        """Runs ADD of `plugins`, each with the result of the one before, and returns the last result."""
        for plugin in plugins:
            prev_result = self.run(plugin, "ADD", pod, prev_result).result()
        return prev_result

    def delete(self, pod: Namespace, *plugins: str, prev_result: Any = None) -> None:
        """Runs DEL of `plugins` in reverse; a failure fails the test."""
        for plugin in reversed(plugins):
            self.run(plugin, "DEL", pod, prev_result).assert_silent()

    def leases(self) -> dict[str, str]:
        """Returns every file of the store but where the next search begins, with its content."""
        directory = self.store / "net"
        files = directory.iterdir() if directory.is_dir() else ()
        return {file.name: file.read_text() for file in files if not file.name.startswith("last_reserved")}

    @property
    def backups(self) -> Path:
        """Where tuning keeps what interfaces were like."""
        return self.store.with_name(f"{self.store.name}-tuning")

    def saved(self) -> dict[str, str]:
        """Returns tuning's files; of its notes, which name times, only the names."""
        notes = self.backups.with_name(f"{self.backups.name}.podwire")
        found = {file.name: file.read_text() for file in self.backups.iterdir()} if self.backups.is_dir() else {}
        return found | {f"{notes.name}/{file.name}": "" for file in notes.iterdir()} if notes.is_dir() else found

    def untune(self, pod: Namespace, mac: str = "") -> None:
        """Sets back what DEL leaves to a pod's end, sysctls; with the `mac` that was, what only GC leaves, too."""
        if mac:
            pod.ip("link", "set", "eth0", "address", mac, "mtu", "1500", "txqueuelen", "1000", "allmulticast", "off")
        with pod.entered():
            _SETTING.write_text("0")

    def everything(self, pod: Namespace) -> dict[str, Any]:
        """Returns all that the chain can change, on the host, in the pod and in the store."""
        # What guards 127.0.0.0/8 is the bridge's, not a pod's, and either backend makes it.
        rules = "\n".join(netstate.nft_rules(self.host))
        found = [line for line in _GUARD.sub("", rules).split("\n") if line and "127.0.0.0/8" not in line]
        host = bandwidth_network.state(self.host) | {"nft": found}
        inside = netstate.state(pod) | {"setting": _setting(pod)}
        return {"host": host, "pod": inside, "leases": self.leases(), "backups": self.saved()}

    def _own(self, plugin: str) -> dict[str, Any]:
        ipam = {"type": "host-local", "dataDir": str(self.store), "ranges": [[{"subnet": "10.22.0.0/16"}]]}
        if plugin == "host-local":
            return {"ipam": ipam}
        if plugin == "bridge":
            switch = {"bridge": "cni0", "isDefaultGateway": True, "hairpinMode": True}
            return {**switch, "ipMasq": True, "ipMasqBackend": self.backend, "ipam": ipam}
        if plugin == "portmap":
            return {"backend": self.backend, "runtimeConfig": {"portMappings": ports(*self.published)}}
        if plugin == "bandwidth":
            return {"runtimeConfig": {"bandwidth": bandwidth_network.BOTH}}
        if plugin == "firewall":
            return {"backend": self.backend, "ingressPolicy": "same-bridge"}
        if plugin == "tuning":
            sysctl = {"net.ipv4.conf.IFNAME.arp_filter": "1"}
            own = {"mac": "02:00:00:00:00:42", "mtu": 1400, "txQLen": 500, "allmulti": True}
            return {"sysctl": sysctl, **own, "dataDir": str(self.backups)}
        if plugin == "ptp":
            return {"ipMasq": True, "ipMasqBackend": self.backend, "ipam": ipam}
        if plugin == "static":
            return {"ipam": {"type": "static", "addresses": [{"address": "10.22.0.9/16", "gateway": "10.22.0.1"}]}}
        return {}


def _setting(pod: Namespace) -> str:
    with pod.entered():
        return _SETTING.read_text().strip() if _SETTING.exists() else ""


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Returns where two states differ, one line for each place."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted(before.keys() | after.keys())
        return [line for key in keys for line in differences(before.get(key), after.get(key), f"{path}/{key}")]
    if isinstance(before, list) and isinstance(after, list):
        gone = [item for item in before if item not in after]
        new = [item for item in after if item not in before]
        return [f"{path}: lost {gone}, left {new}"] if gone or new or before != after else []
    return [] if before == after else [f"{path}: {before!r} became {after!r}"]
