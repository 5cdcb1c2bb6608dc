"""Runs firewall's verbs on a temporary host, and reads the rules that they create in iptables.

Pods have no interfaces: the plugin reads bridge, port and addresses from prevResult.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support import libcni, xtables
from tests.support.invocation import Outcome, feed, finish, run_plugin, start_plugin
from tests.support.namespaces import Namespace

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

    def pod(self, *addresses: str, bridge: str = "cni0", port: str = "veth2", sandbox: str = "") -> Firewall:
        """Returns a copy for a pod with these addresses; its first interface is `bridge`, of the host or `sandbox`.

        The next one is the pod's port of the bridge, none if "".
        """
        ports = [{"name": port, "mac": "02:00:00:00:00:02"}] if port else []
        interfaces = [
            {"name": bridge, "mac": "02:00:00:00:00:01", **({"sandbox": sandbox} if sandbox else {})},
            *ports,
            {"name": "eth0", "mac": "02:00:00:00:00:03", "sandbox": "/run/netns/x"},
        ]
        ips = [{"interface": 1 + len(ports), "address": address} for address in addresses]
        return self.having(prevResult={"cniVersion": self.config["cniVersion"], "interfaces": interfaces, "ips": ips})

    def without_prev_result(self) -> Firewall:
        """Returns a copy without prevResult."""
        return self.having(prevResult=None)

    def run(self, command: str, container_id: str = "cid", **how: Any) -> Outcome:
        """Runs one verb; `how` are arguments of start_plugin()."""
        return run_plugin("firewall", command, self.config, **{**self._arguments(container_id), **how})

    def add(self, container_id: str = "cid", **how: Any) -> dict[str, Any]:
        """Runs ADD, which must succeed and return prevResult; returns the result."""
        result = self.run("ADD", container_id, **how).result()
        assert {"dns": {}, "ips": [], **result} == {"dns": {}, **self.config["prevResult"]}
        return result

    def check(self, container_id: str = "cid", **how: Any) -> None:
        """Runs CHECK, which must succeed."""
        self.run("CHECK", container_id, **how).assert_silent()

    def check_error(self, container_id: str = "cid") -> str:
        """Runs CHECK, which must fail; returns its message."""
        error = self.run("CHECK", container_id).error()
        assert error["code"] == 999
        return str(error["msg"])

    def delete(self, container_id: str = "cid", **how: Any) -> None:
        """Runs DEL, which must succeed."""
        self.run("DEL", container_id, **how).assert_silent()

    def gc(self, *valid: str, ifname: str = "eth0") -> str:
        """Runs GC with the valid containers, which must succeed; returns its stderr."""
        attachments = [{"containerID": container_id, "ifname": ifname} for container_id in valid]
        keys: dict[str, Any] = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": attachments}
        outcome = self.without_prev_result().having(**keys).run("GC")
        outcome.assert_silent()
        return outcome.stderr

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

    def _arguments(self, container_id: str) -> dict[str, Any]:
        env = xtables.path(self.tools) if self.tools else None
        where = {"host": self.host, "bin_dir": self.bin_dir, "env": env, "netns": "/run/netns/x"}
        return {**where, "container_id": container_id}

    def _tools(self) -> Path:
        assert self.tools, "this method needs `tools`"
        return self.tools


def run_in_parallel(*calls: tuple[str, str, Firewall]) -> list[Outcome]:
    """Runs verbs (command, container ID, firewall) in parallel; returns the outcomes in that order."""
    processes = [
        start_plugin("firewall", command, **firewall._arguments(container_id))
        for command, container_id, firewall in calls
    ]
    for process, (_, _, firewall) in zip(processes, calls, strict=True):
        feed(process, firewall.config)
    return [finish(process) for process in processes]


def expected_accept_rules(*addresses: str) -> list[str]:
    """Returns the rules that accept packets of these addresses, without their chain."""
    states = "-m conntrack --ctstate RELATED,ESTABLISHED"
    networks = [f"{address}/{128 if ':' in address else 32}" for address in addresses]
    return [rule for network in networks for rule in (f"-d {network} {states} -j ACCEPT", f"-s {network} -j ACCEPT")]
