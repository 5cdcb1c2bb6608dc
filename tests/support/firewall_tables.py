"""The firewall on a throwaway host: its verbs for pods that are only a name and an address, and what they made.

One rule: a pod here needs no interface, as firewall works on what an earlier plugin says that it made.
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
    """A network's firewall on one host, and the pod that it is asked for.

    `bin_dir` is the plugin's directory, ours unless given, `tools` that of iptables' programs, the machine's unless
    given.
    """

    host: Namespace
    config: Mapping[str, Any]
    bin_dir: Path | None = None
    tools: Path | None = None

    def having(self, **keys: Any) -> Firewall:
        """Returns the same with other top-level keys; None leaves a key out."""
        config = {**self.config, **keys}
        return replace(self, config={key: value for key, value in config.items() if value is not None})

    def of(self, *addresses: str, bridge: str = "cni0", sandbox: str = "") -> Firewall:
        """Returns the same for a pod with addresses, whose first interface is `bridge`, of the host unless said."""
        result = prev_result(self.config["cniVersion"], *addresses, host_interfaces=["veth0"])
        first = {"name": bridge, "mac": "02:00:00:00:00:03", **({"sandbox": sandbox} if sandbox else {})}
        result["interfaces"].insert(0, first)
        for ip in result["ips"]:
            ip["interface"] = 1
        return self.having(prevResult=result)

    def forgotten(self) -> Firewall:
        """Returns the same as a runtime asks that knows nothing of the pod but its name."""
        return self.having(prevResult=None)

    def run(self, command: str, container_id: str = "cid", **how: Any) -> Outcome:
        """Runs one verb to its end; `how` as start_plugin takes it."""
        env = xtables.path(self.tools) if self.tools else None
        own: dict[str, Any] = {"host": self.host, "bin_dir": self.bin_dir, "env": env, "netns": "/run/netns/x"}
        return run_plugin("firewall", command, self.config, **{**own, "container_id": container_id, **how})

    def add(self, container_id: str = "cid", **how: Any) -> dict[str, Any]:
        """Lets a container through and returns the result; a failure fails the test."""
        return self.run("ADD", container_id, **how).result()

    def check(self, container_id: str = "cid", **how: Any) -> None:
        """Checks it; a failure fails the test."""
        self.run("CHECK", container_id, **how).assert_silent()

    def delete(self, container_id: str = "cid", **how: Any) -> Outcome:
        """Takes it away; a failure fails the test."""
        outcome = self.run("DEL", container_id, **how)
        outcome.assert_silent()
        return outcome

    def collect(self, *valid: tuple[str, str]) -> Outcome:
        """Runs GC with the container IDs and interfaces that live; a failure fails the test."""
        attachments = [{"containerID": container_id, "ifname": ifname} for container_id, ifname in valid]
        keys: dict[str, Any] = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": attachments}
        outcome = self.forgotten().having(**keys).run("GC")
        outcome.assert_silent()
        return outcome

    def with_cache(self, directory: Path) -> Firewall:
        """Returns the same with a plugin that sees `<directory>/results`, now empty, as libcni's cache."""
        return replace(self, bin_dir=libcni.install_with_cache(directory, "firewall", bin_dir=self.bin_dir))

    def rules(self) -> dict[str, list[str]]:
        """Returns table filter of each family as iptables-save prints it, without the records."""
        found = xtables.saved(self.host, self._tools(), "filter")
        return {tool: [line for line in lines if RECORDS not in line] for tool, lines in found.items()}

    def records(self, tool: str = "iptables") -> list[str]:
        """Returns the records, without what all have in common."""
        lines = xtables.saved(self.host, self._tools(), "filter")[tool]
        return [line.removeprefix(f"-A {RECORDS} ") for line in lines if line.startswith(f"-A {RECORDS} ")]

    def everything(self) -> dict[str, list[str]]:
        """Returns table filter of each family with the records."""
        return xtables.saved(self.host, self._tools(), "filter")

    def load(self, *lines: str, tool: str = "iptables") -> None:
        """Applies lines to table filter; a failure fails the test."""
        xtables.load(self.host, self._tools(), *lines, tool=tool, table="filter")

    def passing(self, tool: str = "iptables") -> list[str]:
        """Returns the rules that let addresses through."""
        rules = self.rules()[tool]
        return [line.removeprefix("-A CNI-FORWARD ") for line in rules if line.endswith(" ACCEPT")]

    def _tools(self) -> Path:
        assert self.tools, "a test with iptables says which"
        return self.tools


def passing(*addresses: str) -> list[str]:
    """Returns the rules that let addresses through, each without its chain."""
    states = "-m conntrack --ctstate RELATED,ESTABLISHED"
    bits = [f"{address}/{128 if ':' in address else 32}" for address in addresses]
    return [line for own in bits for line in (f"-d {own} {states} -j ACCEPT", f"-s {own} -j ACCEPT")]
