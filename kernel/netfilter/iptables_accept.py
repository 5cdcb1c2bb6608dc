"""Rules that accept packets to one network, in chains of iptables.

This module is pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from ipaddress import ip_network

from cni.address import Network
from kernel.netfilter import nft, nft_rule
from kernel.netfilter.iptables_expressions import change_request
from kernel.netfilter.iptables_listing import parse_rule
from kernel.netfilter.iptables_rule import IptablesChange, IptablesRule, network_text
from kernel.netfilter.nft import Chain
from kernel.netfilter.nft_set import byte_filter
from kernel.rtnl import Request

_ACCEPT = re.compile(r"(?:-d (\S+) )?-j ACCEPT")
_ALL = {4: "0.0.0.0/0", 6: "::/0"}


def accept_rule(chain: str, network: Network, comment: str = "") -> IptablesRule:
    """Returns the rule that accepts packets to a network; `comment` is the match for its comment."""
    destination = f"-d {network_text(network)}" if network.prefixlen else ""
    return IptablesRule(chain, " ".join(filter(None, (destination, comment, "-j ACCEPT"))))


def accept_request(chain: Chain, network: Network) -> Request:
    """Builds the request that appends the rule to a chain of iptables-nft."""
    request = change_request(network.version, chain.table, IptablesChange.append(accept_rule(chain.name, network)))
    if request is None:
        raise ValueError(f"iptables has no rule that accepts packets to {network}")
    return request


def accept_filter(networks: Iterable[Network]) -> Callable[[bytes], bool]:
    """Returns a filter on messages that accepts the rules of `networks`, and perhaps others, for nft.list_rules."""
    parts = []
    for network in networks:
        whole, rest = divmod(network.prefixlen, 8)
        packed = network.network_address.packed
        parts.append(nft_rule.compared_value(packed if rest else packed[:whole]) if network.prefixlen else b"")
    return byte_filter(parts)


def parse_accepted(version: int, rule: nft.NftRule) -> Network | None:
    """Returns the network that a rule of iptables-nft accepts, None if it does anything else."""
    parsed = parse_rule("", rule, version)
    match = _ACCEPT.fullmatch(parsed.spec) if parsed else None
    return ip_network(match[1] or _ALL[version]) if match else None
