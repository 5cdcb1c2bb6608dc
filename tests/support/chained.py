"""A whole chain on a temporary host, from bridge with host-local to tuning; and the other plugins. One verb a call.

`everything()` returns all state that any of these plugins changes, so that tests compare all of it.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import bandwidth_network, netstate, pod_interfaces, vrf_network
from tests.support.hostports import ports
from tests.support.invocation import Outcome, finish, start_plugin
from tests.support.namespaces import Namespace

CHAIN = ("bridge", "portmap", "bandwidth", "firewall", "tuning")  # in the order of ADD
_SETTING = Path("/proc/sys/net/ipv4/conf/eth0/arp_filter")
_GUARD = re.compile(r"^table ip mangle \{$.*?^\}$\n?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Chain:
    """The chain of one network on `host`; `store` has the leases, `backend` creates the rules."""

    host: Namespace
    store: Path
    backend: str
    published: tuple[str, ...] = ("8080:80", "8053:53/udp")

    def config(self, plugin: str, prev_result: object = None, **keys: Any) -> dict[str, Any]:
        """Returns the configuration of a plugin of the chain; None removes a key."""
        config = {"cniVersion": "1.0.0", "name": "net", "type": plugin, **self._options_of(plugin)}
        config |= {"prevResult": prev_result, **keys}
        return {key: value for key, value in config.items() if value is not None}

    def run(
        self, plugin: str, command: str, pod: Namespace, prev_result: object = None, *before: str, **keys: Any
    ) -> Outcome:
        """Runs one verb of one plugin for eth0 of `pod`; `before` begins the command, for example strace."""
        return finish(self.start(plugin, command, pod, *before), self.config(plugin, prev_result, **keys))

    def start(self, plugin: str, command: str, pod: Namespace, *before: str) -> subprocess.Popen[bytes]:
        """Starts a verb and returns at once; `invocation.finish` sends the configuration and waits for the end."""
        ifname = "lo" if plugin == "loopback" else "eth0"
        return start_plugin(
            plugin, command, netns=pod, container_id=pod.name, ifname=ifname, host=self.host, before=before
        )

    def add(self, pod: Namespace, *plugins: str, prev_result: Any = None) -> Any:
        """Runs ADD of `plugins`, each with the result of the previous one, and returns the last result."""
        for plugin in plugins:
            prev_result = self.run(plugin, "ADD", pod, prev_result).result()
        return prev_result

    def delete(self, pod: Namespace, *plugins: str, prev_result: Any = None) -> None:
        """Runs DEL of `plugins` in reverse order; a failure fails the test."""
        for plugin in reversed(plugins):
            self.run(plugin, "DEL", pod, prev_result).assert_silent()

    def leases(self) -> dict[str, str]:
        """Returns the files of the store with their content, except last_reserved_ip.*."""
        directory = self.store / "net"
        files = directory.iterdir() if directory.is_dir() else ()
        return {file.name: file.read_text() for file in files if not file.name.startswith("last_reserved")}

    @property
    def backups(self) -> Path:
        """The directory in which tuning stores the original attributes of interfaces."""
        return self.store.with_name(f"{self.store.name}-tuning")

    def saved(self) -> dict[str, str]:
        """Returns tuning's files; of its notes, which contain times, only the names."""
        notes = self.backups.with_name(f"{self.backups.name}.podwire")
        files = {file.name: file.read_text() for file in self.backups.iterdir()} if self.backups.is_dir() else {}
        return files | {f"{notes.name}/{file.name}": "" for file in notes.iterdir()} if notes.is_dir() else files

    def untune(self, pod: Namespace, mac: str = "") -> None:
        """Restores the sysctl that DEL leaves as it is; with the original `mac`, also the attributes that GC leaves."""
        if mac:
            pod.ip("link", "set", "eth0", "address", mac, "mtu", "1500", "txqueuelen", "1000", "allmulticast", "off")
        with pod.entered():
            _SETTING.write_text("0")

    def unroute(self, pod: Namespace) -> None:
        """Returns the routes to table main that sbr moved and its DEL deleted with their table."""
        (address,) = (item["local"] for item in netstate.links(pod)["eth0"]["addresses"])
        device = ("dev", "eth0")
        pod.ip("route", "replace", "10.22.0.0/16", *device, "proto", "kernel", "scope", "link", "src", address)
        pod.ip("route", "replace", "default", "via", "10.22.0.1", *device)

    def everything(self, pod: Namespace) -> dict[str, Any]:
        """Returns all that the chain can change, on the host, in the pod and in the store."""
        # The guard of 127.0.0.0/8 belongs to the bridge, not to a pod, and exists with either backend.
        rules = "\n".join(netstate.nft_rules(self.host))
        lines = [line for line in _GUARD.sub("", rules).split("\n") if line and "127.0.0.0/8" not in line]
        host = bandwidth_network.state(self.host) | {"nft": lines}
        with pod.entered():
            setting = _SETTING.read_text().strip() if _SETTING.exists() else ""
        pod_state = vrf_network.state(pod) | {"setting": setting}
        files = {"leases": self.leases(), "backups": self.saved(), "devices": pod_interfaces.device_files(self.store)}
        return {"host": host, "pod": pod_state, **files}

    def _options_of(self, plugin: str) -> dict[str, Any]:
        ipam = {"type": "host-local", "dataDir": str(self.store), "ranges": [[{"subnet": "10.22.0.0/16"}]]}
        bridge = {"bridge": "cni0", "isDefaultGateway": True, "hairpinMode": True}
        masquerade = {"ipMasq": True, "ipMasqBackend": self.backend, "ipam": ipam}
        sysctl = {"net.ipv4.conf.IFNAME.arp_filter": "1"}
        attributes = {"mac": "02:00:00:00:00:42", "mtu": 1400, "txQLen": 500, "allmulti": True}
        static = {"type": "static", "addresses": [{"address": "10.22.0.9/16", "gateway": "10.22.0.1"}]}
        if plugin in pod_interfaces.KEYS:
            return {**pod_interfaces.options(plugin, 0, self.store), "ipam": ipam}
        options: dict[str, dict[str, Any]] = {
            "host-local": {"ipam": ipam},
            "bridge": {**bridge, **masquerade},
            "portmap": {"backend": self.backend, "runtimeConfig": {"portMappings": ports(*self.published)}},
            "bandwidth": {"runtimeConfig": {"bandwidth": bandwidth_network.BOTH}},
            "firewall": {"backend": self.backend, "ingressPolicy": "same-bridge"},
            "tuning": {"sysctl": sysctl, **attributes, "dataDir": str(self.backups)},
            "ptp": masquerade,
            "vrf": {"vrfname": "blue"},
            "static": {"ipam": static},
        }
        return options.get(plugin, {})


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Returns the differences of two states, one line for each path."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted(before.keys() | after.keys())
        return [line for key in keys for line in differences(before.get(key), after.get(key), f"{path}/{key}")]
    if isinstance(before, list) and isinstance(after, list):
        missing = [item for item in before if item not in after]
        new = [item for item in after if item not in before]
        return [f"{path}: lost {missing}, left {new}"] if missing or new or before != after else []
    return [] if before == after else [f"{path}: {before!r} became {after!r}"]
