"""Runs firewall's verbs on a temporary host, and reads the rules and elements that they create.

Pods have no interfaces: the plugin reads bridge, port and addresses from prevResult.
"""

import json
import re
from typing import Any, Self

from tests.support.bare_plugin import BarePlugin
from tests.support.namespaces import Namespace

RECORDS = "CNI-FORWARD-OWNERS"
_TABLES = ("inet podwire_firewall", "bridge podwire_firewall")


class Firewall(BarePlugin):
    """A network's firewall on one host, for one pod."""

    TYPE = "firewall"
    TABLE = "filter"

    def pod(self, *addresses: str, bridge: str = "cni0", port: str = "veth2", sandbox: str = "") -> Self:
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

    def add(self, container_id: str = "cid", **how: Any) -> dict[str, Any]:
        """Runs ADD, which must succeed and return prevResult; returns the result."""
        result = self.run("ADD", container_id, **how).result()
        assert {"dns": {}, "ips": [], **result} == {"dns": {}, **self.config["prevResult"]}
        return result

    def check_error(self, container_id: str = "cid") -> str:
        """Runs CHECK, which must fail; returns its message."""
        error = self.run("CHECK", container_id).error()
        assert error["code"] == 999
        return str(error["msg"])

    def delete(self, container_id: str = "cid", **how: Any) -> None:
        """Runs DEL, which must succeed."""
        self.run("DEL", container_id, **how).assert_silent()

    def rules(self) -> dict[str, list[str]]:
        """Returns table filter of each family as iptables-save prints it, without the records."""
        return {tool: [line for line in lines if RECORDS not in line] for tool, lines in self.saved().items()}

    def records(self, tool: str = "iptables") -> list[str]:
        """Returns the records without their chain."""
        lines = self.saved()[tool]
        return [line.removeprefix(f"-A {RECORDS} ") for line in lines if line.startswith(f"-A {RECORDS} ")]

    def accept_rules(self, tool: str = "iptables") -> list[str]:
        """Returns the rules that accept packets of addresses, without their chain."""
        rules = self.rules()[tool]
        return [line.removeprefix("-A CNI-FORWARD ") for line in rules if line.endswith(" ACCEPT")]


def expected_accept_rules(*addresses: str) -> list[str]:
    """Returns the rules that accept packets of these addresses, without their chain."""
    states = "-m conntrack --ctstate RELATED,ESTABLISHED"
    networks = [f"{address}/{128 if ':' in address else 32}" for address in addresses]
    return [rule for network in networks for rule in (f"-d {network} {states} -j ACCEPT", f"-s {network} -j ACCEPT")]


def list_elements(host: Namespace, *, comments: bool = False) -> dict[str, list[str]]:
    """Lists the elements of each nonempty set of the plugin, as `nft` renders them, optionally with comments."""
    elements_of: dict[str, list[str]] = {}
    for table in _TABLES:
        text = host.run("nft", "-j", "list", "table", *table.split(), check=False)
        for item in json.loads(text)["nftables"] if text else ():
            elements = item.get("set", {}).get("elem", ())
            if elements:
                elements_of[item["set"]["name"]] = sorted(_render(element, comments=comments) for element in elements)
    return elements_of


def _render(element: Any, *, comments: bool) -> str:
    item = element.get("elem", {"val": element}) if isinstance(element, dict) else {"val": element}
    value = item["val"]
    text = " . ".join(value["concat"]) if isinstance(value, dict) else value
    return f"{text}: {item['comment']}" if comments and "comment" in item else text


def list_rules(host: Namespace, chain: str, family: str = "inet") -> list[str]:
    """Lists the rules of one of the plugin's chains, as `nft` prints them."""
    lines = host.run("nft", "list", "chain", family, "podwire_firewall", chain).splitlines()
    return [line.strip() for line in lines if line.startswith("\t\t") and not re.search("type filter|comment", line)]
