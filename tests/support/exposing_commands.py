"""Finds commands in printed text that open the node, or that undo what others decided.

The first are route_localnet, forwarding, and accept rules for an interface or for the node itself; the second delete
rules of others, or change a policy.

One rule: a command that is not clearly safe counts; the caller passes podwire's interfaces and subnets.
"""

import re
from collections.abc import Collection, Iterator

_SETTING = re.compile(r"net[./]ipv[46][./]conf[./](?P<name>[^\s=]+?)[./](?P<what>route_localnet|forwarding)\s*=\s*[12]")
_ACCEPT = re.compile(
    r"(?:ip6?tables(?:-\w+)?[ ][^;&|`\n]*?-j[ ]ACCEPT|nft[ ][^;&|`\n]*?\baccept\b"
    r"|firewall-cmd[ ][^;&|`\n]*--add-[^;&|`\n]*)"
)
_INTERFACES = re.compile(r"(?:-i|-o|--in-interface|--out-interface|[io]ifname|[io]if)\s+'?\"?([^\s'\"]+)")
_DELETION = re.compile(
    r"(?:(?:ip6?|eb|arp)tables(?:-\w+)?[ ][^;&|`\n]*?-[DFXPRZ][ ]|nft[ ](?:delete|flush|destroy|replace)[ ]"
    r"|nft[ ][^;&|`\n]*policy[ ]accept|ipset[ ](?:del|destroy|flush)[ ]|tc[ ]filter[ ]del[ ]"
    r"|firewall-cmd[ ]|ufw[ ](?:disable|reset|delete|allow|route)[ ])[^;&|`\n]*"
)
_NODE = re.compile(r"(?:-[AI] INPUT|hook input|[Ii]nput)")
_LIMITED = re.compile(r"ESTABLISHED|established|icmpv6")
_SUBNETS = re.compile(r"(?:-s|-d|saddr|daddr)\s+([0-9a-fA-F.:]+/\d+)")


def commands(text: str, interfaces: Collection[str], subnets: Collection[str] = ()) -> Iterator[str]:
    """Yields commands that open an interface outside `interfaces` (not `all`), or accept traffic outside `subnets`."""
    for match in _SETTING.finditer(text):
        name = match["name"].strip("'\"")
        if name not in interfaces and (name, match["what"]) != ("all", "forwarding"):
            yield match[0]
    for match in _ACCEPT.finditer(text):
        named, matched = _INTERFACES.findall(match[0]), _SUBNETS.findall(match[0])
        is_pods = set(named) & set(interfaces) or set(matched) & set(subnets)
        is_node_open = _NODE.search(match[0]) and not _LIMITED.search(match[0])
        if not is_pods or not set(matched) <= set(subnets) or is_node_open:
            yield match[0]


def deletions(text: str) -> Iterator[str]:
    """Yields the commands that delete rules of others, change a policy, or leave the decision to another program."""
    yield from (match[0] for match in _DELETION.finditer(text))
