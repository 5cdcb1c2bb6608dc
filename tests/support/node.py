"""A node with a network of all plugins, as a runtime stores it (net.d, libcni's cache), and the operator's tool.

One rule: the tool gets every directory as an option, so that it never reads the machine's files.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support import binaries, libcni
from tests.support.hostports import ports
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList, Run, runner

_TIMEOUT_S = 60
NET = f"10.213.{os.getpid() % 256}"  # unique: the tool inspects every namespace of the machine
SUBNET = f"{NET}.0/24"
BANDWIDTH = {"ingressRate": 10_000_000, "ingressBurst": 800_000, "egressRate": 2_500_000, "egressBurst": 800_000}


@dataclass(frozen=True)
class Done:
    """The outcome of a command of the tool."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The JSON document on stdout."""
        return json.loads(self.stdout)


@dataclass(frozen=True)
class Node:
    """The network `name` on `host`; the runtime's files are in `directory`, the plugins in `bin_dir`."""

    host: Namespace
    directory: Path
    name: str = "podnet"
    backend: str = "nftables"
    bin_dir: Path | None = None
    range_keys: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Writes the network's file into net.d."""
        for part in ("net.d", "results"):
            (self.directory / part).mkdir(parents=True, exist_ok=True)
        (self.directory / "net.d" / f"10-{self.name}.conflist").write_text(json.dumps(self.config))

    @property
    def config(self) -> dict[str, Any]:
        """The network's list."""
        ranges = [[{"subnet": SUBNET, **(self.range_keys or {})}]]
        ipam = {"type": "host-local", "dataDir": str(self.store.parent), "ranges": ranges}
        plugins: list[dict[str, Any]] = [
            {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "ipam": ipam},
            {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True},
            {"type": "bandwidth", "capabilities": {"bandwidth": True}},
            {"type": "firewall", "backend": "iptables" if self.bin_dir else self.backend},
        ]
        if not self.bin_dir:  # the keys and the plugin that are podwire's
            plugins[0]["ipMasqBackend"] = plugins[1]["backend"] = self.backend
            plugins.append({"type": "tuning", "mtu": 1400, "dataDir": str(self.directory / "tuning")})
        return {"cniVersion": "1.0.0", "name": self.name, "plugins": plugins}

    @property
    def store(self) -> Path:
        """The directory of the network's reservations."""
        return self.directory / "leases" / self.name

    def attach(self, pod: Namespace, *published: str, name: str = "", limits: bool = True) -> dict[str, Any]:
        """Runs ADD of the chain and writes the cache as libcni does; returns the last result."""
        capabilities: dict[str, object] = {"portMappings": ports(*published)} if published else {}
        if limits:
            capabilities["bandwidth"] = BANDWIDTH
        result = self._list(capabilities).add(self._runner(pod))
        self.write_entry(pod, result, capabilities, name)
        return result

    def write_entry(self, pod: Namespace, result: object, capabilities: Mapping[str, object], name: str = "") -> Path:
        """Writes the pod's entry into the cache."""
        pair = {"IgnoreUnknown": "1", "K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": name or pod.name}
        how: dict[str, Any] = {"config": self.config, "capability_args": capabilities, "cni_args": pair}
        return libcni.write_entry(self.directory, self.name, pod.name, netns=pod.path, result=result, **how)

    def entry(self, pod: Namespace) -> Path:
        """Returns the path of the pod's cache file."""
        return self.directory / "results" / f"{self.name}-{pod.name}-eth0"

    def check(self, pod: Namespace) -> None:
        """Runs CHECK of the chain with the cached result."""
        cached = json.loads(self.entry(pod).read_text())
        self._list(cached.get("capabilityArgs", {})).check(self._runner(pod), cached["result"])

    def detach(self, pod: Namespace, *, netns: str | None = None) -> None:
        """Runs DEL of the chain and deletes the cache file."""
        cached = json.loads(self.entry(pod).read_text())
        run = self._runner(pod, **({} if netns is None else {"netns": netns}))
        self._list(cached.get("capabilityArgs", {})).delete(run, cached["result"])
        self.entry(pod).unlink()

    def gc(self, *valid: Namespace) -> None:
        """Runs GC of podwire's chain with `valid` as the running pods, and deletes the cache files of the others."""
        attachments = [{"containerID": pod.name, "ifname": "eth0"} for pod in valid]
        replace(self._list({}), cni_version="1.1.0").collect(runner(self.host, None), attachments)
        for path in (self.directory / "results").iterdir():
            if not any(self.entry(pod) == path for pod in valid):
                path.unlink()

    def tool(self, *words: str, before: Sequence[str] = (), directories: bool = True) -> Done:
        """Runs a command of the tool on this node; `before` is a command line that starts it.

        With `directories` it gets the options for net.d and the stores, which not every command has.
        """
        options = ["--cache-dir", str(self.directory)]
        if directories:
            options += ["--conf-dir", str(self.directory / "net.d"), "--data-dir", str(self.store.parent)]
        program = str(binaries.directory() / "podwire")
        line = [*before, program, *words, *options]
        with self.host.entered():
            done = subprocess.run(line, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def show(self) -> Any:
        """Returns the document of `podwire show`."""
        done = self.tool("show", "--json")
        assert done.status in (0, 1, 4), done
        return done.json

    def leaked_kinds(self) -> set[str]:
        """Returns the kinds of leaked objects that `podwire show` reports."""
        return {leak["kind"] for leak in self.show()["leaks"]}

    def _list(self, capabilities: Mapping[str, object]) -> NetworkList:
        config = self.config
        return NetworkList(self.name, config["cniVersion"], tuple(config["plugins"]), capabilities)

    def _runner(self, pod: Namespace, **how: Any) -> Run:
        return runner(self.host, pod, bin_dir=self.bin_dir, **how)
