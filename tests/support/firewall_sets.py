"""Reads the elements and rules that firewall's verbs create in nftables."""

from __future__ import annotations

import json
from typing import Any

from tests.support.namespaces import Namespace

_TABLES = ("inet podwire_firewall", "bridge podwire_firewall")


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
