"""portmap alone on a throwaway host: host ports of pods that an earlier plugin's result only tells of.

One rule: no packet passes here; a test that needs the pod uses tests/support/hostports.py.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support import binaries, golden
from tests.support.namespaces import Namespace
from tests.support.netstate import nft_rules
from tests.support.running import Outcome, run_plugin, start_plugin

ADDRESSES = ("10.22.0.2/16",)
BOTH = (*ADDRESSES, "fd00:22::2/64")
OTHER = "10.22.0.3/16"  # another pod's


def prev_result(*addresses: str, ifname: str = "eth0", version: str = "1.1.0") -> dict[str, Any]:
    """Returns the result of an earlier plugin for a pod with `addresses`."""
    return {
        "cniVersion": version,
        "interfaces": [{"name": ifname, "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/x"}],
        "ips": [{"interface": 0, "address": address} for address in addresses],
    }


def tcp(host_port: int, container_port: int = 80, **keys: Any) -> dict[str, Any]:
    """Returns a port mapping as runtimes write it."""
    return {"hostPort": host_port, "containerPort": container_port, "protocol": "tcp", **keys}


class Cache:
    """libcni's result cache in `directory`; the plugin `portmap` of its directory `bin` sees that and no other."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self._results = directory / "results"
        for made in (self.bin, self._results):
            made.mkdir()
        hidden = "mount -t tmpfs podwire /var/lib; mkdir /var/lib/cni"
        real = binaries.directory() / "portmap"
        script = f"{hidden}; ln -s {self._results} /var/lib/cni/results; exec {real}"
        (self.bin / "portmap").write_text(f"#!/bin/sh\nexec unshare --mount sh -ec '{script}'\n")
        (self.bin / "portmap").chmod(0o755)

    def put(self, network: str, container_id: str, netns: str) -> None:
        """Writes what a runtime writes after ADD."""
        entry = {"containerId": container_id, "ifName": "eth0", "networkName": network, "netns": netns}
        (self._results / f"{network}-{container_id}-eth0").write_text(json.dumps({"kind": "cniCacheV1", **entry}))


@dataclass(frozen=True)
class Mapped:
    """A network's portmap on one host; `bin_dir` is its directory, ours unless given."""

    host: Namespace
    config: Mapping[str, Any]
    bin_dir: Path | None = None

    def having(self, *ports: Mapping[str, Any], addresses: tuple[str, ...] = (), **keys: Any) -> Mapped:
        """Returns the same network with other ports, addresses of the pod, or keys; None leaves a key out."""
        config: dict[str, Any] = {**self.config, **keys}
        if ports:
            config["runtimeConfig"] = {"portMappings": list(ports)}
        if addresses:
            config["prevResult"] = prev_result(*addresses)
        return replace(self, config={key: value for key, value in config.items() if value is not None})

    def run(self, command: str, container_id: str = "cid", **how: Any) -> Outcome:
        """Runs one verb to its end."""
        return run_plugin("portmap", command, self.config, **self._how(container_id, how))

    def start(self, command: str, container_id: str = "cid", **how: Any) -> subprocess.Popen[bytes]:
        """Starts one verb, its input complete, and returns its process."""
        with tempfile.TemporaryFile() as stdin:
            stdin.write(json.dumps(self.config).encode())
            stdin.seek(0)
            return start_plugin("portmap", command, stdin=stdin, **self._how(container_id, how))

    def add(self, container_id: str = "cid", **how: Any) -> None:
        """Maps the ports; a failure fails the test."""
        self.run("ADD", container_id, **how).result()

    def check(self, container_id: str = "cid", **how: Any) -> None:
        """Checks the ports; a failure fails the test."""
        self.run("CHECK", container_id, **how).silence()

    def delete(self, container_id: str = "cid", **how: Any) -> None:
        """Takes the ports away; a failure fails the test."""
        self.run("DEL", container_id, **how).silence()

    def gc(self, *valid: tuple[str, str]) -> Outcome:
        """Collects what belongs to none of the `valid` (container ID, ifname); returns the outcome, a success."""
        attachments = [{"containerID": container_id, "ifname": ifname} for container_id, ifname in valid]
        outcome = self.having(**{"cni.dev/valid-attachments": attachments}).run("GC")
        outcome.silence()
        return outcome

    def _how(self, container_id: str, how: dict[str, Any]) -> dict[str, Any]:
        return {
            "netns": "/run/netns/x",
            "host": self.host,
            "container_id": container_id,
            "bin_dir": self.bin_dir,
            **how,
        }


def network(host: Namespace, backend: str) -> Mapped:
    """Returns a network with one port of a pod with ADDRESSES."""
    config = {
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "portmap",
        "backend": backend,
        "runtimeConfig": {"portMappings": [tcp(8080)]},
        "prevResult": prev_result(*ADDRESSES),
    }
    return Mapped(host, config)


def chain(host: Namespace, name: str, family: str = "ip") -> list[str]:
    """Returns the rules of a chain of table cni_hostport as `nft` prints them; none when there is no such chain."""
    text = host.run("nft", "list", "chain", family, "cni_hostport", name, check=False)
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("table ", "chain ", "type ", "comment ", "}"))]


def leads_to(host: Namespace, port: int = 8080, family: str = "ip") -> list[str]:
    """Returns where the rules of a port lead to, in order."""
    rules = [rule for rule in chain(host, "hostports", family) if f"dport {port} dnat" in rule]
    return [rule.partition(" dnat to ")[2].partition(" comment ")[0] for rule in rules]


def ruleset(host: Namespace) -> list[str]:
    """Returns the whole rule set as golden states have it."""
    return golden.rules("\n".join(nft_rules(host)))
