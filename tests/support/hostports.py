"""Host ports on a temporary host: portmap's verbs for pods that have only a name and addresses, and their rules.

A pod needs no interface, since portmap reads its addresses from prevResult. tests/support/publishing.py has pods that
send packets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support import libcni, xtables
from tests.support.invocation import Outcome, feed, finish, run_plugin, start_plugin
from tests.support.namespaces import Namespace
from tests.support.results import prev_result

IPV4, IPV6 = "10.22.0.2/16", "fd00:22::2/64"
DUAL = (IPV4, IPV6)
OTHER = "10.22.0.3/16"  # the address of another pod


def ports(*texts: str) -> list[dict[str, Any]]:
    """Returns port mappings from texts like "8080:80", "53:53/udp", "192.0.2.1|8080:80"."""
    mappings = []
    for text in texts:
        ip, _, rest = text.rpartition("|")
        numbers, _, protocol = rest.partition("/")
        host, container = numbers.split(":")
        mapping = {"hostPort": int(host), "containerPort": int(container), "protocol": protocol or "tcp"}
        mappings.append(mapping | ({"hostIP": ip} if ip else {}))
    return mappings


@dataclass(frozen=True)
class PortmapNetwork:
    """A network with portmap on one host, and the host ports of one pod.

    `bin_dir` has the plugin, by default podwire's; `tools` has the programs of iptables, by default the machine's;
    `netns` is the pod's namespace.
    """

    host: Namespace
    config: Mapping[str, Any]
    bin_dir: Path | None = None
    tools: Path | None = None
    netns: Namespace | str = "/run/netns/x"

    def having(
        self, *mappings: str, addresses: Sequence[str] = (), ifname: str = "eth0", **keys: Any
    ) -> PortmapNetwork:
        """Returns a copy with other mappings, addresses of the pod, or top-level keys; None removes a key."""
        config = {**self.config, **keys}
        if mappings:
            config["runtimeConfig"] = {"portMappings": ports(*mappings)}
        if addresses:
            config["prevResult"] = prev_result(config["cniVersion"], *addresses, ifname=ifname)
        return replace(self, config={key: value for key, value in config.items() if value is not None})

    def without_result(self) -> PortmapNetwork:
        """Returns a copy without prevResult and mappings, as for a runtime that has lost its cache."""
        return self.having(prevResult=None, runtimeConfig=None)

    def run(
        self,
        command: str,
        container_id: str = "cid",
        *mappings: str,
        addresses: Sequence[str] = (),
        ifname: str = "eth0",
        **options: Any,
    ) -> Outcome:
        """Runs one verb to its end; mappings and addresses as in `having`, `options` as in start_plugin."""
        config = self.having(*mappings, addresses=addresses, ifname=ifname).config
        return run_plugin("portmap", command, config, **self._invocation(container_id, ifname=ifname, **options))

    def add(self, container_id: str = "cid", *mappings: str, **options: Any) -> dict[str, Any]:
        """Runs ADD for a container and returns the result; a failure fails the test."""
        return self.run("ADD", container_id, *mappings, **options).result()

    def check(self, container_id: str = "cid", *mappings: str, **options: Any) -> None:
        """Runs CHECK; a failure fails the test."""
        self.run("CHECK", container_id, *mappings, **options).assert_silent()

    def delete(self, container_id: str = "cid", *mappings: str, **options: Any) -> None:
        """Runs DEL; a failure fails the test."""
        self.run("DEL", container_id, *mappings, **options).assert_silent()

    def gc(self, *valid: str, ifname: str = "eth0", **options: Any) -> str:
        """Runs GC with `ifname` of the `valid` containers as valid attachments; returns stderr."""
        attachments = [{"containerID": container_id, "ifname": ifname} for container_id in valid]
        keys: dict[str, Any] = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": attachments}
        outcome = self.without_result().having(**keys).run("GC", **options)
        outcome.assert_silent()
        return outcome.stderr

    def with_cache(self, directory: Path) -> PortmapNetwork:
        """Returns a copy whose plugin uses `<directory>/results`, which is empty, as libcni's cache."""
        return replace(self, bin_dir=libcni.install_with_cache(directory, "portmap", bin_dir=self.bin_dir))

    def write_cache(self, **containers: bool) -> None:
        """Writes containers to the cache (`with_cache`), each with an existing namespace or a missing one."""
        assert self.bin_dir
        for container_id, is_running in containers.items():
            libcni.write_entry(
                self.bin_dir,
                self.config["name"],
                container_id,
                netns="" if is_running else libcni.MISSING_NETNS,
                result=self.config["prevResult"],
            )

    def rules(self) -> dict[str, list[str]]:
        """Returns table nat of each IP version, as iptables-save prints it."""
        return xtables.saved(self.host, self._get_tools())

    def container_rules(self, *tools: str) -> list[str]:
        """Returns the rules and chains of containers, in order, with any backend; of iptables optionally of `tools`."""
        if self._uses_nftables():
            chains = [(family, name) for family in ("ip", "ip6") for name in ("hostports", "masquerading")]
            return [f"{family} {name} {rule}" for family, name in chains for rule in chain(self.host, name, family)]
        return [line for tool in tools or xtables.TOOLS for line in self.rules()[tool] if "CNI-DN-" in line]

    def owners(self, port: int = 8080) -> list[str]:
        """Returns the containers to which IPv4 rules forward a port, in order, with any backend."""
        if self._uses_nftables():
            rules = [rule for rule in chain(self.host, "hostports") if f"dport {port} dnat" in rule]
            return [rule.partition(' comment "')[2].rstrip('"') for rule in rules]
        jumps = re.findall(r'id: \\"(\w+).* --dports (\S+) ', "\n".join(self.rules()["iptables"]))
        return [container_id for container_id, numbers in jumps if str(port) in numbers.split(",")]

    def load(self, *lines: str, tool: str = "iptables") -> None:
        """Applies lines to table nat; a failure fails the test."""
        xtables.load(self.host, self._get_tools(), *lines, tool=tool)

    def _uses_nftables(self) -> bool:
        return bool(self.config["backend"] == "nftables")

    def _get_tools(self) -> Path:
        assert self.tools, "a test with iptables sets tools"
        return self.tools

    def _invocation(self, container_id: str, **options: Any) -> dict[str, Any]:
        env = xtables.path(self.tools) if self.tools else None
        defaults = {"host": self.host, "netns": self.netns, "bin_dir": self.bin_dir, "env": env}
        return {**defaults, "container_id": container_id, **options}


def run_in_parallel(*calls: tuple[str, str, PortmapNetwork]) -> list[Outcome]:
    """Runs verbs in parallel, each for a container ID and its network; returns the outcomes in that order."""
    started = [start_plugin("portmap", command, **pod._invocation(name)) for command, name, pod in calls]
    for process, (_, _, pod) in zip(started, calls, strict=True):
        feed(process, pod.config)
    return [finish(process) for process in started]


def chain(host: Namespace, name: str, family: str = "ip") -> list[str]:
    """Returns the rules of a chain of table cni_hostport as `nft` prints them, none if the chain is missing."""
    text = host.run("nft", "list", "chain", family, "cni_hostport", name, check=False)
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("table ", "chain ", "type ", "comment ", "}"))]


def dnat_targets(host: Namespace, port: int = 8080, family: str = "ip") -> list[str]:
    """Returns the targets of the DNAT rules for a port, in order."""
    rules = [rule for rule in chain(host, "hostports", family) if f"dport {port} dnat" in rule]
    return [rule.partition(" dnat to ")[2].partition(" comment ")[0] for rule in rules]
