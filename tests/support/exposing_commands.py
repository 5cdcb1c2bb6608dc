"""Commands in printed text that open the node: route_localnet, forwarding or an accept rule for an interface.

One rule: what cannot be read as safe counts as opening; the caller says which interfaces and subnets are podwire's.
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
    """Yields the commands that open an interface that is none of `interfaces`, or accept for other `subnets`.

    Forwarding for `all` is what pods need, and the node's as a whole.
    """
    for found in _SETTING.finditer(text):
        name = found["name"].strip("'\"")
        if name not in interfaces and (name, found["what"]) != ("all", "forwarding"):
            yield found[0]
    for found in _ACCEPT.finditer(text):
        named, matched = _INTERFACES.findall(found[0]), _SUBNETS.findall(found[0])
        if not (named or matched) or not set(named) <= set(interfaces) or not set(matched) <= set(subnets):
            yield found[0]
