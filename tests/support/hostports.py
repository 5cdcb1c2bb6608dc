"""Host ports on a throwaway host: portmap's verbs for pods that are only a name and an address, and what they made.

One rule: a pod here needs no interface, as portmap works on what an earlier plugin says that it made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.namespaces import Namespace
from tests.support.running import Config, Outcome, finish, run_plugin, start_plugin

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
TOOLS = ("iptables", "ip6tables")
DUAL = ("10.22.0.2/16", "fd00:22::2/64")

Ports = Sequence[Mapping[str, Any]]


def ports(*texts: str) -> list[dict[str, Any]]:
    """Returns port mappings from texts like "8080:80", "53:53/udp", "192.0.2.1|8080:80"."""
    found = []
    for text in texts:
        ip, _, rest = text.rpartition("|")
        numbers, _, protocol = rest.partition("/")
        host, container = numbers.split(":")
        mapping = {"hostPort": int(host), "containerPort": int(container), "protocol": protocol or "tcp"}
        found.append(mapping | ({"hostIP": ip} if ip else {}))
    return found


def variant(directory: Path, name: str) -> Path:
    """Makes a directory in which iptables and its company are of variant "nft" or "legacy", and returns it."""
    directory.mkdir()
    for tool in TOOLS:
        for suffix in ("", "-restore", "-save"):
            (directory / f"{tool}{suffix}").symlink_to(f"/usr/sbin/xtables-{name}-multi")
    return directory


def counted(tools: Path, directory: Path) -> Path:
    """Makes a directory of the same programs that note each start in `<directory>/notes`, and returns it."""
    directory.mkdir()
    for program in tools.iterdir():
        wrapper = directory / program.name
        wrapper.write_text(f'#!/bin/sh\necho {program.name} >> {directory}/notes\nexec {program} "$@"\n')
        wrapper.chmod(0o755)
    return directory


def with_cache(directory: Path, plugin: Path) -> Path:
    """Makes a directory whose plugin of that name sees `<directory>/results` as libcni's cache, and returns it."""
    (directory / "results").mkdir(parents=True)
    wrapper = directory / plugin.name
    inside = "mount -t tmpfs podwire /var/lib && mkdir /var/lib/cni && ln -s {0}/results /var/lib/cni && exec {1}"
    wrapper.write_text(f"#!/bin/sh\nexec unshare --mount sh -c '{inside.format(directory, plugin)}'\n")
    wrapper.chmod(0o755)
    return directory


@dataclass(frozen=True)
class HostPorts:
    """A network with host ports on `host`; the plugin is that of `bin_dir`, the programs are those of `tools`."""

    host: Namespace
    bin_dir: Path
    tools: Path
    config: Mapping[str, Any]

    def having(self, **keys: Any) -> HostPorts:
        """Returns the same network with other top-level keys; None leaves a key out."""
        config = {**self.config, **keys}
        return replace(self, config={key: value for key, value in config.items() if value is not None})

    def add(self, container_id: str, *mappings: str, **how: Any) -> None:
        """Makes the host ports of a container; a failure fails the test."""
        self.run("ADD", container_id, *mappings, **how).result()

    def check(self, container_id: str, *mappings: str, **how: Any) -> None:
        """Checks them; a failure fails the test."""
        self.run("CHECK", container_id, *mappings, **how).silence()

    def delete(self, container_id: str, *mappings: str, **how: Any) -> None:
        """Removes them; a failure fails the test."""
        self.run("DEL", container_id, *mappings, **how).silence()

    def run(
        self, command: str, container_id: str = "cid", *mappings: str, addresses: Sequence[str] = DUAL, **how: Any
    ) -> Outcome:
        """Runs one verb to its end, for a container with these addresses; `how` as start_plugin takes it."""
        config = self._config(mappings, addresses, how.get("ifname", "eth0"))
        return run_plugin("portmap", command, config, **self._how(container_id, how))

    def run_all(self, command: str, pods: Mapping[str, tuple[str, str]]) -> list[Outcome]:
        """Runs a verb at once for several containers: each has a mapping and an IPv4 address."""
        started = [(start_plugin("portmap", command, **self._how(name, {})), pods[name]) for name in pods]
        configs: list[Config] = [self._config([mapping], [address], "eth0") for _, (mapping, address) in started]
        for (process, _), config in zip(started, configs, strict=True):
            assert process.stdin
            process.stdin.write(json.dumps(config).encode())
            process.stdin.close()
            process.stdin = None
        return [finish(process) for process, _ in started]

    def rules(self) -> dict[str, list[str]]:
        """Returns table nat: chains that are not built in and rules, as iptables-save prints them."""
        return {tool: self._saved(tool) for tool in TOOLS}

    def load(self, *lines: str, tool: str = "iptables") -> None:
        """Applies lines to table nat; a failure fails the test."""
        file = self.tools.parent / f"lines-{os.getpid()}"
        file.write_text("\n".join(("*nat", *lines, "COMMIT", "")))
        self.host.run(f"{self.tools}/{tool}-restore", "--noflush", str(file))

    def calls(self) -> list[str]:
        """Returns the programs that were run since the last call; `tools` are `counted`."""
        notes = self.tools / "notes"
        found = sorted(notes.read_text().split()) if notes.exists() else []
        notes.unlink(missing_ok=True)
        return found

    def remember(self, container_id: str, netns: str, addresses: Sequence[str] = DUAL, ifname: str = "eth0") -> None:
        """Writes the container's entry in the cache; `bin_dir` is of `with_cache`."""
        name = self.config["name"]
        entry = {"kind": "cniCacheV1", "networkName": name, "containerId": container_id, "ifName": ifname}
        entry |= {"netns": netns, "result": _result(addresses, ifname)}
        (self.bin_dir / "results" / f"{name}-{container_id}-{ifname}").write_text(json.dumps(entry))

    def _saved(self, tool: str) -> list[str]:
        lines = self.host.run(f"{self.tools}/{tool}-save", "-t", "nat").splitlines()
        return [line.partition(" - [")[0] for line in lines if line.startswith("-A") or " - [" in line]

    def _config(self, mappings: Iterable[str], addresses: Sequence[str], ifname: str) -> dict[str, Any]:
        runtime = {"runtimeConfig": {"portMappings": ports(*mappings)}} if mappings else {}
        return {**self.config, **runtime, "prevResult": _result(addresses, ifname)}

    def _how(self, container_id: str, how: dict[str, Any]) -> dict[str, Any]:
        own = {"host": self.host, "netns": "/run/netns/x", "bin_dir": self.bin_dir, "container_id": container_id}
        return {**own, "env": {"PATH": f"{self.tools}:{SYSTEM_PATH}"}, **how}


def _result(addresses: Sequence[str], ifname: str) -> dict[str, Any]:
    return {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": ifname, "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/x"}],
        "ips": [{"interface": 0, "address": address} for address in addresses],
    }
