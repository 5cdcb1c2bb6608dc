"""The nftables objects of the policy filter: its base chains, and the bytes of the rules and elements of a FilterTable.

This module is pure. The base chains never change. They judge a connection's first packet after DNAT and before SNAT:

    chain egress  { type filter hook forward priority -10; ... ip saddr vmap @egress4; ip6 saddr vmap @egress6 }
    chain ingress { type filter hook forward priority -9; ... ip daddr vmap @ingress4; ip6 daddr vmap @ingress6 }
    chain output-egress  { type filter hook output priority -10; ... }
    chain output-ingress { type filter hook output priority -9; fib saddr type local accept; ... }

An accept ends the base chain of its direction only, so both ends of a connection must accept it. IPVS sends the packets
that it translated through output; the node's packets are accepted there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.policy.filter_table import AcceptRule, ChainContent, Element, Verdict
from attachment.policy.table import EGRESS, INGRESS, SELF, TABLE
from cni.address import Address
from kernel.netfilter import nft_expression, nft_interval, nft_rule, nft_set
from kernel.netfilter.base_table import BaseTable, TextRule
from kernel.netfilter.nft import Chain, Hook
from kernel.netfilter.nft_interval import Interval
from kernel.netfilter.nft_rule import ACCEPT, DROP
from kernel.netfilter.nft_set import ADDRESS, PADDED_PORT, PORT, Set
from kernel.rtnl import Request
from process.values import replace

_FORWARD, _OUTPUT = 2, 3  # NF_INET_*
_EGRESS_PRIORITY, _INGRESS_PRIORITY = -10, -9  # before the chains with priority filter, of firewalls
_VERSIONS = (4, 6)

EGRESS_MAPS = {version: replace(one, verdicts=True) for version, one in EGRESS.items()}
INGRESS_MAPS = {version: replace(one, verdicts=True) for version, one in INGRESS.items()}
COUNTER_PREFIX = "d-"  # of the counter of a chain's drops

_KEYS = {
    **{f"s{version}": (ADDRESS[version],) for version in _VERSIONS},
    **{f"b{version}": (ADDRESS[version],) for version in _VERSIONS},
    **{f"p{version}": (ADDRESS[version], PADDED_PORT) for version in _VERSIONS},
    "t": (PORT,),
}


def _base_rules(direction: str) -> tuple[TextRule, ...]:
    """Returns the rules of all base chains of a direction."""
    maps, verdict, field = {
        "egress": (EGRESS_MAPS, nft_rule.source_verdict, "saddr"),
        "ingress": (INGRESS_MAPS, nft_rule.destination_verdict, "daddr"),
    }[direction]
    ip = {4: "ip", 6: "ip6"}
    return (
        TextRule("ct state established,related accept", nft_rule.established_or_related() + ACCEPT),
        *(
            TextRule(
                f"{ip[version]} saddr . {ip[version]} daddr @{one.name} accept",
                nft_rule.addresses_in(version, one.name) + ACCEPT,
            )
            for version, one in SELF.items()
        ),
        *(
            TextRule(f"{ip[version]} {field} vmap @{one.name}", verdict(version, one.name))
            for version, one in maps.items()
        ),
    )


# Frames between pods of one bridge pass the hook forward, those of neighbour discovery too.
_NEIGHBOUR_DISCOVERY = TextRule("icmpv6 type 133-137 accept", nft_rule.neighbour_discovery() + ACCEPT)
_NODE = TextRule("fib saddr type local accept", nft_rule.from_this_host() + ACCEPT)
_EGRESS, _INGRESS = _base_rules("egress"), _base_rules("ingress")
_RULES = {
    Chain(TABLE, "egress", Hook("filter", _FORWARD, _EGRESS_PRIORITY)): (_NEIGHBOUR_DISCOVERY, *_EGRESS),
    Chain(TABLE, "ingress", Hook("filter", _FORWARD, _INGRESS_PRIORITY)): (_NEIGHBOUR_DISCOVERY, *_INGRESS),
    Chain(TABLE, "output-egress", Hook("filter", _OUTPUT, _EGRESS_PRIORITY)): _EGRESS,
    Chain(TABLE, "output-ingress", Hook("filter", _OUTPUT, _INGRESS_PRIORITY)): (_NODE, *_INGRESS),
}
BASE = BaseTable(
    TABLE,
    (*EGRESS_MAPS.values(), *INGRESS_MAPS.values(), *SELF.values()),
    tuple(_RULES),
    _RULES,
    {chain: len(rules) for chain, rules in _RULES.items()},
)


def set_of(name: str) -> Set:
    """Returns the nftables set of a FilterTable's set."""
    kind = name.partition("-")[0]
    return Set(TABLE, name, _KEYS[kind], interval=kind in ("b4", "b6", "t"))


def chain_of(name: str, comment: str = "") -> Chain:
    """Returns the nftables chain of a group."""
    return Chain(TABLE, name, comment=comment)


def counter_of(chain: str) -> str:
    """Returns the name of the counter of a chain's drops."""
    return COUNTER_PREFIX + chain


def rules_of(name: str, content: ChainContent) -> list[bytes]:
    """Returns the expressions of a chain's rules; the last one counts and drops."""
    last = nft_expression.count(counter_of(name)) + DROP
    return [*(_expressions(rule, is_egress=name.startswith("e-")) for rule in content.rules), last]


def _expressions(rule: AcceptRule, *, is_egress: bool) -> bytes:
    if rule.pair_set:
        return nft_rule.destination_and_port_in(rule.version, rule.protocol, rule.pair_set) + ACCEPT
    matches = b""
    if rule.peer_set:
        matches += (nft_rule.destination_in if is_egress else nft_rule.source_in)(rule.version, rule.peer_set)
    if rule.protocol:
        matches += nft_rule.transport(rule.protocol)
    if rule.port_set:
        matches += nft_rule.destination_port_in(rule.port_set)
    elif rule.ports:
        first, last = rule.ports
        matches += nft_rule.destination_port(first) if first == last else nft_rule.destination_ports(first, last)
    return matches + ACCEPT


def add_requests(name: str, elements: Iterable[Element]) -> list[Request]:
    """Builds the requests that add elements to a set; existing ones stay."""
    of_kernel = set_of(name)
    if of_kernel.interval:
        return nft_interval.add_interval_requests(of_kernel, map(interval_of, elements))
    return nft_set.add_element_requests(of_kernel, (nft_set.Element(key_of(one)) for one in elements))


def delete_requests(name: str, elements: Iterable[Element]) -> list[Request]:
    """Builds the requests that delete elements of a set; refused if one is absent (ENOENT)."""
    of_kernel = set_of(name)
    if of_kernel.interval:
        return nft_interval.delete_interval_requests(of_kernel, map(interval_of, elements))
    return nft_set.delete_element_requests(of_kernel, map(key_of, elements))


def key_of(element: Element) -> bytes:
    """Returns the key of an address, or of an address with a port."""
    if not isinstance(element, tuple):
        return element.packed
    address, port = element
    if isinstance(address, int):
        raise TypeError("a range has no key")
    return address.packed + int(port).to_bytes(2, "big") + bytes(2)


def interval_of(element: Element) -> Interval:
    """Returns the interval of a range of addresses or ports."""
    if not isinstance(element, tuple):
        raise TypeError("an address is no range")
    first, last = element
    return Interval(int(first), int(last) + 1)


def verdict_elements(verdicts: Mapping[Address, Verdict]) -> dict[Set, dict[bytes, str]]:
    """Returns the desired elements of `BASE.sets`: the chains of local pods' addresses, and "" in the sets SELF."""
    elements: dict[Set, dict[bytes, str]] = {one: {} for one in BASE.sets}
    for address, verdict in verdicts.items():
        version, key = address.version, address.packed
        if verdict.egress:
            elements[EGRESS_MAPS[version]][key] = verdict.egress
        if verdict.ingress:
            elements[INGRESS_MAPS[version]][key] = verdict.ingress
        elements[SELF[version]][key + key] = ""
    return elements
