"""A node with attachments in a result cache as libcni writes it, for tests that flush rules and run `podwire repair`.

One rule: the cache is a directory of the test, which the tool gets as an option.
"""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tests.support import binaries, libcni, xtables
from tests.support.hostports import ports
from tests.support.invocation import Outcome, environment
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList, runner

_COUNTERS = re.compile(r"counter packets \d+ bytes \d+|\[\d+:\d+\]")
_IPTABLES = re.compile(r"table ip6? (nat|filter|mangle) ")


@dataclass(frozen=True)
class Node:
    """A host with one network; `bin_dir` has the plugins, `env` has further variables for them and for the tool."""

    host: Namespace
    chain: NetworkList
    cache: Path
    env: Mapping[str, str] = field(default_factory=dict)
    bin_dir: Path | None = None
    tools: Path | None = None

    def with_ports(self, *mappings: str) -> Self:
        """Returns the same node for pods with these host ports ("8080:80", "5353:53/udp")."""
        return replace(self, chain=self.chain.with_capabilities(portMappings=ports(*mappings)))

    def add(self, pod: Namespace, container_id: str = "") -> dict[str, Any]:
        """Attaches a pod and writes its cache file, as libcni does after the last plugin."""
        result = self.chain.add(self._runner(pod, container_id or pod.name))
        self.write_entry(pod.path, container_id or pod.name, result)
        return result

    def write_entry(self, netns: str, container_id: str, result: object) -> None:
        """Writes an attachment's cache file."""
        pair = {"IgnoreUnknown": "1", "K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": container_id}
        how: dict[str, Any] = {"config": self.chain.config, "capability_args": self.chain.capability_args}
        libcni.write_entry(self.cache, self.chain.name, container_id, netns=netns, result=result, cni_args=pair, **how)

    def delete(self, pod: Namespace, result: dict[str, Any] | None = None, container_id: str = "") -> None:
        """Detaches a pod and deletes its cache file, as libcni does after the last plugin."""
        self.chain.delete(self._runner(pod, container_id or pod.name), result)
        self.file(container_id or pod.name).unlink()

    def check(self, pod: Namespace, result: dict[str, Any]) -> None:
        """Runs CHECK of every plugin."""
        self.chain.check(self._runner(pod, pod.name), result)

    def file(self, container_id: str) -> Path:
        """Returns the path of a pod's cache file."""
        return self.cache / "results" / f"{self.chain.name}-{container_id}-eth0"

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Starts `podwire repair` on the host, without waiting for it."""
        line = [str(binaries.directory() / "podwire"), "repair", "--cache-dir", str(self.cache), *options]
        env = {**environment(None), **self.env}
        with self.host.entered():
            return subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def tool(self, *options: str) -> Outcome:
        """Runs `podwire repair` to its end."""
        process = self.start(*options)
        stdout, stderr = process.communicate(timeout=60)
        return Outcome(process.returncode, stdout, stderr.decode())

    def repair(self, *options: str) -> dict[str, str]:
        """Runs `podwire repair` with a short wait and returns the states by container; a failure fails the test."""
        outcome = self.tool("--json", "--settle", "0.1", *options)
        assert outcome.status == (1 if "--dry-run" in options else 0), f"{outcome.stdout.decode()} {outcome.stderr}"
        return {item["containerID"]: item["state"] for item in outcome.json["attachments"]}

    def flush(self) -> None:
        """Flushes all rules of nftables, and of the iptables variant that the node uses."""
        self.host.run("nft", "flush", "ruleset")
        if self.tools:
            for tool in xtables.TOOLS:
                for table in ("filter", "nat", "mangle"):
                    self.host.run(f"{self.tools}/{tool}", "-t", table, "-F")
                    self.host.run(f"{self.tools}/{tool}", "-t", table, "-X")

    def rules(self) -> dict[str, list[str]]:
        """Returns all rules by chain, without counters and empty chains.

        Rules of iptables-nft are as iptables-save prints them: nft's translation varies.
        """
        rules: dict[str, list[str]] = {}
        text = _COUNTERS.sub("", self.host.run("nft", "-s", "list", "ruleset"))
        table = chain = ""
        for line in (line.strip() for line in text.splitlines()):
            if line.startswith("table "):
                table, chain = line, ""
            elif line.startswith(("chain ", "set ", "map ")):
                chain = f"{table} {line}"
            elif chain and line and line != "}" and not (self.tools and _IPTABLES.match(table)):
                rules.setdefault(chain, []).append(line)
        if self.tools:
            for table in ("filter", "nat", "mangle"):
                for tool, lines in xtables.saved(self.host, self.tools, table).items():
                    for line in (line for line in lines if line.startswith("-A ")):
                        rules.setdefault(f"{tool} {table} {line.split()[1]}", []).append(_COUNTERS.sub("", line))
        hook = ("type ", "#")
        return {name: lines for name, lines in rules.items() if not all(line.startswith(hook) for line in lines)}

    def _runner(self, pod: Namespace, container_id: str) -> Any:
        def run(plugin: str, command: str, config: dict[str, Any]) -> Outcome:
            directory = self.bin_dir if self.bin_dir and (self.bin_dir / plugin).exists() else None
            started = runner(self.host, pod, container_id=container_id, bin_dir=directory, env=self.env)
            return started(plugin, command, config)

        return run


def network(store: Path, backend: str, *, name: str = "net", bridge: str = "cni0", net: int = 22) -> NetworkList:
    """Returns a dual-stack network with masquerading, MAC spoof check, host ports and a policy, all with `backend`."""
    ranges = [[{"subnet": f"10.{net}.0.0/16"}], [{"subnet": f"fd00:{net}::/64"}]]
    routes = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    ipam = {"type": "host-local", "dataDir": str(store), "ranges": ranges, "routes": routes}
    nat = "nftables" if backend == "nftables" else "iptables"
    first = {"type": "bridge", "bridge": bridge, "isDefaultGateway": True, "ipMasq": True, "ipMasqBackend": nat}
    first |= {"macspoofchk": True, "hairpinMode": True, "ipam": ipam}
    portmap = {"type": "portmap", "backend": nat, "capabilities": {"portMappings": True}}
    firewall = {"type": "firewall", "backend": backend, "ingressPolicy": "same-bridge"}
    return NetworkList(name, "1.0.0", (first, portmap, firewall))
