"""Rules that accept packets to one network, in chains of iptables.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import IPv4Network, IPv6Network

from cni.address import Network
from kernel.netfilter import nft, nft_rule
from kernel.netfilter import nft_expression as expression
from kernel.netfilter.iptables_expressions import Expressions, render_expressions
from kernel.netfilter.iptables_rule import Rule, network_text
from kernel.netfilter.nft import Chain
from kernel.netfilter.nft_expression import attributes
from kernel.netfilter.nft_set import byte_filter
from kernel.rtnl import Request

_SIZES = {4: 4, 6: 16}  # of an address, by IP version
_MASK, _COMPARED = 4, 3  # NFTA_BITWISE_MASK, NFTA_CMP_DATA


def accept_rule(chain: str, network: Network, comment: str = "") -> Rule:
    """Returns the rule that accepts packets to a network; `comment` is the match for its comment."""
    destination = f"-d {network_text(network)}" if network.prefixlen else ""
    return Rule(chain, " ".join(filter(None, (destination, comment, "-j ACCEPT"))))


def accept_request(chain: Chain, network: Network) -> Request:
    """Builds the request that appends the rule to a chain of iptables-nft."""
    return nft.rule_request(chain, _render(network).written())


def accept_filter(networks: Iterable[Network]) -> Callable[[bytes], bool]:
    """Returns a filter on messages that accepts the rules of `networks`, and perhaps others, for nft.list_rules."""
    parts = []
    for network in networks:
        whole, rest = divmod(network.prefixlen, 8)
        packed = network.network_address.packed
        parts.append(nft_rule.compared_value(packed if rest else packed[:whole]) if network.prefixlen else b"")
    return byte_filter(parts)


def parse_accepted(version: int, rule: nft.Rule) -> Network | None:
    """Returns the network that a rule of iptables-nft accepts, None if it does anything else."""
    network = _guess(version, rule.expressions)
    return network if network is not None and _render(network).is_rule(rule.expressions) else None


def _render(network: Network) -> Expressions:
    rendered = render_expressions(network.version, accept_rule("", network).spec)
    if rendered is None:
        raise ValueError(f"iptables has no rule that accepts packets to {network}")
    return rendered


def _guess(version: int, expressions: bytes) -> Network | None:
    """Returns the network of the last comparison, with the mask before it; None if there is no such network."""
    size = _SIZES[version]
    mask, compared = b"", b""
    for part in nft_rule.split_expressions(expressions):
        element = _content(_content(part).get(expression.LIST_ELEM, b""))
        name, data = element.get(expression.NAME), _content(element.get(expression.DATA, b""))
        if name == b"bitwise\0":
            mask = _value(data.get(_MASK, b""))
        elif name == b"cmp\0":
            compared = _value(data.get(_COMPARED, b""))
    bits = int.from_bytes(mask, "big").bit_count() if mask else len(compared) * 8
    if len(compared) > size or bits > size * 8:
        return None
    where = int.from_bytes(compared.ljust(size, b"\0"), "big"), bits
    return IPv4Network(where, strict=False) if version == 4 else IPv6Network(where, strict=False)


def _content(data: bytes) -> dict[int, bytes]:
    return {kind: value for kind, _, value in attributes(data)}


def _value(data: bytes) -> bytes:
    return _content(data).get(expression.DATA_VALUE, b"")
