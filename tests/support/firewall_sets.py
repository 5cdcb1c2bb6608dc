"""Runs firewall's verbs on a temporary host, and reads the elements and rules that they create in nftables.

Pods have no interfaces: the plugin reads bridge, port and addresses from prevResult.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.bare_plugin import BarePlugin
from tests.support.namespaces import Namespace

_TABLES = ("inet podwire_firewall", "bridge podwire_firewall")


def bridge_result(*addresses: str, bridge: str = "cni0", port: str = "veth2", ifname: str = "eth0") -> dict[str, Any]:
    """Returns a result of `bridge` without its version: bridge, port (none if ""), the pod's interface, addresses."""
    ports = [{"name": port, "mac": "02:00:00:00:00:02"}] if port else []
    return {
        "interfaces": [
            {"name": bridge, "mac": "02:00:00:00:00:01"},
            *ports,
            {"name": ifname, "mac": "02:00:00:00:00:03", "sandbox": "/run/netns/x"},
        ],
        "ips": [{"interface": 1 + len(ports), "address": address} for address in addresses],
    }


class Firewall(BarePlugin):
    """A network's firewall on one host, for one pod."""

    TYPE = "firewall"

    def pod(self, *addresses: str, **ends: str) -> Firewall:
        """Returns a copy for a pod with these addresses; `ends` are arguments of bridge_result()."""
        prev_result = {"cniVersion": self.config["cniVersion"], **bridge_result(*addresses, **ends)}
        return self.having(prevResult=prev_result)

    def add(self, container_id: str = "cid", **how: Any) -> str:
        """Runs ADD, which must succeed and return prevResult; returns its stderr."""
        outcome = self.run("ADD", container_id, **how)
        expected = {"dns": {}, **self.config["prevResult"]}
        assert {"dns": {}, "ips": [], **outcome.result()} == expected
        return outcome.stderr

    def check_error(self, container_id: str = "cid") -> str:
        """Runs CHECK, which must fail; returns its message."""
        error = self.run("CHECK", container_id).error()
        assert error["code"] == 999
        return str(error["msg"])

    def delete(self, container_id: str = "cid", **how: Any) -> None:
        """Runs DEL without prevResult, which must succeed."""
        self.without_result().run("DEL", container_id, **how).assert_silent()


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
    return [
        line.strip()
        for line in lines
        if line.startswith("\t\t") and "type filter" not in line and "comment" not in line
    ]
