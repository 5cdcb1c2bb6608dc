"""The nftables objects of the policy filter: its base chains, and a FilterTable's rules and elements as bytes. Pure.

The base chains do not change while the agent runs. They decide about a connection's first packet (with
--check-established about each packet from the end that opened it), after DNAT and before SNAT:

    chain egress  { type filter hook forward priority -10; ... ip saddr vmap @egress4; ip6 saddr vmap @egress6 }
    chain ingress { type filter hook forward priority -9; ... ip daddr vmap @ingress4; ip6 daddr vmap @ingress6 }
    chain output-egress  { type filter hook output priority -10; ... }
    chain output-ingress { type filter hook output priority -9; fib saddr type local accept; ... }

"accept" ends only the base chain of its direction, so both ends of a connection must accept it. The output chains are
for IPVS, which sends the packets that it has translated through the hook output; they accept the node's own packets.
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

_FORWARD, _OUTPUT = 2, 3  # NF_INET_*
_EGRESS_PRIORITY, _INGRESS_PRIORITY = -10, -9  # before firewalls' chains, which have priority filter (0)
_VERSIONS = (4, 6)

COUNTER_PREFIX = "d-"  # the name of a chain's drop counter is this and the name of the chain

_KEY_PARTS = {
    **{f"s{version}": (ADDRESS[version],) for version in _VERSIONS},
    **{f"b{version}": (ADDRESS[version],) for version in _VERSIONS},
    **{f"p{version}": (ADDRESS[version], PADDED_PORT) for version in _VERSIONS},
    "t": (PORT,),
}


_ESTABLISHED = ("ct state established,related accept",)
_REPLIES_AND_RELATED = (
    "ct direction reply accept",
    "ct state related accept",
    "ct status expected accept",
)  # --check-established
_SELF = ("ip saddr . ip daddr @self4 accept", "ip6 saddr . ip6 daddr @self6 accept")
# With bridge netfilter, frames between pods of one bridge pass the hook forward, including neighbour discovery.
_NEIGHBOUR_DISCOVERY = "icmpv6 type 133-137 accept"
_LOCAL_SOURCE = "fib saddr type local accept"  # packets that the node itself sends
BASE_SETS = (*EGRESS.values(), *INGRESS.values(), *SELF.values())


def compile_base(*, check_established: bool) -> BaseTable:
    """Returns the base chains.

    Packets of established connections, and related ones, skip the policies; with `check_established` replies and
    related ones do.
    """
    accepted = (*(_REPLIES_AND_RELATED if check_established else _ESTABLISHED), *_SELF)
    egress = (*accepted, "ip saddr vmap @egress4", "ip6 saddr vmap @egress6")
    ingress = (*accepted, "ip daddr vmap @ingress4", "ip6 daddr vmap @ingress6")
    rules = {
        Chain(TABLE, "egress", Hook("filter", _FORWARD, _EGRESS_PRIORITY)): (_NEIGHBOUR_DISCOVERY, *egress),
        Chain(TABLE, "ingress", Hook("filter", _FORWARD, _INGRESS_PRIORITY)): (_NEIGHBOUR_DISCOVERY, *ingress),
        Chain(TABLE, "output-egress", Hook("filter", _OUTPUT, _EGRESS_PRIORITY)): egress,
        Chain(TABLE, "output-ingress", Hook("filter", _OUTPUT, _INGRESS_PRIORITY)): (_LOCAL_SOURCE, *ingress),
    }
    return BaseTable.compile(TABLE, BASE_SETS, rules)


def set_of(name: str) -> Set:
    """Returns the nftables set of this name; the first letters of the name are its kind."""
    kind = name.partition("-")[0]
    return Set(TABLE, name, _KEY_PARTS[kind], interval=kind in ("b4", "b6", "t"))


def chain_of(name: str, comment: str = "") -> Chain:
    """Returns the nftables chain of this name."""
    return Chain(TABLE, name, comment=comment)


def counter_of(chain: str) -> str:
    """Returns the name of the counter of the packets that a chain drops."""
    return COUNTER_PREFIX + chain


def rules_of(name: str, content: ChainContent) -> list[bytes]:
    """Returns the expressions of each rule of a chain; the last rule counts and drops the packet."""
    peer = "daddr" if name.startswith("e-") else "saddr"
    texts = [*(_rule_text(rule, peer) for rule in content.rules), f'counter name "{counter_of(name)}" drop']
    return [compile_rule(text, TABLE.family) for text in texts]


def _rule_text(rule: AcceptRule, peer: str) -> str:
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
    element_set = set_of(name)
    if element_set.interval:
        return nft_interval.add_interval_requests(element_set, map(interval_of, elements))
    return nft_set.add_element_requests(element_set, (nft_set.Element(key_of(element)) for element in elements))


def delete_requests(name: str, elements: Iterable[Element]) -> list[Request]:
    """Builds the requests that delete elements of a set; refused if one is absent (ENOENT)."""
    element_set = set_of(name)
    if element_set.interval:
        return nft_interval.delete_interval_requests(element_set, map(interval_of, elements))
    return nft_set.delete_element_requests(element_set, map(key_of, elements))


def key_of(element: Element) -> bytes:
    """Returns the key of an address, or of a pair of address and port."""
    if not isinstance(element, tuple):
        return element.packed
    address, port = element
    if isinstance(address, int):
        raise TypeError("a range has no key")
    return address.packed + int(port).to_bytes(2, "big") + bytes(2)


def interval_of(element: Element) -> Interval:
    """Returns the interval of a range of addresses or ports."""
    if not isinstance(element, tuple):
        raise TypeError("an address is not a range")
    first, last = element
    return Interval(int(first), int(last) + 1)


def verdict_elements(verdicts: Mapping[Address, Verdict]) -> dict[Set, dict[bytes, str]]:
    """Returns the desired elements of `BASE_SETS` by key, with their chains; in the sets SELF the chain is ""."""
    elements: dict[Set, dict[bytes, str]] = {element_set: {} for element_set in BASE_SETS}
    for address, verdict in verdicts.items():
        version, key = address.version, address.packed
        if verdict.egress:
            elements[EGRESS[version]][key] = verdict.egress
        if verdict.ingress:
            elements[INGRESS[version]][key] = verdict.ingress
        elements[SELF[version]][key + key] = ""
    return elements
