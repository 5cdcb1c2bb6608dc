"""Whose the host ports of this node are, by the rules that there are.

One rule: nothing is changed, and both backends are looked at.
"""

from __future__ import annotations

from cni.conf import Attachment
from kernel.netfilter import iptables_chains, iptables_nft, nft, nft_owner, nft_rule
from kernel.netfilter.nft import NftSocket, Rule
from kernel.netfilter.owned import HOST_PORT, NFTABLES, OwnedRule
from plugins.portmap import iptables_rules, iptables_state
from plugins.portmap import nftables_rules as rules
from plugins.portmap.iptables_rules import OLD_CHAINS

_KINDS = (iptables_rules.CHAINS, OLD_CHAINS)


def list_host_ports(socket: NftSocket) -> list[OwnedRule]:
    """Returns the host ports of which netlink tells, each with its owner; raises KernelError.

    The reference's rules of nftables tell the container only.
    """
    found = []
    for kind in _KINDS:
        for item, rule in iptables_nft.list_owned_rules(socket, kind, HOST_PORT):
            protocol = nft_rule.parse_destination(rule.expressions).protocol
            found += [item._replace(about=f"{port}/{protocol}") for port in iptables_state.ports_of(rule)] or [item]
    for version in rules.CHAINS:
        for chain in rules.with_rules(version):
            for rule in nft.list_rules(socket, chain):
                about = _port(rule) if chain in rules.with_ports(version) else ""
                whole = len(rule.comment.encode()) < nft_rule.COMMENT_MAX
                container_id = rule.comment if whole else ""
                network, where = rules.network(rule), f"chain {rules.family(version)} {chain}"
                found.append(
                    OwnedRule(HOST_PORT, NFTABLES, where, rules.owner(rule), network, container_id, about=about)
                )
    return list(dict.fromkeys(found))


def list_host_ports_legacy() -> list[OwnedRule]:
    """Returns the host ports that iptables-legacy leads on; raises CniError."""
    found = []
    for item, line in iptables_chains.list_legacy_owned_rules(_KINDS, HOST_PORT):
        (entry,) = iptables_rules.found_entries([line]) or (None,)
        ports = [f"{port}/{entry.protocol}" for port in entry.ports] if entry else []
        found += [item._replace(about=about) for about in ports] or [item]
    return found


def marks_of(network: str, attachment: Attachment) -> tuple[bytes, ...]:
    """Returns the marks that an attachment's rules may have."""
    chains = (kind.name(network, attachment.container_id).encode() for kind in _KINDS)
    return *chains, nft_owner.owner_id(network, *attachment)


def _port(rule: Rule) -> str:
    protocol, port, *_ = nft_rule.parse_destination(rule.expressions)
    return f"{port}/{protocol}" if port and protocol else ""
