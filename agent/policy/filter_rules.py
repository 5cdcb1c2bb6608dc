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
from kernel.netfilter import nft_interval, nft_set
from kernel.netfilter.base_table import BaseTable
from kernel.netfilter.nft import Chain, Hook
from kernel.netfilter.nft_compile import compile_rule
from kernel.netfilter.nft_interval import Interval
from kernel.netfilter.nft_set import ADDRESS, PADDED_PORT, PORT, Set
from kernel.rtnl import Request
from process.values import replace

_FORWARD, _OUTPUT = 2, 3  # NF_INET_*
_FIRST, _SECOND = -10, -9  # priorities, before the chains with priority filter, of firewalls
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


_OF_ALL = (
    "ct state established,related accept",
    "ip saddr . ip daddr @self4 accept",
    "ip6 saddr . ip6 daddr @self6 accept",
)
_EGRESS = (*_OF_ALL, "ip saddr vmap @egress4", "ip6 saddr vmap @egress6")
_INGRESS = (*_OF_ALL, "ip daddr vmap @ingress4", "ip6 daddr vmap @ingress6")
# Frames between pods of one bridge pass the hook forward, those of neighbour discovery too.
_NEIGHBOUR_DISCOVERY = "icmpv6 type 133-137 accept"
BASE = BaseTable.compile(
    TABLE,
    (*EGRESS_MAPS.values(), *INGRESS_MAPS.values(), *SELF.values()),
    {
        Chain(TABLE, "egress", Hook("filter", _FORWARD, _FIRST)): (_NEIGHBOUR_DISCOVERY, *_EGRESS),
        Chain(TABLE, "ingress", Hook("filter", _FORWARD, _SECOND)): (_NEIGHBOUR_DISCOVERY, *_INGRESS),
        Chain(TABLE, "output-egress", Hook("filter", _OUTPUT, _FIRST)): _EGRESS,
        Chain(TABLE, "output-ingress", Hook("filter", _OUTPUT, _SECOND)): ("fib saddr type local accept", *_INGRESS),
    },
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
    peer = "daddr" if name.startswith("e-") else "saddr"
    texts = [*(_text(rule, peer) for rule in content.rules), f'counter name "{counter_of(name)}" drop']
    return [compile_rule(text, TABLE.family) for text in texts]


def _text(rule: AcceptRule, peer: str) -> str:
    """Returns a rule as `nft list` prints it."""
    ip = "ip6" if rule.version == 6 else "ip"
    if rule.pair_set:
        return f"{ip} daddr . {rule.protocol} dport @{rule.pair_set} accept"
    matches = [f"{ip} {peer} @{rule.peer_set}"] if rule.peer_set else []
    if rule.port_set:
        matches.append(f"{rule.protocol} dport @{rule.port_set}")
    elif rule.ports:
        first, last = rule.ports
        matches.append(f"{rule.protocol} dport {first}" + (f"-{last}" if last > first else ""))
    elif rule.protocol:
        matches.append(f"meta l4proto {rule.protocol}")
    return " ".join((*matches, "accept"))


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
