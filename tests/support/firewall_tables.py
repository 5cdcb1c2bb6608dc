"""Runs firewall's verbs on a temporary host, and reads the rules that they create in iptables.

Pods have no interfaces: the plugin reads bridge and addresses from prevResult.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support import libcni, xtables
from tests.support.invocation import Outcome, run_plugin
from tests.support.namespaces import Namespace
from tests.support.results import prev_result

IPV4, IPV6 = "10.22.0.2/16", "fd00:22::2/64"
DUAL = (IPV4, IPV6)
RECORDS = "CNI-FORWARD-OWNERS"


@dataclass(frozen=True)
class Firewall:
    """A network's firewall on one host, for one pod.

    `bin_dir` is the directory of the plugin, default podwire's; `tools` that of iptables' programs, default the host's.
    """

    host: Namespace
    config: Mapping[str, Any]
    bin_dir: Path | None = None
    tools: Path | None = None

    def having(self, **keys: Any) -> Firewall:
        """Returns a copy with other top-level keys; None removes a key."""
        config = {**self.config, **keys}
        return replace(self, config={key: value for key, value in config.items() if value is not None})

    def pod(self, *addresses: str, bridge: str = "cni0", sandbox: str = "") -> Firewall:
        """Returns a copy for a pod with these addresses; its first interface is `bridge`, of the host or `sandbox`."""
        result = prev_result(self.config["cniVersion"], *addresses, host_interfaces=["veth0"])
        first = {"name": bridge, "mac": "02:00:00:00:00:03", **({"sandbox": sandbox} if sandbox else {})}
        result["interfaces"].insert(0, first)
        for ip in result["ips"]:
            ip["interface"] = 1
        return self.having(prevResult=result)

    def without_prev_result(self) -> Firewall:
        """Returns a copy without prevResult."""
        return self.having(prevResult=None)

    def run(self, command: str, container_id: str = "cid", **how: Any) -> Outcome:
        """Runs one verb; `how` are arguments of start_plugin()."""
        env = xtables.path(self.tools) if self.tools else None
        defaults: dict[str, Any] = {"host": self.host, "bin_dir": self.bin_dir, "env": env, "netns": "/run/netns/x"}
        return run_plugin("firewall", command, self.config, **{**defaults, "container_id": container_id, **how})

    def add(self, container_id: str = "cid", **how: Any) -> dict[str, Any]:
        """Runs ADD, which must succeed; returns its result."""
        return self.run("ADD", container_id, **how).result()

    def check(self, container_id: str = "cid", **how: Any) -> None:
        """Runs CHECK, which must succeed."""
        self.run("CHECK", container_id, **how).assert_silent()

    def delete(self, container_id: str = "cid", **how: Any) -> Outcome:
        """Runs DEL, which must succeed."""
        outcome = self.run("DEL", container_id, **how)
        outcome.assert_silent()
        return outcome

    def collect(self, *valid: tuple[str, str]) -> Outcome:
        """Runs GC with the valid container IDs and interfaces, which must succeed."""
        attachments = [{"containerID": container_id, "ifname": ifname} for container_id, ifname in valid]
        keys: dict[str, Any] = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": attachments}
        outcome = self.without_prev_result().having(**keys).run("GC")
        outcome.assert_silent()
        return outcome

    def with_cache(self, directory: Path) -> Firewall:
        """Returns a copy whose plugin uses `<directory>/results`, now empty, as libcni's cache."""
        return replace(self, bin_dir=libcni.install_with_cache(directory, "firewall", bin_dir=self.bin_dir))

    def rules(self) -> dict[str, list[str]]:
        """Returns table filter of each family as iptables-save prints it, without the records."""
        saved = xtables.saved(self.host, self._tools(), "filter")
        return {tool: [line for line in lines if RECORDS not in line] for tool, lines in saved.items()}

    def records(self, tool: str = "iptables") -> list[str]:
        """Returns the records without their chain."""
        lines = xtables.saved(self.host, self._tools(), "filter")[tool]
        return [line.removeprefix(f"-A {RECORDS} ") for line in lines if line.startswith(f"-A {RECORDS} ")]

    def everything(self) -> dict[str, list[str]]:
        """Returns table filter of each family as iptables-save prints it, with the records."""
        return xtables.saved(self.host, self._tools(), "filter")

    def load(self, *lines: str, tool: str = "iptables") -> None:
        """Applies lines to table filter, which must succeed."""
        xtables.load(self.host, self._tools(), *lines, tool=tool, table="filter")

    def accept_rules(self, tool: str = "iptables") -> list[str]:
        """Returns the rules that accept packets of addresses, without their chain."""
        rules = self.rules()[tool]
        return [line.removeprefix("-A CNI-FORWARD ") for line in rules if line.endswith(" ACCEPT")]

    def _tools(self) -> Path:
        assert self.tools, "this method needs `tools`"
        return self.tools


def expected_accept_rules(*addresses: str) -> list[str]:
    """Returns the rules that accept packets of these addresses, without their chain."""
    states = "-m conntrack --ctstate RELATED,ESTABLISHED"
    networks = [f"{address}/{128 if ':' in address else 32}" for address in addresses]
    return [rule for network in networks for rule in (f"-d {network} {states} -j ACCEPT", f"-s {network} -j ACCEPT")]
