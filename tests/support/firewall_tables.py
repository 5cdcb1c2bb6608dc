"""Runs firewall's verbs on a temporary host, and reads the rules that they create in iptables.

Pods have no interfaces: the plugin reads bridge and addresses from prevResult.
"""

from __future__ import annotations

from typing import Any

from tests.support.bare_plugin import BarePlugin
from tests.support.invocation import Outcome
from tests.support.results import prev_result

RECORDS = "CNI-FORWARD-OWNERS"


class Firewall(BarePlugin):
    """A network's firewall on one host, for one pod."""

    TYPE = "firewall"
    TABLE = "filter"

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

    def add(self, container_id: str = "cid", **how: Any) -> dict[str, Any]:
        """Runs ADD, which must succeed; returns its result."""
        return self.run("ADD", container_id, **how).result()

    def delete(self, container_id: str = "cid", **how: Any) -> Outcome:
        """Runs DEL, which must succeed."""
        outcome = self.run("DEL", container_id, **how)
        outcome.assert_silent()
        return outcome

    def rules(self) -> dict[str, list[str]]:
        """Returns table filter of each family as iptables-save prints it, without the records."""
        return {tool: [line for line in lines if RECORDS not in line] for tool, lines in self.saved().items()}

    def records(self, tool: str = "iptables") -> list[str]:
        """Returns the records without their chain."""
        lines = self.saved()[tool]
        return [line.removeprefix(f"-A {RECORDS} ") for line in lines if line.startswith(f"-A {RECORDS} ")]

    def everything(self) -> dict[str, list[str]]:
        """Returns table filter of each family as iptables-save prints it, with the records."""
        return self.saved()

    def accept_rules(self, tool: str = "iptables") -> list[str]:
        """Returns the rules that accept packets of addresses, without their chain."""
        rules = self.rules()[tool]
        return [line.removeprefix("-A CNI-FORWARD ") for line in rules if line.endswith(" ACCEPT")]


def expected_accept_rules(*addresses: str) -> list[str]:
    """Returns the rules that accept packets of these addresses, without their chain."""
    states = "-m conntrack --ctstate RELATED,ESTABLISHED"
    networks = [f"{address}/{128 if ':' in address else 32}" for address in addresses]
    return [rule for network in networks for rule in (f"-d {network} {states} -j ACCEPT", f"-s {network} -j ACCEPT")]
