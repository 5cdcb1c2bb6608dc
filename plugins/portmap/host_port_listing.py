"""Lists the host ports of this node and their owners, from the existing rules of both backends.

It changes nothing.
"""

from __future__ import annotations

from cni.conf import Attachment
from kernel.netfilter import iptables_chains, iptables_nft, nft, nft_owner, nft_rule
from kernel.netfilter.nft import NftRule, NftSocket
from kernel.netfilter.owned import HOST_PORT, NFTABLES, OwnedRule
from plugins.portmap import iptables_rules, iptables_state
from plugins.portmap import nftables_rules as rules
from plugins.portmap.iptables_rules import OLD_CHAINS

_SCHEMES = (iptables_rules.DNAT_CHAINS, OLD_CHAINS)


def list_host_ports(socket: NftSocket) -> list[OwnedRule]:
    """Returns the host ports in nftables and iptables-nft, each with its owner; raises KernelError.

    The nftables rules of the reference plugin name only the container.
    """
    listed = []
    for scheme in _SCHEMES:
        for owned_rule, rule in iptables_nft.list_owned_rules(socket, scheme, HOST_PORT):
            protocol = nft_rule.parse_destination(rule.expressions).protocol
            ports = iptables_state.jump_ports(rule)
            listed += [owned_rule._replace(subject=f"{port}/{protocol}") for port in ports] or [owned_rule]
    for version in rules.CHAINS:
        for chain in rules.attachment_chains(version):
            for rule in nft.list_rules(socket, chain):
                subject = _port(rule) if chain in rules.port_chains(version) else ""
                may_be_cut = len(rule.comment.encode()) >= nft_rule.COMMENT_MAX
                container_id = "" if may_be_cut else rule.comment
                network, where = rules.network(rule), f"chain {rules.nft_family(version)} {chain}"
                listed.append(
                    OwnedRule(HOST_PORT, NFTABLES, where, rules.owner(rule), network, container_id, subject=subject)
                )
    return list(dict.fromkeys(listed))


def list_host_ports_legacy() -> list[OwnedRule]:
    """Returns the host ports in iptables-legacy, each with its owner; raises CniError."""
    listed = []
    for owned_rule, rule in iptables_chains.list_legacy_owned_rules(_SCHEMES, HOST_PORT):
        jump_rule = iptables_rules.parse_jump_rule(rule)
        ports = [f"{port}/{jump_rule.protocol}" for port in jump_rule.ports]
        listed += [owned_rule._replace(subject=subject) for subject in ports] or [owned_rule]
    return listed


def owner_keys(network: str, attachment: Attachment) -> tuple[bytes, ...]:
    """Returns the owner keys that an attachment's rules may have: names of chains and a hash."""
    chains = (scheme.name(network, attachment.container_id).encode() for scheme in _SCHEMES)
    return *chains, nft_owner.owner_id(network, *attachment)


def _port(rule: NftRule) -> str:
    protocol, port, *_ = nft_rule.parse_destination(rule.expressions)
    return f"{port}/{protocol}" if port and protocol else ""
