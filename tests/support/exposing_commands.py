"""Finds commands in printed text that open the node: route_localnet, forwarding, or accept rules for an interface.

One rule: a command that is not clearly safe counts; the caller passes podwire's interfaces and subnets.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

_SETTING = re.compile(r"net[./]ipv[46][./]conf[./](?P<name>[^\s=]+?)[./](?P<what>route_localnet|forwarding)\s*=\s*[12]")
_ACCEPT = re.compile(
    r"(?:ip6?tables(?:-\w+)?[ ][^;&|`\n]*?-j[ ]ACCEPT|nft[ ][^;&|`\n]*?\baccept\b"
    r"|firewall-cmd[ ][^;&|`\n]*--add-[^;&|`\n]*)"
)
_INTERFACES = re.compile(r"(?:-i|-o|--in-interface|--out-interface|[io]ifname|[io]if)\s+'?\"?([^\s'\"]+)")
_SUBNETS = re.compile(r"(?:-s|-d|saddr|daddr)\s+([0-9a-fA-F.:]+/\d+)")


def commands(text: str, interfaces: Collection[str], subnets: Collection[str] = ()) -> Iterator[str]:
    """Yields the commands that open an interface outside `interfaces`, or accept traffic outside `subnets`.

    Forwarding for `all` does not count: pods need it, and it is a setting of the whole node.
    """
    for match in _SETTING.finditer(text):
        name = match["name"].strip("'\"")
        if name not in interfaces and (name, match["what"]) != ("all", "forwarding"):
            yield match[0]
    for match in _ACCEPT.finditer(text):
        named, matched = _INTERFACES.findall(match[0]), _SUBNETS.findall(match[0])
        if not (named or matched) or not set(named) <= set(interfaces) or not set(matched) <= set(subnets):
            yield match[0]
