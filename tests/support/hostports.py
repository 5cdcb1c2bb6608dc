"""Host ports on a throwaway host: portmap's verbs for pods that are only a name and an address, and what they made.

One rule: a pod here needs no interface, as portmap works on what an earlier plugin says that it made; where packets
pass, tests/support/publishing.py makes the pods.
"""

from __future__ import annotations

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
OTHER = "10.22.0.3/16"  # another pod's


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


@dataclass(frozen=True)
class HostPorts:
    """A network's portmap on one host, and what is asked of it for one pod.

    `bin_dir` is the plugin's directory, ours unless given, `tools` that of iptables' programs, the machine's unless
    given, `netns` the pod's namespace.
    """

    host: Namespace
    config: Mapping[str, Any]
    bin_dir: Path | None = None
    tools: Path | None = None
    netns: Namespace | str = "/run/netns/x"

    def having(self, *mappings: str, addresses: Sequence[str] = (), ifname: str = "eth0", **keys: Any) -> HostPorts:
        """Returns the same with other mappings, addresses of the pod, or top-level keys; None leaves a key out."""
        config = {**self.config, **keys}
        if mappings:
            config["runtimeConfig"] = {"portMappings": ports(*mappings)}
        if addresses:
            config["prevResult"] = prev_result(config["cniVersion"], *addresses, ifname=ifname)
        return replace(self, config={key: value for key, value in config.items() if value is not None})

    def forgotten(self) -> HostPorts:
        """Returns the same as a runtime asks that knows nothing of the pod but its name."""
        return self.having(prevResult=None, runtimeConfig=None)

    def run(
        self,
        command: str,
        container_id: str = "cid",
        *mappings: str,
        addresses: Sequence[str] = (),
        ifname: str = "eth0",
        **how: Any,
    ) -> Outcome:
        """Runs one verb to its end; mappings and addresses as `having`, `how` as start_plugin takes it."""
        config = self.having(*mappings, addresses=addresses, ifname=ifname).config
        return run_plugin("portmap", command, config, **self._how(container_id, ifname=ifname, **how))

    def add(self, container_id: str = "cid", *mappings: str, **how: Any) -> dict[str, Any]:
        """Makes the host ports of a container and returns the result; a failure fails the test."""
        return self.run("ADD", container_id, *mappings, **how).result()

    def check(self, container_id: str = "cid", *mappings: str, **how: Any) -> None:
        """Checks them; a failure fails the test."""
        self.run("CHECK", container_id, *mappings, **how).assert_silent()

    def delete(self, container_id: str = "cid", *mappings: str, **how: Any) -> None:
        """Removes them; a failure fails the test."""
        self.run("DEL", container_id, *mappings, **how).assert_silent()

    def gc(self, *valid: str, ifname: str = "eth0", **how: Any) -> str:
        """Collects what belongs to none of the `valid` containers' interfaces; returns what is said on stderr."""
        attachments = [{"containerID": container_id, "ifname": ifname} for container_id in valid]
        keys = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": attachments}
        outcome = self.forgotten().having(**keys).run("GC", **how)
        outcome.assert_silent()
        return outcome.stderr

    def with_cache(self, directory: Path) -> HostPorts:
        """Returns the same with a plugin that sees `<directory>/results`, now empty, as libcni's cache."""
        return replace(self, bin_dir=libcni.install_with_cache(directory, "portmap", bin_dir=self.bin_dir))

    def remember(self, **lives: bool) -> None:
        """Writes the containers' entries in the cache (`with_cache`), with a namespace that is there or is gone."""
        assert self.bin_dir
        for container_id, alive in lives.items():
            libcni.write_entry(
                self.bin_dir,
                self.config["name"],
                container_id,
                netns="" if alive else libcni.MISSING_NETNS,
                result=self.config["prevResult"],
            )

    def rules(self) -> dict[str, list[str]]:
        """Returns table nat of each family, as iptables-save prints it."""
        return xtables.saved(self.host, self._tools())

    def load(self, *lines: str, tool: str = "iptables") -> None:
        """Applies lines to table nat; a failure fails the test."""
        xtables.load(self.host, self._tools(), *lines, tool=tool)

    def _tools(self) -> Path:
        assert self.tools, "a test with iptables says which"
        return self.tools

    def _how(self, container_id: str, **how: Any) -> dict[str, Any]:
        env = xtables.path(self.tools) if self.tools else None
        own = {"host": self.host, "netns": self.netns, "bin_dir": self.bin_dir, "env": env}
        return {**own, "container_id": container_id, **how}


def at_once(*calls: tuple[str, str, HostPorts]) -> list[Outcome]:
    """Runs verbs at once: command, container and what is asked for it; returns the outcomes in that order."""
    started = [start_plugin("portmap", command, **pod._how(name)) for command, name, pod in calls]
    for process, (_, _, pod) in zip(started, calls, strict=True):
        feed(process, pod.config)
    return [finish(process) for process in started]


def chain(host: Namespace, name: str, family: str = "ip") -> list[str]:
    """Returns the rules of a chain of table cni_hostport as `nft` prints them; none when there is no such chain."""
    text = host.run("nft", "list", "chain", family, "cni_hostport", name, check=False)
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("table ", "chain ", "type ", "comment ", "}"))]


def leads_to(host: Namespace, port: int = 8080, family: str = "ip") -> list[str]:
    """Returns where the rules of a port lead to, in order."""
    rules = [rule for rule in chain(host, "hostports", family) if f"dport {port} dnat" in rule]
    return [rule.partition(" dnat to ")[2].partition(" comment ")[0] for rule in rules]
