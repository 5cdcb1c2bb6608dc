r"""The firewall's rules of iptables: builds the desired rules, parses the existing ones.

This module is pure.

    -A FORWARD ... -j CNI-ISOLATION-STAGE-1                      first, if any network has a policy
    -A FORWARD ... -j CNI-FORWARD
    -A CNI-FORWARD ... -j CNI-ADMIN
    -A CNI-FORWARD -d 10.22.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    -A CNI-FORWARD -s 10.22.0.2/32 -j ACCEPT
    -A CNI-ISOLATION-STAGE-1 -i cni0 -o cni0 ... -j DROP         isolated only
    -A CNI-ISOLATION-STAGE-1 -i cni0 ! -o cni0 ... -j CNI-ISOLATION-STAGE-2
    -A CNI-ISOLATION-STAGE-2 -o cni0 ... -j DROP

These are the reference plugin's rules, which do not name their owner. A further chain, to which no rule jumps, does:

    -A CNI-FORWARD-OWNERS -s 10.22.0.2/32 -m comment --comment "name: \"net\" id: \"cid\" if: \"eth0\""
"""

from __future__ import annotations

import hashlib
import re
from ipaddress import ip_address
from typing import NamedTuple

from cni.address import Address, as_network
from cni.conf import Attachment
from kernel.netfilter.iptables_rule import COMMENT_MAX, IptablesRule, Listing, comment_match, network_text
from plugins.firewall.spec import ISOLATED, SAME_BRIDGE, FirewallSpec

TABLE = "filter"
ENTRY, FORWARD, OWNERS = "FORWARD", "CNI-FORWARD", "CNI-FORWARD-OWNERS"
STAGE_1, STAGE_2 = "CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"

_STAGES_COMMENT = comment_match("CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)")
_POLICY_COMMENTS = {
    policy: comment_match(f"CNI firewall plugin rules (ingressPolicy: {policy})") for policy in (SAME_BRIDGE, ISOLATED)
}

FORWARD_JUMP = IptablesRule(ENTRY, f"{comment_match('CNI firewall plugin rules')} -j {FORWARD}")
ISOLATION_JUMP = IptablesRule(ENTRY, f"{_STAGES_COMMENT} -j {STAGE_1}")
ENDS = {chain: IptablesRule(chain, f"{_STAGES_COMMENT} -j RETURN") for chain in (STAGE_1, STAGE_2)}

_HASH_DIGITS = 32
_ADDRESS_RULE = re.compile(
    r"-s (\S+)/(?:32|128) -j ACCEPT|-d (\S+)/(?:32|128) -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
)
_RECORD = re.compile(r"-s (\S+)/(?:32|128) -m comment --comment .*")
_NAMED = re.compile(r'name: "(?P<network>[^"]+)" id: "(?P<container_id>[^"]+)" if: "(?P<ifname>.+)"')
_INTERFACE_OPTIONS = {STAGE_1: "-i", STAGE_2: "-o"}


class OwnerRecord(NamedTuple):
    """The owner of an address: the text of the comment that names it, and the rule."""

    address: Address
    comment: str
    rule: IptablesRule

    @property
    def owner(self) -> tuple[str, Attachment] | None:
        """The network and the attachment, None if the comment has hashes because the names are too long."""
        named = _NAMED.fullmatch(self.comment)
        return (named["network"], Attachment(named["container_id"], named["ifname"])) if named else None


def normalize(rule: IptablesRule) -> IptablesRule:
    """Returns a rule as the reference plugin writes it since 1.7.0; older comments of shared rules name one policy."""
    is_shared = rule.chain in (ENTRY, STAGE_2) or rule.target == "RETURN"
    return (
        IptablesRule(rule.chain, rule.spec.replace(_POLICY_COMMENTS[SAME_BRIDGE], _STAGES_COMMENT))
        if is_shared
        else rule
    )


def admin_jump(chain: str) -> IptablesRule:
    """Returns the rule that jumps to the administrator's chain, before the rules of addresses."""
    return IptablesRule(FORWARD, f"{comment_match('CNI firewall plugin admin overrides')} -j {chain}")


def address_rules(address: Address) -> list[IptablesRule]:
    """Returns the rules that accept packets from an address, and replies to it."""
    network = network_text(as_network(address))
    return [
        IptablesRule(FORWARD, f"-d {network} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
        IptablesRule(FORWARD, f"-s {network} -j ACCEPT"),
    ]


def policy_rules(policy: str, bridge: str) -> list[IptablesRule]:
    """Returns the rules of a bridge with a policy, in the order of their chains."""
    comment = _POLICY_COMMENTS[policy]
    isolation = [IptablesRule(STAGE_1, f"-i {bridge} -o {bridge} {comment} -j DROP")] if policy == ISOLATED else []
    return [
        *isolation,
        IptablesRule(STAGE_1, f"-i {bridge} ! -o {bridge} {comment} -j {STAGE_2}"),
        IptablesRule(STAGE_2, f"-o {bridge} {_STAGES_COMMENT} -j DROP"),
    ]


def other_policy_rules(policy: str, bridge: str) -> list[IptablesRule]:
    """Returns the rules that a bridge has only with the other policy."""
    other = SAME_BRIDGE if policy == ISOLATED else ISOLATED
    desired = policy_rules(policy, bridge)
    return [rule for rule in policy_rules(other, bridge) if rule not in desired]


def interface_of(rule: IptablesRule) -> str:
    """Returns the interface that a policy's rule matches, "" for any other rule."""
    option, _, rest = rule.spec.partition(" ")
    return rest.partition(" ")[0] if option == _INTERFACE_OPTIONS.get(rule.chain) else ""


def address_of(rule: IptablesRule) -> Address | None:
    """Returns the address that a rule in CNI-FORWARD accepts, None for any other rule."""
    match = _ADDRESS_RULE.fullmatch(rule.spec)
    return ip_address(match[1] or match[2]) if match else None


def record_rule(spec: FirewallSpec, address: Address) -> IptablesRule:
    """Returns the rule that records the owner of an address."""
    comment = comment_match(owner_text(spec.network, Attachment(spec.container_id, spec.ifname)))
    return IptablesRule(OWNERS, f"-s {network_text(as_network(address))} {comment}")


def parse_records(listing: Listing) -> list[OwnerRecord]:
    """Returns the records in a listing."""
    matches = ((rule, _RECORD.fullmatch(rule.spec)) for rule in listing.rules(OWNERS))
    return [OwnerRecord(ip_address(match[1]), rule.comment, rule) for rule, match in matches if match]


def owner_text(network: str, attachment: Attachment) -> str:
    """Returns the comment of an attachment's records; if the names are too long, it has hashes instead."""
    text = f'{_network(network)}id: "{attachment.container_id}" if: "{attachment.ifname}"'
    if len(text.encode(errors="surrogateescape")) > COMMENT_MAX:
        text = f"{_hashed_network(network)}owner-sha512: {_hash(text)}"
    return text


def is_of_network(record: OwnerRecord, network: str) -> bool:
    """Returns whether a record belongs to an attachment of a network."""
    return record.comment.startswith((_network(network), _hashed_network(network)))


def _network(network: str) -> str:
    return f'name: "{network}" '


def _hashed_network(network: str) -> str:
    return f"name-sha512: {_hash(network)} "


def _hash(text: str) -> str:
    return hashlib.sha512(text.encode(errors="surrogateescape")).hexdigest()[:_HASH_DIGITS]
