"""Tables of the policy filter for tests, and the packet filter as `nft` lists it, to compare.

One rule: a table is a value, as the plan computes it.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from agent.policy.filter_table import AcceptRule, ChainContent, Element, FilterTable, Verdict
from attachment.policy.table import ChainSubject
from cni.address import Address
from tests.support.namespaces import Namespace
from tests.support.policy_packets import NODE_ADDRESSES, PODS

NODE = dict(zip((4, 6), NODE_ADDRESSES, strict=True))
SERVICE = {4: ip_address("10.96.0.1"), 6: ip_address("fd00:96::1")}

ADDRESSES = {
    version: [ip_address(f"{prefix}{n}") for n in range(1, 20)] for version, prefix in ((4, "10.0.0."), (6, "fd::"))
}
A, B = ADDRESSES[4][:2]
A6, B6 = ADDRESSES[6][:2]
SUBJECT = ChainSubject("ingress", "shop")
_EGRESS_RULES = (
    AcceptRule(4, protocol="tcp", pair_set="p4-1"),
    AcceptRule(6, protocol="udp", pair_set="p6-1"),
    AcceptRule(4, "s4-1", "tcp"),
)
_INGRESS_RULES = (
    AcceptRule(4, "s4-1"),
    AcceptRule(6, "s6-1", "tcp", (80, 80)),
    AcceptRule(4, "b4-1", "udp", (80, 90)),
    AcceptRule(0, "", "sctp", None, "t-1"),
    AcceptRule(6, "b6-1"),
    AcceptRule(protocol="tcp"),
    AcceptRule(),
)
_BLOCKS = ("0.0.0.0", "9.255.255.255"), ("11.0.0.0", "255.255.255.255")
SAMPLE = FilterTable(
    {A: Verdict("e-1", "i-1"), A6: Verdict("", "i-1"), B: Verdict("e-1", "")},
    {
        "e-1": ChainContent(ChainSubject("egress", "shop", ("default-deny",)), _EGRESS_RULES),
        "i-1": ChainContent(ChainSubject("ingress", "shop", ("web",)), _INGRESS_RULES),
    },
    {
        "p4-1": frozenset({(B, 80), (ADDRESSES[4][2], 65535)}),
        "p6-1": frozenset({(B6, 53)}),
        "s4-1": frozenset(ADDRESSES[4][3:5]),
        "s6-1": frozenset(ADDRESSES[6][3:5]),
        "b4-1": frozenset((ip_address(first), ip_address(last)) for first, last in _BLOCKS),
        "b6-1": frozenset({(ip_address("::"), ip_address("fcff::"))}),
        "t-1": frozenset({(1, 5), (80, 80), (65000, 65535)}),
    },
)


def pod(number: int, version: int = 4) -> Address:
    """Returns the address of a pod, from 1 on; pods 1 to 7 are on the bridge, the others are routed."""
    return PODS[number - 1][version == 6]


def table_of(
    subjects: Sequence[Address],
    rules: Sequence[AcceptRule] = (),
    sets: Mapping[str, Collection[Element]] | None = None,
    egress: bool = True,
    ingress: bool = True,
) -> FilterTable:
    """Returns a table that isolates pods, and accepts what `rules` say in each of the directions."""
    chains = {"e-1": egress, "i-1": ingress}
    verdict = Verdict("e-1" if egress else "", "i-1" if ingress else "")
    contents = {name: ChainContent(SUBJECT, tuple(rules)) for name, is_used in chains.items() if is_used}
    named = {name for rule in rules for name in (rule.peer_set, rule.port_set, rule.pair_set) if name}
    return FilterTable(
        dict.fromkeys(subjects, verdict), contents, {name: frozenset((sets or {})[name]) for name in named}
    )


def deny(*subjects: Address, egress: bool = True, ingress: bool = True) -> FilterTable:
    """Returns a table that denies all connections of pods."""
    return table_of(subjects, egress=egress, ingress=ingress)


# As kube-proxy's rules: the Service is DNATed to a pod; a pod that reaches itself gets the node's address as source.
_PROXY = """
table inet proxy {{
    chain services {{
        {ip} daddr {service} udp dport 1 dnat {ip} to {one}
        {ip} daddr {service} udp dport 2 dnat {ip} to {two}
        {ip} daddr {node} udp dport 30001 dnat {ip} to {one}
    }}
    chain prerouting {{ type nat hook prerouting priority -100; jump services; }}
    chain output {{ type nat hook output priority -100; jump services; }}
    chain postrouting {{
        type nat hook postrouting priority 100;
        {ip} saddr {one} {ip} daddr {one} masquerade
        ct status dnat {ip} saddr != {network} masquerade
    }}
}}
"""


def proxy(version: int, one: Address, two: Address) -> str:
    """Returns the rules of Services of two pods."""
    network = {4: "10.0.0.0/24", 6: "fd00:1::/64"}[version]
    ip = {4: "ip", 6: "ip6"}[version]
    return _PROXY.format(ip=ip, service=SERVICE[version], one=one, two=two, node=NODE[version], network=network)


def delete_rule(host: Namespace, chain: str, text: str) -> None:
    """Deletes the one rule of a base chain that contains a text."""
    lines = host.run("nft", "-a", "list", "chain", "inet", "podwire_policy", chain).splitlines()
    (rule,) = [line for line in lines if text in line]
    host.run("nft", "delete", "rule", "inet", "podwire_policy", chain, "handle", rule.rpartition(" ")[2])


def content(host: Namespace) -> dict[tuple[str, str], Any]:
    """Returns the table's objects as `nft` lists them, with elements sorted, and rules in the order of each chain."""
    listing = json.loads(host.run("nft", "-j", "list", "ruleset"))["nftables"]
    objects: dict[tuple[str, str], Any] = {}
    for item in listing:
        ((kind, item_content),) = item.items()
        item_content.pop("handle", None)
        if kind == "rule":
            objects.setdefault(("rules", item_content["chain"]), []).append(json.dumps(item_content["expr"]))
        elif kind != "metainfo":
            item_content["elem"] = sorted(map(json.dumps, item_content.get("elem", ())))
            objects[kind, item_content["name"]] = item_content
    return objects
